"""``unembed demo``: a local page on which a sentence becomes a vector and is read back from it, step by step.

    unembed demo                        # http://127.0.0.1:7860; pip install 'unembed[demo]'
    unembed demo port=8000 run=runs/x   # with an attacker of your own beside the shipped ones

A second tab audits a .npy file. The page is served to this machine alone. Neither it nor the server asks for anything
elsewhere, and uploaded vectors are deleted when the command ends.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from markupsafe import Markup

from unembed.core.commands import arguments
from unembed.core.errors import InputError, did_you_mean
from unembed.launch import console
from unembed.launch.locations import find_run, shipped

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from torch import Tensor

    from unembed.api import Attacker
    from unembed.embedders.cache.cached import CachedEmbedder
    from unembed.reports.reading import Reader

_KEYS = ("port", "run")
_EXAMPLE = "The patient was prescribed insulin on Monday."
_LONGEST = 300  # characters of a sentence; the shipped attackers write at most 32 tokens
_QUERIES = 300
_ALONE, _SERVICE, _WEIGHTS = "nothing", "queries to the embedder", "the embedder's weights"
WHITE_BOX = ("attack/refine=[discrete_steps]",)
_LARGEST = "100mb"  # of an uploaded file
_ROWS = 200  # of it that are read back
_ONE_AT_A_TIME: dict[str, Any] = {"concurrency_limit": 1, "concurrency_id": "attacker"}
# Browsers may load nothing from elsewhere, whatever a release of the library links to.
_POLICY = (
    '<meta http-equiv="Content-Security-Policy" '
    "content=\"default-src 'self' data: blob: 'unsafe-inline' 'unsafe-eval'; form-action 'self'\">"
)
_EXPLAINED = """
The decoder writes a text from the vector alone. Then a search changes it, has each text embedded, and keeps what comes
closer (cosine 1: the same vector); with the embedder's weights it embeds with a copy of its own, which takes half a
minute. Marked words are right. The first search ever with an embedder takes minutes, in
which it embeds some 41,000 words. The attacker was not trained on the defense: one who is reads more.
"""
_STYLE = """
.vector svg { width: 100%; height: auto; } .vector .up { fill: #0d7a70; } .vector .down { fill: #b1502b; }
.steps { width: 100%; border-collapse: collapse; } .steps, .steps tr { border: 0 !important; }
.steps th { font-weight: 500; white-space: nowrap; }
.steps tr > * { padding: .4rem 1rem .4rem 0 !important; text-align: left !important; border: 0 !important; }
.steps tr + tr > * { border-top: 1px solid var(--border-color-primary) !important; }
.steps td { font-variant-numeric: tabular-nums; } .steps td:last-child { width: 100%; overflow-wrap: anywhere; }
.steps tr:last-child td:last-child { font-weight: 600; }
.steps mark { color: inherit; background: linear-gradient(transparent 62%, #0d7a7066 62%); }
iframe.audit { width: 100%; height: 75vh; border: 1px solid var(--border-color-primary); border-radius: 8px; }
"""


class Strength(NamedTuple):
    """What makes a defense strong: a key of its configuration, in words, with the ends and the start of the slider."""

    key: str
    meaning: str
    low: float
    high: float
    start: float


DEFENSES = {
    "noise": Strength("level", "standard deviation of the noise in each dimension", 0.005, 0.1, 0.02),
    "rounding": Strength("step", "coordinates are rounded to multiples of", 0.01, 0.3, 0.1),
    "truncation": Strength("dimensions", "dimensions that are kept", 16, 384, 128),
}


class Step(NamedTuple):
    """The best text after so many queries, and the cosine of its vector with the one that is read."""

    queries: int
    text: str
    cosine: float


class Watched:
    """An embedder that tells of the texts that an attack has embedded, with their vectors (n, d)."""

    def __init__(self, embedder: CachedEmbedder, on_texts: Callable[[Sequence[str], Tensor], None]) -> None:
        self._embedder, self._on_texts = embedder, on_texts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._embedder, name)

    def embed(self, texts: Sequence[str], purpose: Any = "attack") -> Tensor:
        vectors = self._embedder.embed(texts, purpose)
        if purpose == "attack":
            self._on_texts(texts, vectors)
        return vectors


def decoded(reader: Reader, vector: Tensor) -> Step:
    """What is read from a vector (1, d) without queries."""
    predictions = reader.read(vector)
    return Step(0, predictions[0].candidates[0], reader.cosines(predictions, vector)[0] or 0.0)


def searched(search: Reader, vector: Tensor) -> Iterator[Step]:
    """The closest text to a vector (1, d) after each round of a search, and what it returns."""
    from unembed.metrics.vectors import cosine_rows
    from unembed.reports.reading import Reader

    steps, asked = SimpleQueue[Step | None](), dict[str, float]()

    def on_texts(texts: Sequence[str], vectors: Tensor) -> None:
        asked.update(zip(texts, cosine_rows(vectors, vector.expand(len(vectors), -1)).tolist(), strict=True))
        best = max(asked, key=lambda text: asked[text], default="")
        steps.put(Step(len(asked), best, asked.get(best, 0.0)))

    oracle = cast("CachedEmbedder", Watched(search.oracle, on_texts))
    with ThreadPoolExecutor(1) as worker:
        job = worker.submit(Reader(search.attack, oracle, 1, partial=True).read, vector)
        job.add_done_callback(lambda _: steps.put(None))
        yield from iter(steps.get, None)
        text = job.result()[0].candidates[0]
    yield Step(len(asked), text, asked.get(text, 0.0))


class Demo:
    """What the page's buttons do; ``named`` are run directories and shipped attackers, opened when first asked for."""

    def __init__(self, named: Sequence[str]) -> None:
        self.named = named
        self._open = functools.cache(importlib.import_module("unembed").load)
        self._reader = functools.lru_cache(4)(lambda name, queries: self.attacker(name).reader(queries))

    def attacker(self, name: str, *overrides: str) -> Attacker:
        attacker = cast("Attacker", self._open(name, *overrides))
        console.quieten()
        return attacker

    def read(
        self, text: str, name: str, access: str, queries: float, defense: str, strength: float
    ) -> Iterator[tuple[Markup, Markup]]:
        """The picture of the vector, and the table of steps, which grows; ``queries`` if that is the ``access``."""
        text = " ".join(text.split())
        if not text:
            raise InputError("Type a sentence first: an empty text has no vector.")
        if len(text) > _LONGEST:
            raise InputError(f"The text has {len(text):,} characters; take at most {_LONGEST}, a sentence or two.")
        attacker = self.attacker(name)
        vector = defended(attacker, text, defense, strength)
        picture, steps = picture_of(vector[0].tolist()), list[Step]()
        yield picture, Markup("<p>Reading ...</p>")
        for step in self._steps(name, vector, access, int(queries)):
            if not steps or step.text != steps[-1].text:
                steps.append(step)
            yield picture, table_of(steps, text, step.queries)

    def _steps(self, name: str, vector: Tensor, access: str, queries: int) -> Iterator[Step]:
        yield decoded(self._reader(name, 0), vector)
        if access == _SERVICE:
            yield from searched(self._reader(name, queries), vector)
        elif access == _WEIGHTS:  # its own copy of the embedder: no queries
            yield decoded(self.attacker(name, *WHITE_BOX).reader(None), vector)

    def audit(self, uploaded: str | None) -> Iterator[Markup]:
        """The page of an audit of a .npy file, in a frame of its own."""
        from unembed.api import ARRAY, audit_vectors
        from unembed.datamodules.vector_stores.vector_files import read_in_child

        if uploaded is None:
            raise InputError("Choose a .npy file first: an array (n, d), a vector a row.")
        self.attacker(self.named[0])  # what it imports
        path = Path(uploaded)
        try:
            report = audit_vectors(read_in_child(path), limit=_ROWS, defenses=[])
        except InputError as error:
            said = str(error).replace(f"vectors={path}", f"vectors={path.name}")
            raise InputError(said.replace(f"vectors={ARRAY}", f"vectors={path.name}")) from error
        report.store = path.name
        with tempfile.TemporaryDirectory(prefix="unembed-") as folder:
            report.save(folder)
            page = (Path(folder) / "audit.html").read_text(encoding="utf-8")
        yield Markup('<iframe class="audit" sandbox title="The audit" srcdoc="{}"></iframe>').format(page)


class Apart:
    """A Demo in a process of its own: it loads while the page's library does, and the page answers while it reads.

    Iterate over one result at a time.
    """

    def __init__(self, named: Sequence[str]) -> None:
        self.named = named
        self._pipe, theirs = multiprocessing.Pipe()
        fork = multiprocessing.get_context("fork")  # little is imported yet, and no thread runs
        self._process = fork.Process(target=_answer, args=(theirs, self._pipe, named))
        self._process.start()
        theirs.close()

    def read(self, *given: Any) -> Iterator[tuple[Markup, Markup]]:
        return self._results("read", *given)

    def audit(self, *given: Any) -> Iterator[Markup]:
        return self._results("audit", *given)

    def close(self) -> None:
        self._process.terminate()

    def _results(self, *asked: Any) -> Iterator[Any]:
        results = iter(self._pipe.recv, None)
        try:
            self._pipe.send(asked)
            try:
                for result in results:
                    if isinstance(result, InputError):
                        raise result
                    yield result
            finally:  # of a page that was closed; what comes belongs to no later question
                for _ in results:
                    pass
        except (EOFError, OSError) as error:
            raise InputError("The attacker's process has ended, see the terminal; start the demo again.") from error


def _answer(pipe: Connection, theirs: Connection, named: Sequence[str]) -> None:
    """Answer until the page's process ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    theirs.close()
    demo = Demo(named)
    demo.attacker(named[0])
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            task, *given = pipe.recv()
            try:
                for result in getattr(demo, task)(*given):
                    pipe.send(result)
            except InputError as error:
                pipe.send(error)
            pipe.send(None)


def defended(attacker: Attacker, text: str, defense: str, strength: float) -> Tensor:
    """The vector of a text as the attacker gets it, (1, d); one that a defense made shorter is filled up with zeros."""
    import torch

    from unembed.core.examples import Example
    from unembed.defenses.threat import threat_of
    from unembed.launch import defense_points
    from unembed.reports.reading import Seen

    vector = torch.from_numpy(attacker.embed([text]))
    if defense not in DEFENSES:
        return vector
    key = DEFENSES[defense].key
    value = int(strength) if key == "dimensions" else strength
    point = defense_points(attacker.session.config, [f"defense={defense} defense.{key}={value}"], "defense")[0]
    filled = Seen(threat_of(point.config.defense).defense, attacker.dimension)
    return filled(vector, [Example(0, text)], "document")


def picture_of(vector: Sequence[float]) -> Markup:
    """A vector as a grid of squares, a number each: strong for large ones, of two colours for the signs."""
    width, largest = 64, max(map(abs, vector)) or 1.0
    square = Markup('<rect class="{}" x="{}" y="{}" width="9" height="9" fill-opacity="{:.2f}"/>').format
    squares = (
        square("up" if value > 0 else "down", 10 * (place % width), 10 * (place // width), abs(value) / largest)
        for place, value in enumerate(vector)
    )
    return Markup(
        '<div class="vector"><svg viewBox="0 0 {} {}" role="img" aria-label="The vector">{}</svg>'
        "<p>{} numbers, beginning with {}</p></div>"
    ).format(
        10 * width, 10 * -(-len(vector) // width), Markup("").join(squares), len(vector),
        ", ".join(f"{value:.3f}" for value in vector[:6]),
    )  # fmt: skip


def table_of(steps: Sequence[Step], text: str, queries: int) -> Markup:
    """A line a step, words that the sentence has are marked; and how many texts were embedded up to now."""
    from unembed.metrics.tokens import token_overlap
    from unembed.reports.numbers import counted
    from unembed.reports.output import macro
    from unembed.reports.results import parts

    row = Markup("<tr><td>{}</td><td>{:.3f}</td><td>{:.0f} %</td><td>{}</td></tr>").format
    rows = [
        row(one.queries, one.cosine, token_overlap(text, one.text).f1, macro("passage", parts=parts(one.text, text)))
        for one in steps
    ]
    head = Markup("<tr><th>Queries</th><th>Cosine</th><th>Word F1</th><th>Read from the vector</th></tr>")
    table = Markup('<table class="steps">{}{}</table>').format(head, Markup("").join(rows))
    return table + Markup("<p>{} embedded so far.</p>").format(counted(queries, "text"))


def page_of(demo: Apart, gr: Any) -> Any:
    """The page; ``gr`` is Gradio, which is imported after the environment is set."""

    def shown(task: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        @functools.wraps(task)
        def run(*values: Any) -> Iterator[Any]:
            try:
                yield from task(*values)
            except InputError as error:
                raise gr.Error(str(error), duration=None, print_exception=False) from error

        return run

    def slider(defense: str) -> Any:
        if defense not in DEFENSES:
            return gr.Slider(visible=False)
        one = DEFENSES[defense]
        step = 1 if one.key == "dimensions" else one.low
        label = f"{one.key}: {one.meaning}"
        return gr.Slider(minimum=one.low, maximum=one.high, step=step, value=one.start, label=label, visible=True)

    with gr.Blocks(title="unembed demo", analytics_enabled=False) as page:
        gr.Markdown("# What a vector gives away\nA store for search keeps a vector of each text. Is the text gone?")
        with gr.Tab("Type a sentence"):
            with gr.Row():
                with gr.Column():
                    text = gr.Textbox(_EXAMPLE, label="A sentence", lines=2)
                    name = gr.Dropdown(
                        list(demo.named), value=demo.named[0], label="Attacker, named after its embedder"
                    )
                    access = gr.Radio(
                        [_ALONE, _SERVICE, _WEIGHTS], value=_SERVICE, label="What the attacker has beside the vector"
                    )
                    queries = gr.Slider(10, _QUERIES, 50, step=10, label="Texts that it may have embedded")
                    defense = gr.Dropdown(["none", *DEFENSES], value="none", label="Defense of the stored vector")
                    strength = gr.Slider(0, 384, 0, label="Strength", visible=False)
                    start = gr.Button("Embed it and read it back", variant="primary")
                with gr.Column():
                    picture, steps = gr.HTML(label="Its vector"), gr.HTML()
            gr.Markdown(_EXPLAINED)
        with gr.Tab("Audit your vectors"):
            file = gr.File(label="A .npy file: an array (n, d)", file_types=[".npy"])
            begin = gr.Button(f"Read back {_ROWS} of them", variant="primary")
            found = gr.HTML()
        defense.change(slider, defense, strength, api_name=False)
        access.change(lambda chosen: gr.Slider(visible=chosen == _SERVICE), access, queries, api_name=False)
        reading = {"fn": shown(demo.read), "inputs": [text, name, access, queries, defense, strength]}
        start.click(**reading, outputs=[picture, steps], api_name="read", **_ONE_AT_A_TIME)
        text.submit(**reading, outputs=[picture, steps], api_name=False, **_ONE_AT_A_TIME)
        first = shown(
            lambda text, name: demo.read(text, name, _ALONE, 0, "none", 0)
        )  # a search may take minutes at first
        page.load(first, [text, name], [picture, steps], api_name=False, **_ONE_AT_A_TIME)
        begin.click(shown(demo.audit), file, found, api_name="audit", **_ONE_AT_A_TIME)
    return page


def serve(port: int | None, named: Sequence[str]) -> None:
    """Serve the page until Ctrl-C."""
    with tempfile.TemporaryDirectory(prefix="unembed-") as uploads:
        os.environ.update(GRADIO_ANALYTICS_ENABLED="False", HF_HUB_DISABLE_TELEMETRY="1", GRADIO_TEMP_DIR=uploads)
        demo = Apart(named)
        try:
            _show(demo, port)
        finally:
            demo.close()


def _show(demo: Apart, port: int | None) -> None:
    try:
        gr = importlib.import_module("gradio")
    except ModuleNotFoundError as error:
        raise InputError("unembed demo needs the library gradio; pip install 'unembed[demo]'") from error
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    page = page_of(demo, gr)
    # A page of another site that names this address as its own gets no answer.
    hosts = Middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"])
    try:
        _, address, _ = page.launch(
            server_name="127.0.0.1", server_port=port, share=False, quiet=True, prevent_thread_lock=True,
            ssr_mode=False, pwa=False, mcp_server=False, enable_monitoring=False, footer_links=[],
            max_file_size=_LARGEST, css=_STYLE, theme=gr.themes.Default(font="system-ui", font_mono="monospace"),
            head=_POLICY, app_kwargs={"middleware": [hosts]},
        )  # fmt: skip
    except OSError as error:
        raise InputError(f"port={port}: is taken; choose another, or leave it out") from error
    print(f"Open {address} (Ctrl-C ends it)", flush=True)
    page.block_thread()


def main() -> None:
    """``unembed demo``."""
    words = arguments()
    console.begin()
    with console.ending():
        if {"--help", "-h"} & set(words):
            print(__doc__)
            return
        values: dict[str, str] = {}
        for word in words:
            key, equals, value = word.partition("=")
            if not equals or key not in _KEYS:
                raise InputError(f"{word}: unknown key {key}, {did_you_mean(key, _KEYS)}")
            values[key] = value
        if "port" in values and not (values["port"].isdecimal() and 1024 <= int(values["port"]) < 65536):
            raise InputError(f"port={values['port']}: expected a whole number from 1024 to 65535")
        if "run" in values:
            find_run(values["run"], "run")
        own = [values["run"]] if "run" in values else []
        names = [*own, "minilm", *(name for name in shipped() if name != "minilm")]
        serve(int(values["port"]) if "port" in values else None, list(dict.fromkeys(names)))
