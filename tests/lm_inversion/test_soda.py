"""SODA against brute force over all inputs, alone and among others, of unknown length, killed and resumed."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from support.tiny_models import POSITIONS, VOCABULARY
from unembed.attacks.lm_inversion.base import CosineLoss, LogitLoss, TextLoss
from unembed.attacks.lm_inversion.search import Rows, State
from unembed.attacks.lm_inversion.soda import SODA
from unembed.attacks.parts.batch_cache import BatchCache, SearchState
from unembed.attacks.parts.predictions import Prediction, Targets
from unembed.core.errors import InputError
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.embedders.language_model import LanguageModelEmbedder
from unembed.embedders.minilm import MiniLM
from unembed.embedders.outputs import Observation


@pytest.fixture(scope="module")
def oracle(language_model: Path, tmp_path_factory: pytest.TempPathFactory) -> CachedEmbedder:
    return CachedEmbedder(LanguageModelEmbedder(str(language_model)), tmp_path_factory.mktemp("cache"))


def seeing(model: Path, m: int, top_k: int | None) -> LanguageModelEmbedder:
    return LanguageModelEmbedder(str(model), m, top_k or None, "words" if top_k == 0 else "logits")


def attack(oracle: CachedEmbedder | None, **settings: Any) -> SODA:
    made = SODA(**{"loss": LogitLoss(), "iterations": 500, "length": 2} | settings)
    made.connect(Path("unused"), oracle)
    return made


def observed(oracle: CachedEmbedder, inputs: list[tuple[int, ...]]) -> Tensor:
    model = oracle.embedder
    return torch.cat([model.observe(torch.tensor([ids])) for ids in inputs])


def run(made: SODA, oracle: CachedEmbedder, inputs: list[tuple[int, ...]], first: int = 0) -> list[Prediction]:
    index = torch.arange(first, first + len(inputs))
    with torch.inference_mode():  # as Lightning's test loop
        return made.invert(Targets(observed(oracle, inputs), index), oracle)


def iterations(prediction: Prediction) -> int:
    return prediction.search.iterations


# Not (0, 0): after the first step many tokens are equally likely, and which is the highest is the doing of last bits.
PAIRS = [(5, 17), (12, 30), (59, 3), (8, 8), (21, 40), (33, 2)]


def test_what_is_verified_is_what_brute_force_finds(oracle: CachedEmbedder) -> None:
    model = oracle.embedder
    everything = torch.tensor(list(itertools.product(range(VOCABULARY), repeat=2)))
    rows = model.observe(everything)
    wanted = observed(oracle, PAIRS)
    predictions = run(attack(oracle), oracle, PAIRS)
    assert sum(p.search is not None and p.search.verified for p in predictions) >= 5
    for prediction, row in zip(predictions, wanted, strict=True):
        close = torch.isclose(rows, row, atol=1e-4, rtol=1e-4).all(dim=1)
        matching = {tuple(ids) for ids in everything[close].tolist()}
        assert (prediction.tokens in matching) == prediction.search.verified
        assert prediction.candidates == (model.decode(prediction.tokens or ()),)


def test_a_target_alone_among_others_and_after_others_left(oracle: CachedEmbedder) -> None:
    together = run(attack(oracle, active_targets=2), oracle, PAIRS)  # the others wait
    assert len({iterations(p) for p in together}) > 2  # they left one by one
    wide = run(attack(oracle, active_targets=32), oracle, PAIRS)
    alone = [run(attack(oracle), oracle, [pair], first=place)[0] for place, pair in enumerate(PAIRS)]
    solved = [place for place, p in enumerate(together) if p.search and p.search.verified]
    for others in (wide, alone):
        assert [others[place].tokens for place in solved] == [together[place].tokens for place in solved]
        for place in solved:  # the last bits of a product depend on the batch: after dozens of steps they can be a step
            steps = iterations(together[place])
            assert iterations(others[place]) == (steps if steps < 20 else pytest.approx(steps, abs=2))


def test_the_first_step_is_signs_of_the_gradient(oracle: CachedEmbedder) -> None:
    """From Z = 0, m / sqrt v is (1 - b1) / sqrt(1 - b2) times the sign of the gradient, taken by finite differences."""
    model = oracle.embedder
    made = attack(oracle, lr=0.01, betas=(0.9, 0.99), temperature=0.5, decay=0.8, reset_moments=1, reset_state=None)
    seen = model.observation.parse(observed(oracle, [(5, 17)]))
    rows = Rows(model, seen, 2, torch.tensor([1]), (0,), (0,), 0, torch.full((1, 2), -1))
    state = made.begin(rows)
    assert not state["z"].any()

    def loss(z: Tensor) -> float:
        logits = model.relaxed((z / 0.5).softmax(-1) @ model.input_vectors, seen.continuation, 1)
        difference = (logits[0, -1] - seen.logits[0, 0]).abs()  # type: ignore[index]
        return float(torch.where(difference < 1, difference.square() / 2, difference - 0.5).double().sum())

    candidates = made.step(state, rows)
    for place, token in [(0, 5), (0, 9), (1, 17), (1, 40), (1, 2)]:
        bump = torch.zeros(1, 2, VOCABULARY)
        bump[0, place, token] = 0.01
        sign = 1.0 if loss(bump) > loss(-bump) else -1.0
        assert float(state["z"][0, place, token]) == pytest.approx(-0.01 * 0.8 * sign * 0.1 / 0.1, rel=1e-3)
    assert candidates.tolist() == state["z"].argmax(-1).tolist()
    assert not state["m"].any()  # reset_moments=1
    assert not state["v"].any()


def test_bias_correction_and_the_likelihood_of_the_last_token(oracle: CachedEmbedder) -> None:
    model = oracle.embedder
    made = attack(oracle, lr=0.01, decay=1.0, bias_correction=True)
    seen = model.observation.parse(observed(oracle, [(5, 17)]))
    rows = Rows(model, seen, 2, torch.tensor([1]), (0,), (0,), 0, torch.full((1, 2), -1))
    state = made.begin(rows)
    made.step(state, rows)
    torch.testing.assert_close(state["z"].abs(), torch.full((1, 2, VOCABULARY), 0.01), rtol=1e-3, atol=0)
    # A token is read as the likeliest of its place, whose choice has no gradient; those before it have one.
    model = oracle.embedder
    seen = model.observation.parse(observed(oracle, [(5, 17)]))
    rows = Rows(model, seen, 2, torch.tensor([1]), (0,), (0,), 0, torch.full((1, 2), -1))
    moments = []
    for fluency in (0.0, 1.0):
        state = attack(oracle).begin(rows)
        attack(oracle, fluency=fluency).step(state, rows)
        moments.append(state["m"])
    torch.testing.assert_close(moments[0][:, 1], moments[1][:, 1], rtol=1e-3, atol=1e-6)
    assert not torch.allclose(moments[0][:, 0], moments[1][:, 0], rtol=1e-2)


def test_resets_sample_from_the_target_alone(oracle: CachedEmbedder) -> None:
    """A target's random numbers come from its example, length, restart and iteration, not from its row."""
    model = oracle.embedder
    made = attack(oracle, reset_state=7, decay=0.9)

    def sampled(examples: tuple[int, ...], restarts: tuple[int, ...], iterations: list[int]) -> Tensor:
        seen = model.observation.parse(observed(oracle, [(5, 17)] * len(examples)))
        best = torch.full((len(examples), 2), -1)
        rows = Rows(model, seen, 2, torch.tensor(iterations), examples, restarts, 0, best)
        state = made.begin(rows)
        made.step(state, rows)
        return state["z"]

    one, two = sampled((4, 9), (0, 0), [7, 14]), sampled((9, 4, 4), (0, 0, 1), [14, 7, 7])
    assert torch.equal(one[0], two[1])
    assert torch.equal(one[1], two[0])
    assert not torch.equal(two[1], two[2])
    assert float(one.std()) == pytest.approx(0.1, rel=0.15)
    assert not torch.equal(sampled((4,), (0,), [14]), sampled((4,), (0,), [7]))


@pytest.mark.parametrize("restarts", [1, 2])
def test_an_unsolved_target_keeps_its_closest_candidate_or_the_last(
    oracle: CachedEmbedder, monkeypatch: pytest.MonkeyPatch, restarts: int
) -> None:
    """Against the losses of all candidates, each run alone; of several restarts, the closest of the last ones."""
    model = oracle.embedder
    step, taken = SODA.step, []

    def recording(self: SODA, state: State, rows: Rows) -> Tensor:
        taken.append(step(self, state, rows))
        return taken[-1]

    monkeypatch.setattr(SODA, "step", recording)
    wanted = observed(oracle, [(5, 17, 40)])

    def losses(candidates: Tensor) -> list[float]:
        apart = torch.nn.functional.huber_loss(
            model.observe(candidates), wanted.expand(len(candidates), -1), reduction="none"
        )
        return apart.mean(dim=1).tolist()

    found = {}
    for keep in ("best", "last"):
        taken.clear()
        made = attack(oracle, keep=keep, iterations=12, reset_state=11, restarts=restarts)  # of two tokens: never found
        (found[keep],) = run(made, oracle, [(5, 17, 40)])
    assert len(taken) == 12
    for keep, candidates in (("best", torch.cat(taken)), ("last", taken[-1])):
        apart = losses(candidates)
        least = min(range(len(apart)), key=apart.__getitem__)
        assert found[keep].tokens == tuple(candidates[least].tolist())
        assert not found[keep].search.verified
        assert found[keep].search.loss == pytest.approx(apart[least], rel=1e-4)
    assert found["best"].tokens != found["last"].tokens  # sampled anew a step before the end


def test_lengths_are_tried_upwards_and_passes_counted(oracle: CachedEmbedder) -> None:
    """Three for the gradient, one for each candidate that is new; all restarts count."""
    (alone,) = run(attack(oracle, length=1, iterations=9), oracle, [(5, 17)])
    (four,) = run(attack(oracle, length=1, iterations=9, restarts=4), oracle, [(5, 17)])
    assert 27 < alone.search.passes <= 36
    assert 4 * 27 < four.search.passes <= 4 * 36
    assert (four.search.loss or 0) <= (alone.search.loss or 0)  # the first restart is the search alone
    inputs = [(7,), (5, 17), (30,)]
    found = run(attack(oracle, length="search", max_length=2, iterations=200), oracle, inputs)
    assert [prediction.tokens for prediction in found] == inputs
    assert iterations(found[1]) > 200  # all of length 1, then some of length 2
    wrong = run(attack(oracle, length=1, iterations=20), oracle, [(5, 17)])
    assert not wrong[0].search.verified
    assert (wrong[0].search.iterations, len(wrong[0].tokens or ())) == (20, 1)
    known = attack(oracle, length="known")
    rows = observed(oracle, [(5, 17), (8,)])
    both = known.invert(Targets(rows, torch.arange(2), lengths=(2, 1)), oracle)
    assert [prediction.tokens for prediction in both] == [(5, 17), (8,)]


@pytest.mark.parametrize(("top_k", "m", "loss"), [(10, 1, LogitLoss()), (0, 4, TextLoss()), (0, 4, TextLoss(log=True))])
def test_less_is_seen(language_model: Path, tmp_path: Path, top_k: int, m: int, loss: Any) -> None:
    """What is verified gives the very observation, be it the input or another."""
    oracle = CachedEmbedder(seeing(language_model, m, top_k), tmp_path)
    wanted = observed(oracle, [(5,), (12,), (40,)])
    found = run(attack(oracle, loss=loss, length=1, iterations=150), oracle, [(5,), (12,), (40,)])
    verified = [p.search is not None and p.search.verified for p in found]
    assert sum(verified) >= 2
    for prediction, row, sure in zip(found, wanted, verified, strict=True):
        again = observed(oracle, [prediction.tokens or ()])[0]
        assert torch.allclose(again, row, atol=1e-4, rtol=1e-4) == sure


def test_losses_by_hand() -> None:
    rows, ids = torch.zeros(2, 3 * 60), torch.zeros(2, 3)
    assert LogitLoss(reduction="sum").values(Observation(60, 3).parse(rows)) == 180
    assert LogitLoss(reduction="sum").values(Observation(60, 3, top_k=30).parse(rows)) == 90
    assert LogitLoss().values(Observation(60, 3).parse(rows)) == 1
    assert TextLoss().values(Observation(60, 3, top_k=0).parse(ids)) == 3
    assert CosineLoss(scale=10.0).values(Observation(60, 1).parse(torch.zeros(2, 60))) == 10
    # |.5| is in the square part of the Huber loss, |3| in its line; the second target has no other's share.
    observation = Observation(vocabulary=4, output_tokens=1)
    seen = observation.parse(torch.zeros(2, 4))
    logits = torch.tensor([[[0.5, 3.0, 0.0, 0.0]], [[0.0, 0.0, 0.0, -1.0]]])
    assert LogitLoss(reduction="sum")(observation, seen, logits).tolist() == [0.125 + 2.5, 0.5]
    assert LogitLoss()(observation, seen, logits).tolist() == [2.625 / 4, 0.125]
    observation = Observation(vocabulary=3, output_tokens=2, top_k=0)
    seen = observation.parse(torch.tensor([[0.0, 1.0]]))
    logits = torch.tensor([[[0.0, math.log(2), 0.0], [0.0, 5.0, 1.0]]])
    assert float(TextLoss()(observation, seen, logits)) == pytest.approx(0.5 - 0.25)
    assert float(TextLoss(log=True)(observation, seen, logits)) == pytest.approx(math.log(2))


def test_to_a_mean_the_epsilon_of_adam_is_as_many_times_larger(oracle: CachedEmbedder) -> None:
    """A first step is lr (1 - b1) g / (sqrt(1 - b2) |g| + eps): gradients V times smaller count as an epsilon V times
    larger does, and nothing else changes."""
    model = oracle.embedder
    seen = model.observation.parse(observed(oracle, [(5, 17)]))
    rows = Rows(model, seen, 2, torch.tensor([1]), (0,), (0,), 0, torch.full((1, 2), -1))
    z = torch.zeros(1, 2, VOCABULARY)
    z[..., 0] = 0.9  # of the softmax over z / .05: the gradients of all other tokens are 1e-8 times as large
    steps = {}
    for reduction in ("sum", "mean"):
        made = attack(oracle, loss=LogitLoss(reduction=reduction), lr=0.01, decay=1.0)
        state = {"z": z.clone(), "m": torch.zeros_like(z), "v": torch.zeros_like(z)}
        made.step(state, rows)
        steps[reduction] = (state["z"] - z)[..., 1:]
        gradient = (state["m"] / 0.1)[..., 1:]
    for reduction, epsilon in (("sum", 1e-8 / VOCABULARY), ("mean", 1e-8)):
        by_hand = -0.01 * 0.1 * gradient / (0.005**0.5 * gradient.abs() + epsilon)
        torch.testing.assert_close(steps[reduction], by_hand, rtol=0.01, atol=1e-6)
    assert float((steps["sum"] / steps["mean"]).mean()) > 2


@pytest.mark.parametrize(
    ("top_k", "m", "loss", "values"),
    [
        (None, 1, LogitLoss(), 1),
        (None, 1, LogitLoss(reduction="sum"), VOCABULARY),
        (5, 2, LogitLoss(reduction="sum"), 10),
        (0, 3, TextLoss(log=True), 3),
    ],
)
def test_fluency_weighs_a_mean_of_the_input_against_a_mean_of_the_output(
    language_model: Path, tmp_path: Path, top_k: int | None, m: int, loss: Any, values: int
) -> None:
    """The mean loss of an observed value plus the weight times the mean NLL of the tokens read, by finite differences.

    The step follows the sum over the observed values, so ``values`` times that.
    """
    oracle = CachedEmbedder(seeing(language_model, m, top_k), tmp_path)
    model = oracle.embedder
    made = attack(oracle, loss=loss, fluency=0.5, temperature=0.5, length=3)
    seen = model.observation.parse(observed(oracle, [(5, 17, 9)]))
    rows = Rows(model, seen, 3, torch.tensor([1]), (0,), (0,), 0, torch.full((1, 3), -1))
    z = torch.randn(1, 3, VOCABULARY, generator=torch.Generator().manual_seed(1))
    tokens = z.argmax(-1)[0]  # the tokens that the state is read as

    def objective(z: Tensor) -> float:
        logits = model.relaxed((z / 0.5).softmax(-1) @ model.input_vectors, seen.continuation, m + 2)
        said = logits[0, :2].double().log_softmax(-1)
        surprise = -(said[0, tokens[1]] + said[1, tokens[2]]) / 2
        return float(loss(model.observation, seen, logits[:, 2:].double())[0] / values + 0.5 * surprise)

    state = {"z": z.clone(), "m": torch.zeros_like(z), "v": torch.zeros_like(z)}
    made.step(state, rows)
    for place in range(3):
        for token in state["m"][0, place].abs().topk(2).indices.tolist():  # the others are lost in fp32
            bump = torch.zeros_like(z)
            bump[0, place, token] = 0.01
            slope = (objective(z + bump) - objective(z - bump)) / 0.02
            assert float(state["m"][0, place, token]) == pytest.approx(0.1 * values * slope, rel=0.02)


class KilledError(Exception):
    pass


@pytest.mark.parametrize("keep", ["best", "last"])
def test_a_killed_search_resumes(
    oracle: CachedEmbedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: str
) -> None:
    """Killed after its second file, it takes the very steps of an unbroken one, and no more than the rest of them."""
    settings = {
        "keep": keep,
        "active_targets": 1,
        "restarts": 2,
        "length": "search",
        "max_length": 2,
        "iterations": 12,
    }
    whole = run(attack(oracle, **settings), oracle, PAIRS[:2])
    step, taken = SODA.step, []

    def counting(self: SODA, state: State, rows: Rows) -> Tensor:
        taken.append(len(rows))
        return step(self, state, rows)

    monkeypatch.setattr(SODA, "step", counting)
    written = []
    write = SearchState.write

    def until_second(self: SearchState, value: Any) -> None:
        write(self, value)
        written.append(len(taken))
        if len(written) == 2:
            raise KilledError

    monkeypatch.setattr("unembed.attacks.lm_inversion.search.SNAPSHOT_SECONDS", 0.0)
    monkeypatch.setattr(SearchState, "write", until_second)
    killed = attack(oracle, **settings)
    killed.batch_cache = BatchCache(tmp_path, "settings")
    with pytest.raises(KilledError):
        run(killed, oracle, PAIRS[:2])
    assert len(list(tmp_path.glob("search-*.pt"))) == 1
    before = len(taken)
    monkeypatch.setattr(SearchState, "write", write)
    again = attack(oracle, **settings)
    again.batch_cache = BatchCache(tmp_path, "settings")
    assert run(again, oracle, PAIRS[:2]) == whole
    assert before == 2
    assert list(tmp_path.iterdir()) == []
    again.batch_cache = BatchCache(tmp_path, "settings")
    resumed, taken[:] = len(taken) - before, []
    assert run(again, oracle, PAIRS[:2]) == whole
    assert len(taken) == before + resumed


def test_what_is_wrong_is_said(oracle: CachedEmbedder, language_model: Path, tmp_path: Path) -> None:
    rows = observed(oracle, [(5, 17)])

    def inverted(made: SODA, rows: Tensor = rows, lengths: tuple[int, ...] | None = None, by: Any = oracle) -> Any:
        return made.invert(Targets(rows, torch.arange(len(rows)), lengths=lengths), by)

    with pytest.raises(InputError, match="target 0 holds NaN"):
        inverted(attack(oracle), rows * torch.nan)
    with pytest.raises(InputError, match="has width 60"):
        inverted(attack(oracle), rows[:, :59])
    with pytest.raises(InputError, match="17 tokens"):
        inverted(attack(oracle, length="known"), lengths=(POSITIONS + 1,))
    with pytest.raises(InputError, match=r"attack\.length=17"):
        inverted(attack(oracle, length=POSITIONS + 1))
    with pytest.raises(InputError, match="the lengths of these inputs are unknown"):
        inverted(attack(oracle, length="known"))
    with pytest.raises(InputError, match="MiniLM is no language model"):
        inverted(attack(oracle), by=CachedEmbedder(MiniLM(), tmp_path))
    words = CachedEmbedder(seeing(language_model, 1, 0), tmp_path)
    with pytest.raises(InputError, match="attack/loss=text"):
        inverted(attack(words), torch.zeros(1, 1), by=words)
