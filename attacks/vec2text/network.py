"""The corrector's network (Morris et al. 2023, section 3.1, and the layout of its released weights).

    encoder input:  </s> T1(e) x16 </s> T3(e') x16 </s> T2(e - e') x16 </s> <pad> hypothesis ids </s>
    decoder output: the text

e is the target, e' the vector of the hypothesis, and T1 to T3 are MLPs from a vector to 16 of the model's width. A
hypothesis of as many ids as can be written has no </s> behind them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_warn
from pydantic import PositiveInt
from torch import Tensor, nn

from unembed.attacks.parts.backbones import decoded_text, token_ids
from unembed.attacks.parts.decoders import EncoderDecoder, cross_entropy, decoder_inputs
from unembed.attacks.parts.decoding import BeamSearch
from unembed.attacks.parts.prefix import Prefix
from unembed.attacks.vec2text.search import Proposal


@dataclass(frozen=True, slots=True)
class Layout:
    """Architecture options in which released correctors differ.

    With ``normalize``, vectors are scaled to norm sqrt(d), and their difference by the same factor: a coordinate is of
    size 1, as small models from random weights want it. Released weights read vectors as they are.
    """

    vectors: PositiveInt = 16
    shared: bool = False
    layer_norm: bool = True
    feedback: bool = True
    normalize: bool = True


class CorrectorNetwork(nn.Module):
    """Transforms, layer norm and ``model``, a transformers encoder-decoder with a language-modelling head."""

    def __init__(self, model: Any, dimension: int, layout: Layout) -> None:
        super().__init__()
        self.model, self.layout = model, layout
        self.width = int(model.get_input_embeddings().embedding_dim)
        self.scale = math.sqrt(dimension) if layout.normalize else 1.0
        self.target = self._transform(dimension)
        self.difference = self.target if layout.shared else self._transform(dimension)
        self.hypothesis = self.target if layout.shared else self._transform(dimension)
        self.norm = nn.LayerNorm(self.width, eps=1e-5) if layout.layer_norm else nn.Identity()

    def _transform(self, dimension: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Linear(dimension, dimension), nn.GELU(), nn.Linear(dimension, self.layout.vectors * self.width)
        )

    def read_vectors_as(self, prefix: Prefix) -> None:
        """Begin with an inverter's projection of vectors, for target and hypothesis; warn where its layout is another
        one, so that they begin with random weights."""
        differences = [
            f"attack.layout.{key}={ours} and the inverter's attack.prefix.{key}={theirs}"
            for key in ("vectors", "normalize")
            if (ours := getattr(self.layout, key)) != (theirs := getattr(prefix, key))
        ] + ([f"the inverter's attack.prefix.kind={prefix.kind}"] if prefix.kind != "mlp" else [])
        if differences:
            rank_zero_warn(
                "attack.start_from_inverter: the corrector cannot begin with the inverter's projection of vectors, "
                f"which is of another layout, but with a random one: {', '.join(differences)}"
            )
            return
        learnt = [layer for layer in prefix.layers.modules() if isinstance(layer, nn.Linear)]
        for transform in (self.target, self.hypothesis):
            own = [layer for layer in transform.modules() if isinstance(layer, nn.Linear)]
            for layer, other in zip(own, learnt, strict=True):
                layer.load_state_dict(other.state_dict())

    def project(self, targets: Tensor) -> Tensor:
        return self._to_vectors(self.target, self._scaled(targets))

    def encoder_input(self, projected: Tensor, targets: Tensor, vectors: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        """What the encoder reads.

        Args:
            projected: T1 of the targets, (m, vectors, width).
            targets: (m, d).
            vectors: Of the hypotheses, (m, d).
            ids: Of the hypotheses, (m, T), padded to the right with the model's pad token.

        Returns:
            Embeddings (m, 3 vectors + 4 + T, width), and a mask of that length: 1 everywhere but on padding.
        """
        target = self._scaled(targets)
        hypothesis = self._scaled(vectors) if self.layout.feedback else target
        embed = self.model.get_input_embeddings()
        end = embed(ids.new_tensor([self.model.config.eos_token_id])).expand(len(ids), 1, self.width)
        parts = [
            end, projected,
            end, self._to_vectors(self.hypothesis, hypothesis),
            end, self._to_vectors(self.difference, target - hypothesis),
            end, embed(ids),
        ]  # fmt: skip
        mask = (ids != self.model.config.pad_token_id).long()
        ones = mask.new_ones(len(ids), 3 * self.layout.vectors + 4)
        return self.norm(torch.cat(parts, 1)), torch.cat([ones, mask], 1)

    def loss(self, targets: Tensor, vectors: Tensor, ids: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
        """Mean cross-entropy of labels (m, L), padded with -100; the rest as in encoder_input."""
        inputs, mask = self.encoder_input(self.project(targets), targets, vectors, ids)
        before = decoder_inputs(self.model, labels)
        logits = self.model(
            inputs_embeds=inputs, attention_mask=mask, decoder_input_ids=before, use_cache=False
        ).logits  # fmt: skip
        return cross_entropy(logits, labels, smoothing)

    def _scaled(self, vectors: Tensor) -> Tensor:
        return nn.functional.normalize(vectors, dim=-1) * self.scale if self.layout.normalize else vectors

    def _to_vectors(self, transform: nn.Sequential, vectors: Tensor) -> Tensor:
        projected: Tensor = transform(vectors)
        return projected.view(len(vectors), self.layout.vectors, self.width)


class NetworkRewriter:
    """A corrector network in eval mode with its tokenizer, as the search sees it (``search.Rewriter``)."""

    def __init__(self, network: CorrectorNetwork, tokenizer: Any, max_new_tokens: int) -> None:
        self.network, self.tokenizer, self.max_new_tokens = network, tokenizer, max_new_tokens

    @torch.no_grad()
    def project(self, targets: Tensor) -> Tensor:
        return self.network.project(targets)

    @torch.no_grad()
    def rewrite(
        self, projected: Tensor, targets: Tensor, hypotheses: Sequence[Proposal], vectors: Tensor, beams: int
    ) -> list[list[Proposal]]:
        """See search.Rewriter; beam search with as many beams as are asked for, greedy for one."""
        config = self.network.model.config
        ids = padded([one.ids for one in hypotheses], config.pad_token_id).to(targets.device)
        inputs, mask = self.network.encoder_input(projected, targets, vectors, ids)
        decoder = EncoderDecoder(self.network.model, mask)
        search = BeamSearch(beams, self.max_new_tokens, candidates=beams)
        written = search(decoder, inputs, eos=config.eos_token_id, index=torch.arange(len(inputs)))
        return [[self.proposal(row) for row in rows] for rows in written]

    def proposal(self, ids: Sequence[int]) -> Proposal:
        """The text of decoded ids, and the ids as the encoder reads them."""
        return Proposal(decoded_text(self.tokenizer, ids), as_read(ids, self.network.model.config, self.max_new_tokens))

    def read(self, texts: Sequence[str]) -> list[Proposal]:
        """Texts of another attack as hypotheses: with the ids that this one would have written."""
        ids, config = token_ids(self.tokenizer, texts), self.network.model.config
        return [Proposal(text, as_read(row, config, self.max_new_tokens)) for text, row in zip(texts, ids, strict=True)]


def as_read(ids: Sequence[int], config: Any, longest: int) -> tuple[int, ...]:
    """Ids of a hypothesis as the encoder of a model of this ``config`` reads them: behind the start token, cut to the
    ``longest`` that decoding writes; the end token only where decoding would have written it."""
    end = (config.eos_token_id,) if len(ids) < longest else ()
    return (config.decoder_start_token_id, *ids[:longest], *end)


def padded(rows: Sequence[Sequence[int]], value: int) -> Tensor:
    return nn.utils.rnn.pad_sequence(
        [torch.tensor(row, dtype=torch.long) for row in rows], batch_first=True, padding_value=value
    )
