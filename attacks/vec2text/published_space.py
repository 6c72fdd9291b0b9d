"""Check that the user's embedder gives the vectors that a released checkpoint was trained on.

    check_space(load_published("jxm/gtr__nq__32__correct"), oracle)

Vectors of "the same" model are of another space where pooling, prefix or normalisation differ: those of GTR in the
sentence-transformers pipeline have a cosine of .018 with those of its bare encoder, which the released inverters read.
Three things can be checked without trust in names, from the most certain to the least:

1. the dimension of the vectors;
2. where the checkpoint holds its embedder and that is a T5 encoder under a masked mean (GTR: the paper's), it embeds a
   few known sentences, and so does the user's;
3. elsewhere (an API, another architecture), the inverter reads the user's vectors of those sentences, and its texts are
   embedded: most must lie closest to the sentence that they came from.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from unembed.attacks.vec2text.published import Published
from unembed.core.errors import InputError
from unembed.embedders.cache.cached import CachedEmbedder

# Everyday English on five subjects; the released models were trained on questions and passages of the web.
SENTENCES = (
    "The harbour was quiet before the storm reached the coast.",
    "She earned a doctorate in chemistry at the university of Vienna.",
    "How long should I boil an egg for breakfast?",
    "The company repaid its loan of four million dollars in 1998.",
    "Our football team lost the final match against Brazil.",
)
CLOSE = 0.99  # rounding and half precision leave more than .999
# The multilingual authors' code takes the pooler's output wherever a model has one, and no prefix.
_E5_POOLER = 'embedder=me5_base embedder.pooling=pooler embedder.normalize=false embedder.prefix=""'
# What checkpoints call their embedder -> the override that gives its vectors.
OVERRIDES = {
    "gtr_base": "embedder=gtr",
    "gtr_base_st": "embedder=gtr_st",
    "intfloat/multilingual-e5-base": _E5_POOLER,
    "multilingual_e5_base": _E5_POOLER,
    "sentence-transformers/all-MiniLM-L6-v2": "embedder=minilm",
    "text-embedding-ada-002": "embedder=openai embedder.model=text-embedding-ada-002",
}

Embed = Callable[[list[str]], Tensor]


def check_space(published: Published, oracle: CachedEmbedder) -> None:
    """Compare the spaces; the sentences count as asked for scoring, not as queries of the attack.

    Warns where only the third check is possible and fails: an inverter may also be weak on these sentences.

    Raises:
        InputError: The widths differ, or the vectors do.
    """
    wanted = f"embedder {published.embedder}"
    if published.embedder in OVERRIDES:
        wanted += f": {OVERRIDES[published.embedder]}"
    if oracle.dimension != published.dimension:
        raise InputError(
            f"attack.pretrained={published.name} reads vectors of {published.dimension} dimensions, and the embedder "
            f"gives {oracle.dimension}; the checkpoint names the {wanted}"
        )
    sentences = list(SENTENCES)
    own = oracle.embed(sentences, "scoring").float()
    stored = stored_embedder(published)
    if stored is not None:
        _compare(published, own, stored(sentences), wanted)
        return
    returned = oracle.embed([one.text for one in published.guess(own)], "scoring").float()
    normal = torch.nn.functional.normalize
    nearest = (normal(returned, dim=1) @ normal(own, dim=1).T).argmax(1)
    right = int((nearest == torch.arange(len(sentences))).sum())
    if right < len(sentences) - 1:
        warnings.warn(
            f"attack.pretrained={published.name}: what its inverter makes of {len(sentences)} known sentences is "
            f"closest to the right one for {right} of them only, so its vectors are probably of another space than the "
            f"embedder's; the checkpoint names the {wanted}",
            stacklevel=2,
        )


def _compare(published: Published, own: Tensor, stored: Tensor, wanted: str) -> None:
    cosine = float(torch.nn.functional.cosine_similarity(own, stored).min())
    length = float((own.norm(dim=1) / stored.norm(dim=1)).mean())
    if cosine < CLOSE:
        raise InputError(
            f"attack.pretrained={published.name} was trained on vectors of another space than the embedder's: known "
            f"sentences have a cosine of {cosine:.3f} with their vectors by the embedder in the checkpoint, where "
            f"at least {CLOSE} is wanted; the checkpoint names the {wanted}. Look at model, pooling and prefix"
        )
    if abs(length - 1) > 1 - CLOSE:
        raise InputError(
            f"attack.pretrained={published.name}: the embedder's vectors are {length:.3g} times as long as those that "
            f"the checkpoint was trained on ({float(stored.norm(dim=1).mean()):.3g}); the checkpoint names the "
            f"{wanted}. Look at normalisation"
        )


def stored_embedder(published: Published) -> Embed | None:
    """The frozen embedder in the inverter's file; None where there is none that can be rebuilt from its tensors.

    Only a T5 encoder over the inverter's own vocabulary can: its tensors tell its whole architecture.
    """
    from transformers import T5Config, T5EncoderModel

    weights = published.embedder_weights
    bias = weights.get("block.0.layer.0.SelfAttention.relative_attention_bias.weight")
    table = weights.get("embed_tokens.weight")
    # Rows beyond the tokenizer's entries only fill up.
    if bias is None or table is None or len(published.tokenizer) > len(table):
        return None
    gated = "block.0.layer.1.DenseReluDense.wi_0.weight" in weights
    inner = weights[f"block.0.layer.1.DenseReluDense.{'wi_0' if gated else 'wi'}.weight"]
    config = T5Config(
        vocab_size=table.shape[0],
        d_model=table.shape[1],
        d_ff=inner.shape[0],
        num_heads=bias.shape[1],
        d_kv=weights["block.0.layer.0.SelfAttention.q.weight"].shape[0] // bias.shape[1],
        num_layers=1 + max(int(name.split(".")[1]) for name in weights if name.startswith("block.")),
        relative_attention_num_buckets=bias.shape[0],
        feed_forward_proj="gated-gelu" if gated else "relu",
        dropout_rate=0.0,
    )
    model = T5EncoderModel(config).eval()
    model.encoder.load_state_dict(weights)

    @torch.no_grad()
    def embed(texts: list[str]) -> Tensor:
        batch = published.tokenizer(texts, padding=True, return_tensors="pt")
        mask = batch["attention_mask"]
        hidden = model(input_ids=batch["input_ids"], attention_mask=mask).last_hidden_state
        vectors: Tensor = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return vectors

    return embed
