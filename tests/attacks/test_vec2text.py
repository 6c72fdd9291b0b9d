"""Vec2Text through its scripts, on tiny models and real vectors: inverter, corrector, the whole, what goes wrong."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from support import tiny_settings
from support.files import metrics_of, predictions_of
from support.places import Place
from support.published_export import export
from support.tiny_models import pretrained_model, t5_model
from unembed import launch
from unembed.attacks.parts.backbones import Pretrained, token_ids, train_tokenizer
from unembed.attacks.parts.batch_cache import BatchCache
from unembed.attacks.parts.predictions import Targets
from unembed.attacks.parts.prefix import Prefix
from unembed.attacks.vec2text.attack import Vec2Text
from unembed.attacks.vec2text.corrector import Corrector, Recipe, matched_noise
from unembed.attacks.vec2text.network import CorrectorNetwork, Layout, NetworkRewriter, padded
from unembed.attacks.vec2text.search import CorrectionSearch
from unembed.commands import invert
from unembed.core.errors import InputError
from unembed.datamodules.hypotheses import HypothesisStore
from unembed.embedders.cache.cached import CachedEmbedder
from unembed.embedders.minilm import MiniLM
from unembed.runs import layout
from unembed.runs.stored_attack import attack_of

NAMES, CITIES = ["ada", "bob", "cleo", "dan", "eve", "fay"], ["paris", "rome", "oslo", "lima", "cairo"]
TEXTS = [f"{name} lives in {city} ." for name in NAMES for city in CITIES]
SHORT = [
    *tiny_settings.FILES, *tiny_settings.SAVE_OFTEN, "datamodule.batch_size=6",
]  # fmt: skip
INVERTER = [*tiny_settings.INVERTER, "attack.decoding.max_new_tokens=16", "attack.decoding.beams=2"]
CORRECTOR = [
    *tiny_settings.CORRECTOR, "attack.max_new_tokens=16", "attack.search.steps=2",
    "attack.search.beams=2", "attack.hypotheses.noise=[0.0,0.3]", "attack.hypotheses.sampled=1",
    "attack.hypotheses.later_rounds=1",
]  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("vec2text"), TEXTS, SHORT)


@pytest.fixture(scope="module")
def inverter(place: Place) -> Path:
    return place.train("inverter", *INVERTER, steps=30)


@pytest.fixture(scope="module")
def corrector(place: Place, inverter: Path) -> Path:
    return place.train("corrector", *CORRECTOR, f"attack.inverter_run={inverter}", steps=10)


def vectors(texts: Sequence[str], place: Place) -> Tensor:
    return CachedEmbedder(MiniLM("cpu"), place.base / "cache").embed(texts)


# -- the network ------------------------------------------------------------------------------------------------------


def network(**layout: Any) -> CorrectorNetwork:
    return CorrectorNetwork(t5_model(), 6, Layout(vectors=3, **layout)).eval()


def test_the_encoder_reads_target_hypothesis_and_difference_between_end_tokens() -> None:
    made = network(normalize=False, layer_norm=False)
    targets, own, ids = torch.randn(2, 6), torch.randn(2, 6), torch.tensor([[0, 7, 8, 1], [0, 9, 1, 0]])
    inputs, mask = made.encoder_input(made.project(targets), targets, own, ids)
    table = made.model.get_input_embeddings().weight
    assert inputs.shape == (2, 3 * 3 + 4 + 4, 16)
    for place in (0, 4, 8, 12):
        assert torch.equal(inputs[:, place], table[1].expand(2, 16))
    parts = ((1, made.target, targets), (5, made.hypothesis, own), (9, made.difference, targets - own))
    for begin, transform, vector in parts:
        assert torch.allclose(inputs[:, begin : begin + 3].flatten(1), transform(vector))
    assert torch.equal(inputs[:, 13:], table[ids])
    assert mask.tolist() == [
        [1] * 13 + [0, 1, 1, 1],
        [1] * 13 + [0, 1, 1, 0],
    ]  # as published: no start


def test_normalised_vectors_lose_their_length_and_their_difference_keeps_its_own() -> None:
    made, ids = network(layer_norm=False), torch.tensor([[0, 7, 1]])
    targets, own = torch.randn(1, 6), torch.randn(1, 6)
    inputs = made.encoder_input(made.project(targets), targets, own, ids)[0]
    longer = made.encoder_input(made.project(5 * targets), 5 * targets, 3 * own, ids)[0]
    assert torch.allclose(inputs, longer, atol=1e-5)
    unit = torch.nn.functional.normalize
    wanted = made.difference((unit(targets, dim=-1) - unit(own, dim=-1)) * 6**0.5)
    assert torch.allclose(inputs[:, 9:12].flatten(1), wanted, atol=1e-5)


def test_padding_and_without_feedback_the_vector_of_a_hypothesis_change_nothing() -> None:
    made, targets, own = network(), torch.randn(1, 6), torch.randn(1, 6)
    labels = torch.tensor([[5, 6, 1]])
    short, long = torch.tensor([[0, 7, 8, 1]]), torch.tensor([[0, 7, 8, 1, 0, 0, 0]])
    assert torch.allclose(made.loss(targets, own, short, labels), made.loss(targets, own, long, labels), atol=1e-6)
    made, targets, ids = network(feedback=False), torch.randn(2, 6), torch.tensor([[0, 7, 1]] * 2)
    one, other = (made.encoder_input(made.project(targets), targets, torch.randn(2, 6), ids)[0] for _ in range(2))
    assert torch.equal(one, other)
    assert padded([[1], [2, 3]], 9).tolist() == [[1, 9], [2, 3]]


def projection(**settings: Any) -> Prefix:
    made = Prefix(**{"vectors": 3, "kind": "mlp", "normalize": True, **settings})
    made.build(6, 16)
    return made


def test_a_corrector_begins_with_the_projection_of_its_inverter(recwarn: pytest.WarningsRecorder) -> None:
    made, prefix = network(), projection()
    made.read_vectors_as(prefix)
    assert torch.equal(made.target(torch.ones(6)), prefix.layers(torch.ones(6)))
    assert not [one for one in recwarn if "start_from_inverter" in str(one.message)]
    for given in ({}, {"corrector_run": "a", "pretrained": "b"}):
        with pytest.raises(ValueError, match="give either corrector_run=<run> or pretrained"):
            Vec2Text(search=CorrectionSearch(), **given)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"normalize": False}, r"attack\.layout\.normalize=True and the inverter's attack\.prefix\.normalize=False"),
        ({"vectors": 4}, r"attack\.layout\.vectors=3 and the inverter's attack\.prefix\.vectors=4"),
        ({"kind": "linear"}, r"the inverter's attack\.prefix\.kind=linear"),
    ],
)
def test_a_projection_of_another_layout_is_not_passed_over_in_silence(settings: dict[str, Any], said: str) -> None:
    made = network()
    before = made.target[0].weight.clone()
    with pytest.warns(UserWarning, match=rf"attack\.start_from_inverter: .* random one: {said}"):
        made.read_vectors_as(projection(**settings))
    assert torch.equal(made.target[0].weight, before)


@pytest.mark.parametrize("text", ["ada", "ada lives in", "ada lives in oslo", "ada lives in oslo and in rome"])
def test_a_text_is_read_as_it_would_have_been_written(text: str) -> None:
    """Texts of fewer tokens than can be written, of as many, and of more: the end belongs to the first alone."""
    tokenizer = train_tokenizer(["ada lives in oslo and in rome"] * 3, 300)
    room = len(token_ids(tokenizer, ["ada lives in oslo"])[0])
    rewriter = NetworkRewriter(network(), tokenizer, max_new_tokens=room)
    written = token_ids(tokenizer, [text])[0][:room]
    ids = (0, *written, 1) if len(written) < room else (0, *written)
    assert rewriter.read([text])[0].ids == ids == rewriter.proposal(written).ids


# -- hypotheses -------------------------------------------------------------------------------------------------------


def test_a_killed_job_resumes_with_the_parts_that_are_missing(tmp_path: Path) -> None:
    written: list[int] = []

    def write(part: range) -> list[str]:
        if len(written) == 2:
            raise ConnectionError("the machine is gone")
        written.append(part.start)
        return [f"text {number}\u2028of many" for number in part]

    store = HypothesisStore(tmp_path / "key", count=10, part=3)
    with pytest.raises(ConnectionError):
        store.fill(write)
    with pytest.raises(InputError, match=r"000000006\.jsonl.*cannot be read"):
        store.read()
    again: list[int] = []
    store.fill(lambda part: again.append(part.start) or [f"text {n}\u2028of many" for n in part])  # type: ignore[func-returns-value]
    assert (written, again) == ([0, 3], [6, 9])
    assert store.read() == [f"text {number}\u2028of many" for number in range(10)]
    part = tmp_path / "key" / "000000009.jsonl"
    for content in ("[]", "3", '{"text": 3}', '{"text": ["a"]}', "{}", "[" * 100_000):
        part.write_text(f"{content}\n")
        with pytest.raises(InputError, match=r"000000009\.jsonl: (hypotheses cannot be read|holds 0 texts)"):
            store.read()


def test_ranks_share_the_parts(tmp_path: Path) -> None:
    parts: dict[int, list[int]] = {0: [], 1: []}
    for rank in (1, 0):  # the parts that a rank sees missing are dealt out before any is written

        def write(part: range, rank: int = rank) -> list[str]:
            parts[rank].append(part.start)
            return ["a"] * len(part)

        store = HypothesisStore(tmp_path / str(rank), count=10, part=3)
        store.fill(write, rank=rank, world_size=2)
    assert parts == {0: [0, 6], 1: [3, 9]}


def test_noise_of_hypotheses() -> None:
    tried: list[float] = []

    def closeness(noise: float) -> float:
        tried.append(noise)
        return 1 - noise**2

    assert matched_noise(closeness, 0.64) == pytest.approx(0.6, abs=0.02)
    assert len(tried) < 12
    assert matched_noise(closeness, 1.0) == 0.0
    own = torch.randn(5, 64)
    recipe = Recipe(noise=0.5, seed=3)
    together = recipe.noised(own, [4, 7, 9, 2, 11])
    assert torch.equal(recipe.noised(own[2:4], [9, 2]), together[2:4])
    assert not torch.equal(Recipe(noise=0.5, seed=4).noised(own, [4, 7, 9, 2, 11]), together)
    share = ((together - own).norm(dim=-1) / own.norm(dim=-1)).mean()
    assert float(share) == pytest.approx(0.5, abs=0.1)


@pytest.mark.slow
def test_noise_matched_in_a_run(place: Place, inverter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unembed.attacks.vec2text.corrector.MATCHED", 3)
    run = place.train(
        "matched", *CORRECTOR, "attack.hypotheses.noise=[matched]", "attack.hypotheses.sampled=0",
        "attack.hypotheses.later_rounds=0", f"attack.inverter_run={inverter}", steps=1,
    )  # fmt: skip
    described = json.loads((run / "artifacts/hypotheses.json").read_text())
    assert any(name.startswith("train, greedy") for name in described)


# -- runs -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_corrector_run_is_a_whole_attack_without_its_inverter_run(
    place: Place, inverter: Path, corrector: Path, tmp_path: Path
) -> None:
    alone = place.train(
        "kept", *CORRECTOR, f"attack.inverter_run={shutil.copytree(inverter, tmp_path / 'gone')}", steps=1
    )
    shutil.rmtree(tmp_path / "gone")
    again = place.evaluate(alone, "kept_again")
    assert predictions_of(again) == predictions_of(alone)
    assert metrics_of(again) == metrics_of(alone)
    weights = torch.load(alone / layout.CHECKPOINT, weights_only=True)["state_dict"]
    assert all(name.startswith("network.") for name in weights)
    kept = torch.load(alone / "artifacts/inverter" / layout.CHECKPOINT, weights_only=True)
    assert set(kept) == {"state_dict"}


T5_BASE = ["attack.layout.vectors=2", "attack.max_new_tokens=16", "attack.search.steps=1", "attack.search.beams=1"]


@pytest.fixture(scope="module")
def pretrained(place: Place) -> tuple[Path, Path]:
    """The folder of a pretrained T5, and the run of an inverter on it."""
    folder = Path(pretrained_model(place.base / "t5", "t5", TEXTS))
    shape = ["attack.prefix.vectors=2", "attack.decoding.max_new_tokens=16", f"attack.backbone.name={folder}"]
    return folder, place.train("on_t5", "attack=vec2text_inverter_t5_base", *shape, steps=2)


@pytest.mark.slow
def test_the_published_corrector_begins_with_the_pretrained_weights_and_muon_on_them_is_warned_of(
    place: Place, pretrained: tuple[Path, Path]
) -> None:
    folder, inverter = pretrained
    options = ["attack=vec2text_corrector_t5_base", f"attack.inverter_run={inverter}", *T5_BASE]
    run = place.train("published", *options, "attack.optimizer.lr=1e-12", steps=1)
    trained = torch.load(run / layout.CHECKPOINT, weights_only=True)["state_dict"]
    name = "decoder.block.0.layer.0.SelfAttention.q.weight"
    assert torch.allclose(trained[f"network.model.{name}"], load_file(folder / "model.safetensors")[name], atol=1e-6)
    with pytest.MonkeyPatch.context() as offline:
        offline.setattr(Pretrained, "pretrained", lambda self: pytest.fail("the hub was asked"))
        again = place.evaluate(run, "published_again")
    assert predictions_of(again) == predictions_of(run)
    options = ["attack=vec2text_corrector", f"attack.inverter_run={pretrained[1]}", *T5_BASE]
    with pytest.warns(UserWarning, match=r"attack\.optimizer: .* take attack=vec2text_corrector_t5_base"):
        place.train("muon", *options, "attack.hypotheses.noise=[0.0]", steps=1)


@pytest.mark.slow
def test_training_and_every_round_read_a_text_with_the_same_ids(
    place: Place, inverter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most texts have more than the four tokens that this corrector writes."""
    encode, seen = CorrectorNetwork.encoder_input, {True: set[tuple[int, ...]](), False: set[tuple[int, ...]]()}

    def noted(self: CorrectorNetwork, projected: Tensor, targets: Tensor, vectors: Tensor, ids: Tensor) -> Any:
        pad, end = self.model.config.pad_token_id, self.model.config.eos_token_id
        for row in ids[:, 1:].tolist():
            read = tuple(one for one in row if one != pad)
            assert len(read) == 4 if end not in read else len(read) <= 4 and read.index(end) == len(read) - 1
            seen[self.training].add(read)
        return encode(self, projected, targets, vectors, ids)

    monkeypatch.setattr(CorrectorNetwork, "encoder_input", noted)
    options = [*CORRECTOR, "attack.max_new_tokens=4", "attack.search.steps=3"]
    place.train("cut", *options, f"attack.inverter_run={inverter}", steps=12)
    end = attack_of(inverter, 384).tokenizer.eos_token_id
    assert all(any(end not in read for read in rows) for rows in seen.values())


@pytest.mark.slow
def test_zero_steps_are_the_inverter_more_never_lie_farther_and_batches_do_not_matter(
    place: Place, inverter: Path, corrector: Path
) -> None:
    none = place.evaluate(corrector, "none", "attack.search.steps=0")
    assert predictions_of(none) == predictions_of(inverter)
    some = place.evaluate(corrector, "some", "attack.search.steps=4", "attack.search.beams=3")
    assert metrics_of(some)["cosine"] >= metrics_of(none)["cosine"] - 1e-6
    assert metrics_of(some)["queries"] > metrics_of(none)["queries"] > 0
    alone = place.evaluate(corrector, "alone", "datamodule.eval_batch_size=1")
    assert predictions_of(alone) == predictions_of(corrector)  # six in a batch
    assert metrics_of(alone)["queries"] == metrics_of(corrector)["queries"]


@pytest.mark.slow
def test_the_whole_from_two_runs(place: Place, inverter: Path, corrector: Path) -> None:
    options = ["attack=vec2text", "attack.search.steps=2", "attack.search.beams=2", f"attack.corrector_run={corrector}"]
    whole = place.train("whole", *options)
    assert predictions_of(whole) == predictions_of(corrector)
    two = place.train("two", *options, f"attack.inverter_run={inverter}")
    assert predictions_of(two) == predictions_of(corrector)
    np.save(place.base / "mine.npy", vectors(TEXTS[:3], place).numpy())
    invert.invert(*launch.on_run("invert", [f"run={whole}", f"vectors={place.base / 'mine.npy'}"]))
    assert len((place.base / "mine.npy.texts.jsonl").read_text().splitlines()) == 3


def released(folder: Path, corrector: Path, length: int = 17) -> Path:
    """The networks of a run as a released pair, which writes ``length - 1`` tokens."""
    attack = attack_of(corrector, 384)
    prefix, model = attack.inverter.prefix, attack.inverter.decoder.model
    export(folder, prefix, model, attack.network, attack.tokenizer, length=length)
    return folder


@pytest.mark.slow
def test_a_checkpoint_of_the_published_layout_is_a_whole_attack(
    place: Place, corrector: Path, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    same = [
        "attack.initial=constant", "attack.constant=bob lives in oslo .", "attack.search.steps=2",
        "attack.search.beams=2",
    ]  # fmt: skip
    ours = place.evaluate(corrector, "from_constant", *same)
    pair = released(tmp_path / "pair", corrector)
    run = place.train("released", "attack=vec2text", f"attack.pretrained={pair}", *same)
    assert predictions_of(run) == predictions_of(ours)
    assert predictions_of(place.evaluate(run, "released_again")) == predictions_of(run)
    assert not [one for one in recwarn if "tokens at most" in str(one.message)]
    # Texts that it cannot write are counted: 32 tokens of MiniLM are more than the 31 of T5 of the released correctors.
    short = released(tmp_path / "short", corrector, length=3)
    place.train("short", "attack=vec2text", f"attack.pretrained={short}", "attack.search.steps=0")
    (said,) = [str(one.message) for one in recwarn if "tokens at most" in str(one.message)]
    counted = "writes 2 tokens at most, and 6 of 6 test texts have more; .*max_tokens=2"
    assert re.search(rf"attack\.pretrained={short}: {counted}", said)


@pytest.mark.slow
@pytest.mark.parametrize("pretrained", [False, True])
def test_a_killed_test_resumes_only_with_the_weights_that_it_began_with(
    place: Place, inverter: Path, corrector: Path, tmp_path: Path, pretrained: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole attack has no weights of its own: those of the runs inside it count, and of a released checkpoint."""
    options = ["attack=vec2text", "attack.search.steps=1", "attack.search.beams=1"]
    parts = [f"attack.corrector_run={corrector}", f"attack.inverter_run={inverter}"]
    if pretrained:
        parts = [f"attack.pretrained={released(tmp_path / 'pair', corrector)}"]
    run = place.train(f"key_{pretrained}", *options, *parts)
    worked: list[int] = []
    search = CorrectionSearch.__call__

    def counted(self: CorrectionSearch, rewriter: Any, targets: Tensor, *others: Any, **named: Any) -> Any:
        worked.append(len(targets))
        return search(self, rewriter, targets, *others, **named)

    def evaluate() -> int:
        place.evaluate(run, f"key_{pretrained}_out")
        return sum(worked)

    monkeypatch.setattr(CorrectionSearch, "__call__", counted)
    monkeypatch.setattr(BatchCache, "clear", lambda self: None)  # as if it were killed at its very end
    assert [evaluate(), evaluate()] == [6, 6]  # all batches were taken over
    if pretrained:
        (path,) = (tmp_path / "pair" / "corrector").glob("*.safetensors")
        weights = load_file(path)
        weights["layernorm.weight"] *= 1.01
        save_file(weights, path, {"format": "pt"})
        assert evaluate() == 12
        return
    for number, part in enumerate(("inverter", "corrector"), start=2):
        path = run / layout.ARTIFACTS / part / layout.CHECKPOINT
        content = torch.load(path, weights_only=True)
        name = min(content["state_dict"])
        content["state_dict"][name] = content["state_dict"][name] * 1.01
        torch.save(content, path)
        assert evaluate() == 6 * number


@pytest.mark.slow
@pytest.mark.parametrize("initial", ["random", "constant"])
def test_other_first_hypotheses(place: Place, corrector: Path, initial: str) -> None:
    found = place.evaluate(
        corrector, initial, f"attack.initial={initial}", "attack.constant=bob lives in oslo .", "attack.search.steps=0"
    )
    if initial == "constant":
        assert set(predictions_of(found)) == {"bob lives in oslo ."}
    else:
        (text,) = set(predictions_of(found))  # the same for all, in any batches
        options = ["attack.initial=random", "attack.search.steps=0", "datamodule.eval_batch_size=1"]
        assert set(predictions_of(place.evaluate(corrector, "random_1", *options))) == {text}


@pytest.mark.slow
def test_hypotheses_are_written_once_and_described(
    place: Place, inverter: Path, corrector: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    described = json.loads((corrector / "artifacts/hypotheses.json").read_text())
    assert {"train, greedy", "train, greedy, noise 0.3", "train, sampled at 1", "valid, greedy"} <= set(described)
    sizes = {name: sum(entry["cosines"]) for name, entry in described.items()}
    assert sizes["train, greedy"] == sum(1 for n in range(len(TEXTS)) if n % 5 and n % 7)

    def never(*arguments: Any) -> list[str]:
        raise AssertionError("hypotheses that are there were written again")

    monkeypatch.setattr("unembed.attacks.vec2text.corrector.write_hypotheses", never)
    place.train(
        "second", *CORRECTOR, f"attack.inverter_run={inverter}", "attack.hypotheses.later_rounds=0", steps=1
    )  # fmt: skip
    monkeypatch.undo()
    other = place.train("other_inverter", *INVERTER, "seed=1", steps=1)
    monkeypatch.setattr("unembed.attacks.vec2text.corrector.write_hypotheses", never)
    with pytest.raises(AssertionError, match="again"):  # another inverter's are others
        place.train("third", *CORRECTOR, f"attack.inverter_run={other}", steps=1)


@pytest.mark.slow
def test_killed_training_resumes_and_ends_with_the_same_weights(
    place: Place, inverter: Path, corrector: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Corrector.training_step

    def killed(self: Corrector, batch: Any, index: int) -> Tensor:
        if self.global_step == 7:
            raise ConnectionError("the machine is gone")
        return step(self, batch, index)

    options = [*CORRECTOR, f"attack.inverter_run={inverter}"]
    monkeypatch.setattr(Corrector, "training_step", killed)
    with pytest.raises(ConnectionError):
        place.train("resumed", *options)
    monkeypatch.undo()
    run = place.train("resumed", *options, "ckpt_path=last")
    first, second = (torch.load(one / layout.CHECKPOINT, weights_only=True) for one in (corrector, run))
    assert first["rewritten"] == second["rewritten"] != []
    assert all(torch.equal(first["state_dict"][name], second["state_dict"][name]) for name in first["state_dict"])
    assert predictions_of(run) == predictions_of(corrector)


@pytest.mark.slow
def test_a_corrector_is_trained_further_on_other_hypotheses(place: Place, inverter: Path, corrector: Path) -> None:
    options = [*CORRECTOR, f"attack.inverter_run={inverter}", "attack.hypotheses.noise=[0.7]"]
    run = place.train("further", *options, f"init_from={corrector}", "attack.optimizer.muon_lr=1e-9",
                      "attack.optimizer.adamw_lr=1e-9", steps=1)  # fmt: skip
    before, after = (torch.load(one / layout.CHECKPOINT, weights_only=True)["state_dict"] for one in (corrector, run))
    assert all(torch.allclose(before[name], after[name], atol=1e-4) for name in before)


@pytest.mark.slow
def test_a_corrector_learns_to_correct(place: Place, inverter: Path) -> None:
    """Trained long enough to know its few texts by heart, it finds each from any other's words."""
    run = place.train("long", *CORRECTOR, f"attack.inverter_run={inverter}", steps=150)
    attack = attack_of(run, 384)
    known = [text for n, text in enumerate(TEXTS) if n % 5 and n % 7]
    attack.initial = "constant"
    attack.constant = known[0]
    targets = Targets(vectors(known, place), torch.arange(len(known)))
    oracle = CachedEmbedder(MiniLM("cpu"), place.base / "cache")
    rounds = attack.correct(targets, oracle, steps=3, beams=2)
    right = [sum(row[step].text == text for row, text in zip(rounds, known, strict=True)) for step in (0, 3)]
    assert right[0] == 1
    assert right[1] >= 0.8 * len(known)


# -- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_correction_refines_the_texts_of_any_attack(place: Place, inverter: Path, corrector: Path) -> None:
    search = ["search.steps=3", "search.beams=2"]
    itself = place.evaluate(corrector, "itself", *(f"attack.{line}" for line in search))
    copied = place.base / "copied"
    shutil.copytree(corrector, copied)
    refine = ["attack/refine=[correction]", *(f"attack.refine.correction.{line}" for line in search)]
    refine.append(f"attack.refine.correction.corrector_run={copied}")
    refined = place.evaluate(inverter, "refined", *refine)
    assert predictions_of(refined) == predictions_of(itself)
    assert metrics_of(refined)["queries"] == metrics_of(itself)["queries"] > 0

    nearest = place.train("nearest", "attack=nearest_neighbor", *refine)
    shutil.rmtree(copied)  # the run keeps its own
    assert predictions_of(place.evaluate(nearest, "again")) == predictions_of(nearest)
    without = place.evaluate(nearest, "without", "attack/refine=[]")
    assert metrics_of(without)["cosine"] <= metrics_of(nearest)["cosine"]
    assert metrics_of(without)["queries"] == 0
    with pytest.raises(InputError, match=r"corrector_run=.*vec2text_corrector"):
        place.evaluate(nearest, "wrong", f"attack.refine.correction.corrector_run={inverter}")


def test_runs_that_do_not_fit(place: Place, inverter: Path, corrector: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"attack\.inverter_run=.*nowhere: not a run directory"):
        place.train("bad1", *CORRECTOR, f"attack.inverter_run={tmp_path / 'nowhere'}")
    other = shutil.copytree(inverter, tmp_path / "other")
    record = json.loads((other / layout.RECORD).read_text())
    record["embedder"]["fingerprint"] = "0" * 64
    (other / layout.RECORD).write_text(json.dumps(record))
    with pytest.raises(InputError, match="its vectors come from another embedder"):
        place.train("bad2", *CORRECTOR, f"attack.inverter_run={other}")
    empty = f"cache_dir={tmp_path / 'nothing'}"  # all of this is found before anything is embedded
    with pytest.raises(InputError, match=r"attack=vec2text_corrector .* GEIAEncoderDecoder"):
        place.train("bad3", "attack=vec2text", f"attack.corrector_run={inverter}", empty)
    with pytest.raises(InputError, match=r"attack\.corrector_run=.*correctr: not a run .*, did you mean corrector\?"):
        place.train("bad5", "attack=vec2text", f"attack.corrector_run={place.base / 'correctr'}", empty)
    with pytest.raises(InputError, match=r"attack\.pretrained: the checkpoint jxm/nothing is not on"):
        place.train("bad6", "attack=vec2text", "attack.pretrained=jxm/nothing", empty)
    with pytest.raises(InputError, match=r"encoder-decoder inverter .*and that run's is Corrector"):
        place.train("bad7", *CORRECTOR, f"attack.inverter_run={corrector}", empty)
    causal = place.train(
        "causal", "attack=geia", "attack.backbone.width=32", "attack.backbone.heads=2", "attack.backbone.layers=1",
        "attack.backbone.vocabulary=300", "attack.decoding.max_new_tokens=16", steps=1,
    )  # fmt: skip
    with pytest.raises(InputError, match=r"encoder-decoder inverter .* GEIA"):
        place.train("bad4", *CORRECTOR, f"attack.inverter_run={causal}", empty)
    assert not list((tmp_path / "nothing").glob("*/*.shard"))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("attack.search.steps=-1", "attack.search.steps"),
        ("attack.search.beams=0", "attack.search.beams"),
        ("attack.hypotheses.noise=[]", "attack.hypotheses.noise"),
        ("attack.initial=inverted", "attack.initial"),
        ("attack.layout.vectors=0", "attack.layout.vectors"),
    ],
)
def test_options_are_checked_before_anything_is_built(override: str, message: str) -> None:
    config = launch.compose("train", [*CORRECTOR, "attack.inverter_run=x", override])
    assert any(message in error for error in map(str, launch.check(config)))


@pytest.mark.slow
def test_without_an_embedder(corrector: Path) -> None:
    attack = attack_of(corrector, 384)
    with pytest.raises(InputError, match="needs the embedder"):
        attack.invert(Targets(torch.randn(1, 384), torch.arange(1)), None)
