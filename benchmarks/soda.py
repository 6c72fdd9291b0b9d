"""What one iteration of SODA costs a target: all targets in one tensor, against a loop with an optimiser object each.

    python benchmarks/soda.py --targets 32 --iterations 40

Both run the same small GPT-2 of random weights on targets that no input gives, so that none leaves, and take the same
steps (soda_skapars2025, algorithm 1). The loop runs every candidate, as algorithm 1 is printed; it is measured as well
with candidates run only where they changed, which is what ours does. The two take turns, and medians of paired rounds
are compared. Ends with one JSON line; ``ratio`` is the printed algorithm's time over ours.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from measuring import Clock, command_line, ratios, spread
from torch import Tensor

from unembed.attacks.lm_inversion.base import LogitLoss
from unembed.attacks.lm_inversion.search import Search
from unembed.attacks.lm_inversion.soda import SODA
from unembed.attacks.parts.batch_cache import SearchState
from unembed.embedders.language_model import LanguageModelEmbedder


class DecayingAdam(torch.optim.Optimizer):
    """Adam without bias correction, and weights that shrink after each step: SODA's, one object a target."""

    def __init__(self, params: Iterable[Tensor], soda: SODA) -> None:
        super().__init__(params, {})
        self.soda = soda

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        first, second = self.soda.betas
        for weight in self.param_groups[0]["params"]:
            state = self.state[weight]
            if not state:
                state["m"], state["v"] = torch.zeros_like(weight), torch.zeros_like(weight)
            state["m"].lerp_(weight.grad, 1 - first)
            state["v"].mul_(second).addcmul_(weight.grad, weight.grad, value=1 - second)
            weight.addcdiv_(state["m"], state["v"].sqrt().add_(1e-8), value=-self.soda.lr)
            weight.mul_(self.soda.decay)


def small_model(folder: Path, vocabulary: int, width: int, layers: int) -> LanguageModelEmbedder:
    """A GPT-2 of random weights; its tokenizer knows as many words."""
    from tokenizers import Tokenizer, models
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    words = {f"w{number}": number for number in range(vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="w0").save_pretrained(folder)
    shape = {"n_embd": width, "n_layer": layers, "n_head": 4, "n_positions": 32, "initializer_range": 0.1}
    special = {"bos_token_id": 0, "eos_token_id": 0}
    GPT2LMHeadModel(GPT2Config(vocab_size=vocabulary, **shape, **special)).save_pretrained(folder)
    return LanguageModelEmbedder(str(folder), device="cpu")


def ours(soda: SODA, model: LanguageModelEmbedder, rows: Tensor, length: int) -> None:
    """All targets together, as the attack searches."""
    places = list(range(len(rows)))
    Search(soda, model, rows, places, SearchState(None, "")).run([(length, places)])


def loop(soda: SODA, model: LanguageModelEmbedder, rows: Tensor, length: int, run_all: bool) -> None:
    """One target after the other in every iteration, each with its own state and optimiser."""
    seen = model.observation.parse(rows)
    one = [seen[torch.tensor([place])] for place in range(len(rows))]
    states = [torch.zeros(1, length, len(model.input_vectors), requires_grad=True) for _ in one]
    optimizers = [DecayingAdam([state], soda) for state in states]
    before = [torch.full((1, length), -1) for _ in one]
    for iteration in range(1, soda.settings.iterations + 1):
        for place, (target, state, optimizer) in enumerate(zip(one, states, optimizers, strict=True)):
            optimizer.zero_grad()
            vectors = (state / soda.temperature).softmax(dim=-1) @ model.input_vectors
            logits = model.relaxed(vectors, target.continuation, 1)
            soda.objective(model.observation, target, logits).sum().backward()
            optimizer.step()
            candidate = state.detach().argmax(dim=-1)
            if run_all or not torch.equal(candidate, before[place]):
                assert not model.observation.agrees(target, model.logits(candidate, target.continuation)).any()
            before[place] = candidate
            if soda.reset_moments is not None and iteration % soda.reset_moments == 0:
                optimizer.state.clear()


def main(argv: Sequence[str] | None = None) -> None:
    parser = command_line(__doc__, own_time=True)
    parser.add_argument("--targets", type=int, default=32)
    parser.add_argument("--length", type=int, default=5, help="tokens of an input")
    parser.add_argument("--iterations", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--vocabulary", type=int, default=1024)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    soda = SODA(LogitLoss(), iterations=options.iterations, active_targets=options.targets)
    with tempfile.TemporaryDirectory() as folder:
        model = small_model(Path(folder), options.vocabulary, options.width, options.layers)
        rows = model.observe(torch.randint(options.vocabulary, (options.targets, options.length)))
    rows += torch.randn_like(rows)  # no input gives these, so every target stays to the end
    clock = Clock("cpu", options.own_time)
    work: dict[str, Callable[[], None]] = {
        "ours": lambda: ours(soda, model, rows, options.length),
        "loop": lambda: loop(soda, model, rows, options.length, run_all=True),
        "loop, changed candidates": lambda: loop(soda, model, rows, options.length, run_all=False),
    }
    milliseconds: dict[str, list[float]] = {name: [] for name in work}
    for number in range(options.rounds + 1):
        for name, run in work.items():
            started = clock()
            run()
            if number:  # the first round warms up
                each = (clock() - started) * 1000 / (options.targets * options.iterations)
                milliseconds[name].append(each)
    for name, found in milliseconds.items():
        print(f"{name:<26}{statistics.median(found):8.3f} ms a target and iteration")
    against = {name: ratios(found, milliseconds["ours"]) for name, found in milliseconds.items() if name != "ours"}
    for name, found in against.items():
        print(f"{name:<26}{spread(found)} times ours")
    result = {
        "ratio": round(statistics.median(against["loop"]), 3),
        "ratio_changed_candidates": round(statistics.median(against["loop, changed candidates"]), 3),
        "milliseconds": {name: round(statistics.median(found), 4) for name, found in milliseconds.items()},
    }
    print(json.dumps({**result, "targets": options.targets, "length": options.length, "threads": options.threads}))


if __name__ == "__main__":
    main()
