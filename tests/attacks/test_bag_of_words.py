"""Bag of words: loss and threshold against slow, obvious ones; what it predicts; a run from training to evaluation."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from lightning import Trainer, seed_everything
from sklearn.metrics import precision_recall_fscore_support

from support.assembled import Texts, built, data_module, padded, quiet_trainer
from support.letters import TEXTS, FewLetters
from support.tiny_models import pretrained_model
from unembed.attacks.bag_of_words import THRESHOLDS, BagOfWords
from unembed.attacks.parts.optimizers import AdamW
from unembed.attacks.parts.predictions import Targets
from unembed.attacks.parts.vocabulary import HubTokens, Pieces, Vocabulary, Words
from unembed.core.errors import InputError
from unembed.datamodules.inversion import InversionDataModule
from unembed.reports.breakdowns import threshold_charts

VALID, TEST = ["dan lives in oslo", "ada saw rome"], ["bob lives in lima ."]


def bag(vocabulary: Vocabulary | None = None, **options: float | int | None) -> BagOfWords:
    return BagOfWords(vocabulary or Words(), AdamW(lr=0.05), **options)  # type: ignore[arg-type]


def data(directory: Path, valid: Sequence[str] = VALID) -> InversionDataModule:
    source = Texts(train=TEXTS, valid=valid, test=TEST)
    return data_module(source, FewLetters(), directory, batch_size=8, drop_repeated=False)


def trainer(directory: Path, steps: int = 60) -> Trainer:
    # Precision and clipping are those of the default configuration on a processor with bf16.
    return quiet_trainer(precision="bf16-mixed", gradient_clip_val=1.0, max_steps=steps, default_root_dir=directory)


def test_words_are_the_most_common_ones_and_unknown_ones_have_the_number_after_the_last(tmp_path: Path) -> None:
    words = Words(limit=3)
    words.prepare(["B b a", "a, b! c", "d"], tmp_path)
    again = Words(limit=3)
    again.load(tmp_path)
    assert again.words == ["b", "a", "c"]  # three, two, one; c before d
    assert again.ids(["A b x b d", "?"]) == [[1, 0, 3, 0, 3], [3]]
    assert again.text([2, 0]) == "c b"
    # b, a and c stand in two, two and one of three texts; half a text more on either side
    assert again.frequency.tolist() == pytest.approx([2.5 / 4, 2.5 / 4, 1.5 / 4])


def test_tokens_write_any_text_and_another_kind_of_vocabulary_is_named(tmp_path: Path) -> None:
    Words().prepare(TEXTS, tmp_path)
    with pytest.raises(FileNotFoundError, match=r"pieces\.json"):
        Pieces().load(tmp_path)
    pieces = Pieces(limit=280)
    pieces.prepare(TEXTS, tmp_path)
    pieces.load(tmp_path)
    assert pieces.size <= 280
    for text in ["ada lives in Ulaanbaatar <eos>", "naïve 東京"]:
        ids = pieces.ids([text])[0]
        assert max(ids) < pieces.size
        assert min(ids) > 1  # neither padding nor end
        assert pieces.tokenizer.decode(ids) == text
    assert " " not in pieces.text(pieces.ids([" in"])[0][:1])


def test_tokens_of_a_ready_tokenizer_are_kept_with_the_run(tmp_path: Path) -> None:
    folder = pretrained_model(tmp_path / "gpt2", "gpt2")
    HubTokens(folder).prepare(["ada lives", "ada"], tmp_path)
    shutil.rmtree(folder)
    again = HubTokens(folder)
    again.load(tmp_path)
    assert again.size > 258
    (ids,) = again.ids(["ada lives<eos>"])
    assert again.tokenizer.decode(ids) == "ada lives<eos>"  # five characters, not the end
    assert again.frequency.max() == pytest.approx(2.5 / 3)
    with pytest.raises(InputError, match=r"attack\.vocabulary\.name=.*gpt2: no such local directory"):
        again.prepare(["ada"], tmp_path)


@pytest.mark.parametrize("hidden", [None, 5])
@pytest.mark.parametrize("weight", [1.0, 3.5])
def test_loss_is_binary_cross_entropy_over_the_whole_vocabulary(
    tmp_path: Path, hidden: int | None, weight: float
) -> None:
    attack = built(bag(hidden=hidden, positive_weight=weight), tmp_path)
    torch.manual_seed(0)
    for parameter in attack.parameters():
        torch.nn.init.normal_(parameter)
    size, vectors = attack.vocabulary.size, torch.randn(4, 12)
    rows = [[0, 3, 5], [], [2, size, size], [1, size]]  # unknown words are no part of the loss
    loss = attack.loss(vectors, padded(rows))
    loss.backward()
    wanted = torch.tensor([[float(entry in row) for entry in range(size)] for row in rows])
    found = {
        name: parameter.grad.clone() for name, parameter in attack.named_parameters() if parameter.grad is not None
    }
    attack.zero_grad()
    expected = torch.nn.functional.binary_cross_entropy_with_logits(
        attack(vectors), wanted, reduction="sum", pos_weight=torch.tensor(weight)
    ) / len(rows)
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    for name, parameter in attack.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, rtol=1e-5, atol=1e-6)


def test_vectors_untrained_probabilities_and_labels(tmp_path: Path) -> None:
    for normalize in (True, False):
        attack = built(bag(normalize=normalize), tmp_path / str(normalize))
        torch.nn.init.normal_(attack.layers[-1].weight)
        vectors = torch.randn(3, 12)
        read = 12**0.5 * vectors / vectors.norm(dim=1, keepdim=True) if normalize else vectors
        expected = read @ attack.layers[-1].weight.T + attack.layers[-1].bias
        torch.testing.assert_close(attack(vectors), expected)
    attack = built(bag(), tmp_path)
    probabilities = attack(torch.randn(1, 12)).sigmoid()[0]
    expected = {"lives": 16.5 / 17, "paris": 4.5 / 17, "dan": 4.5 / 17}
    for word, share in expected.items():
        assert probabilities[attack.vocabulary.ids([word])[0][0]].item() == pytest.approx(share, rel=1e-5)
    attack = built(bag(), tmp_path)
    ada, lives, size = *attack.vocabulary.ids(["ada lives"])[0], attack.vocabulary.size
    assert attack.encode(["Ada? lives ada zoe zoe eve"]) == [[ada, lives, size, size, size]]
    assert attack.tokens(["Ada? lives ada zoe"]) == [[ada, lives, ada, size]]


def test_steps_are_those_of_the_mean_loss_when_eps_grows_with_the_vocabulary(tmp_path: Path) -> None:
    attack = built(bag(normalize=False), tmp_path)
    size, vectors, rows = attack.vocabulary.size, torch.randn(8, 12), [[n, n + 1] for n in range(8)]
    wanted = torch.tensor([[float(entry in row) for entry in range(size)] for row in rows])
    theirs = torch.nn.Linear(12, size)
    theirs.load_state_dict(attack.layers[-1].state_dict())
    for eps in (1e-6, 1.0):  # negligible, and far above the gradients
        ours = AdamW(lr=0.01, eps=eps * size, weight_decay=0).build(attack)
        other = torch.optim.AdamW(theirs.parameters(), lr=0.01, eps=eps, weight_decay=0)
        for _ in range(5):
            for optimizer in (ours, other):
                optimizer.zero_grad()
            attack.loss(vectors, padded(rows)).backward()
            torch.nn.BCEWithLogitsLoss()(theirs(vectors), wanted).backward()
            for optimizer in (ours, other):
                optimizer.step()
        torch.testing.assert_close(attack.layers[-1].weight, theirs.weight, rtol=1e-4, atol=1e-7)


def test_names_what_reaches_the_threshold_likeliest_first_and_never_nothing(tmp_path: Path) -> None:
    attack = built(bag(), tmp_path, ["a b c d"])
    with torch.no_grad():
        attack.layers[-1].bias.copy_(torch.tensor([0.6, 0.9, 0.2, 0.75]).logit())
    targets = Targets(torch.zeros(2, 12), torch.arange(2))
    for threshold, words in [(0.5, "b d a"), (0.75, "b d"), (0.95, "b"), (0.1, "b d a c")]:
        attack.threshold.fill_(threshold - 1e-6)
        found = attack.invert(targets, None)
        assert [prediction.candidates for prediction in found] == [(words,)] * 2
        assert {prediction.kind for prediction in found} == {"set"}
        assert found[0].tokens == tuple(attack.vocabulary.ids([words])[0])


def test_threshold_has_the_best_micro_f1_on_validation_and_the_curve_is_written(tmp_path: Path) -> None:
    seed_everything(0)
    attack, datamodule = bag(), data(tmp_path)
    attack.connect(tmp_path / "artifacts", None)
    trainer(tmp_path, steps=12).fit(attack, datamodule)

    attack.eval()
    probabilities = attack(FewLetters().embed(VALID)).sigmoid().detach()
    # "saw" was never seen in training: a column of its own, which no threshold names.
    probabilities = torch.cat([probabilities, torch.zeros(2, 1)], 1).numpy()
    ids = [set(row) for row in attack.tokens(VALID)]
    wanted = [[entry in row for entry in range(probabilities.shape[1])] for row in ids]
    content = json.loads((tmp_path / "artifacts" / "threshold.json").read_text())
    assert [point["threshold"] for point in content["curve"]] == list(THRESHOLDS)
    scores = []
    for point in content["curve"]:
        named = probabilities >= torch.tensor(point["threshold"]).numpy()
        precision, recall, f1, _ = precision_recall_fscore_support(
            torch.tensor(wanted).numpy().ravel(), named.ravel(), average="binary", zero_division=0
        )
        scores.append(f1)
        if named.any():
            assert point["precision"] == pytest.approx(precision)
        else:
            assert point["precision"] is None
        assert point["recall"] == pytest.approx(recall)
        assert point["f1"] == pytest.approx(f1)
    assert max(scores) > min(scores)
    assert content["threshold"] == THRESHOLDS[scores.index(max(scores))]
    assert attack.threshold.item() == pytest.approx(content["threshold"])
    assert attack.threshold.item() != 0.5  # where it began


def test_the_report_draws_the_curve_that_the_attack_wrote(tmp_path: Path) -> None:
    assert threshold_charts(tmp_path) == []
    attack = bag()
    attack.connect(tmp_path / "artifacts", None)
    trainer(tmp_path, steps=12).fit(attack, data(tmp_path))
    [(title, chart, note)] = threshold_charts(tmp_path)
    content = json.loads((tmp_path / "artifacts" / "threshold.json").read_text())
    assert title == "Precision and recall"
    assert chart.count("<circle") == sum(point["precision"] is not None for point in content["curve"]) + 1
    assert f"the chosen one, {content['threshold']:g}," in note
    best = max(content["curve"], key=lambda point: point["f1"])
    # 340 x 242 units; the axes from 0 to 100 leave 40, 12, 30 and 46 at the left, right, top and bottom
    x, y = round(40 + best["recall"] * 288, 1), round(196 - best["precision"] * 166, 1)
    assert f'cx="{x}" cy="{y}" r="5.0"' in chart

    (tmp_path / "artifacts" / "threshold.json").write_text('{"threshold": 0.2}')
    with pytest.raises(InputError, match=r"threshold\.json"):
        threshold_charts(tmp_path)


def test_a_checkpoint_of_any_moment_holds_the_threshold_of_its_weights(tmp_path: Path) -> None:
    seed_everything(0)
    attack, datamodule, fit = bag(dropout=0.1), data(tmp_path), trainer(tmp_path, steps=12)
    attack.connect(tmp_path / "artifacts", None)
    fit.fit(attack, datamodule)
    attack.threshold.fill_(0.5)
    fit.save_checkpoint(tmp_path / "last.ckpt")
    chosen = json.loads((tmp_path / "artifacts" / "threshold.json").read_text())["threshold"]
    assert chosen != 0.5

    again = bag(dropout=0.1)
    again.connect(tmp_path / "artifacts", None, from_checkpoint=True)
    again.restore(tmp_path / "last.ckpt", FewLetters.dimension)
    assert again.threshold.item() == pytest.approx(chosen)
    targets = Targets(FewLetters().embed(TEXTS), torch.arange(len(TEXTS)))
    attack.eval()
    assert again.invert(targets, None) == attack.invert(targets, None)


def test_choosing_the_threshold_leaves_training_as_it_was(tmp_path: Path) -> None:
    weights = []
    for every in (1, 1000):
        seed_everything(3)
        attack, fit = bag(dropout=0.3), trainer(tmp_path / str(every), steps=10)
        attack.connect(tmp_path / str(every), None)

        def save(
            *_: object, fit: Trainer = fit, path: Path = tmp_path / str(every) / "c.ckpt", every: int = every
        ) -> None:
            if every == 1:
                fit.save_checkpoint(path)

        attack.on_train_batch_end = save  # type: ignore[method-assign, assignment]
        fit.fit(attack, data(tmp_path))
        weights.append(attack.layers[-1].weight.detach())
    assert torch.equal(*weights)


def test_it_learns_to_read_names_and_cities(tmp_path: Path) -> None:
    seed_everything(0)
    attack = bag()
    attack.connect(tmp_path / "artifacts", None)
    trainer(tmp_path, steps=150).fit(attack, data(tmp_path))
    attack.eval()
    attack.threshold.fill_(0.5)  # two validation texts are too few to choose it well
    found = attack.invert(Targets(FewLetters().embed(TEXTS), torch.arange(len(TEXTS))), None)
    right = [
        set(prediction.candidates[0].split()) == set(text[:-2].split())
        for prediction, text in zip(found, TEXTS, strict=True)
    ]
    assert sum(right) >= 14


@pytest.mark.parametrize(
    ("valid", "message"),
    [([], r"datamodule\.valid"), (["?!", "zoe zog"], r"attack\.vocabulary\.limit: none of the 10 entries")],
)
def test_no_threshold_can_be_chosen(tmp_path: Path, valid: list[str], message: str) -> None:
    attack = bag()
    attack.connect(tmp_path / "artifacts", None)
    fit = trainer(tmp_path)
    with pytest.raises(InputError, match=message):
        fit.fit(attack, data(tmp_path, valid))
    assert fit.global_step == 0
