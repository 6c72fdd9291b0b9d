"""Decoding against brute force and transformers; the blockwise cross-entropy against PyTorch's."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate, product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import GPT2Config, GPT2LMHeadModel

from support.tiny_models import t5_model
from unembed.attacks.parts import decoders as module
from unembed.attacks.parts.decoders import BeamRows, CausalDecoder, EncoderDecoder, GPT2Beams, cross_entropy, runs
from unembed.attacks.parts.decoding import (
    BLOCK,
    BeamSearch,
    ConsensusSampling,
    NucleusSampling,
    WantedWords,
    _largest,
    _packed,
    by_expected_f1,
)
from unembed.datamodules.arrow_examples import IGNORED

EOS, VOCABULARY, WIDTH = 1, 23, 16


def causal() -> CausalDecoder:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=32, n_embd=WIDTH, n_layer=2, n_head=2, initializer_range=0.4,
        bos_token_id=EOS, eos_token_id=EOS, pad_token_id=0,
    )  # fmt: skip
    return CausalDecoder(GPT2LMHeadModel(config).eval())


def encoder_decoder() -> EncoderDecoder:
    changes = {"initializer_factor": 3.0, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
    return EncoderDecoder(t5_model(VOCABULARY, **changes))


def prefixes(count: int, vectors: int) -> Tensor:
    return torch.randn(count, vectors, WIDTH, generator=torch.Generator().manual_seed(1)) * 2


def mean_log_probability(
    decoder: CausalDecoder | EncoderDecoder, prefix: Tensor, ids: list[int], penalty: float
) -> float:
    """By teacher forcing, in one pass: the score that beam search reports without ever having built it step by step."""
    labels = torch.tensor([[*ids, EOS][:12]])
    with torch.no_grad():
        return -float(decoder.loss(prefix[None], labels)) * labels.shape[1] ** (1 - penalty)


@pytest.mark.parametrize("make", [causal, encoder_decoder])
@pytest.mark.parametrize(("beams", "penalty"), [(1, 1.0), (3, 1.0), (5, 0.0), (4, 2.0)])
def test_beam_search_finds_what_generate_finds(make: object, beams: int, penalty: float) -> None:
    decoder = make()  # type: ignore[operator]
    prefix = prefixes(8, 1 if make is causal else 3)
    found = BeamSearch(beams=beams, max_new_tokens=12, length_penalty=penalty, candidates=beams)(
        decoder, prefix, eos=EOS, index=torch.arange(8)
    )
    for row in range(8):
        generated = decoder.model.generate(
            inputs_embeds=prefix[row : row + 1], num_beams=beams, num_return_sequences=beams, max_new_tokens=12,
            length_penalty=penalty, early_stopping=False, do_sample=False, eos_token_id=EOS, pad_token_id=0,
        )  # fmt: skip
        expected = []
        for ids in generated.tolist():
            ids = ids[1:] if make is encoder_decoder else ids  # without the start token
            expected.append(ids[: ids.index(EOS)] if EOS in ids else ids)
        assert found[row][0] == expected[0]
        # Further candidates may be near ties, which rounding swaps: their scores must agree.
        ours, theirs = ([mean_log_probability(decoder, prefix[row], ids, penalty) for ids in texts]
                        for texts in (found[row], expected))  # fmt: skip
        assert ours == pytest.approx(theirs, abs=1e-4)


def test_wanted_words_are_worth_their_reward_as_often_as_they_are_wanted() -> None:
    """Of all texts of up to two tokens, and of three that nothing ends."""
    decoder, prefix = causal(), prefixes(2, 1)
    kinds = torch.arange(VOCABULARY) // 2  # 2 and 3 are one word, 4 and 5 another
    wanted = WantedWords(kinds, [[2, 2], [4, 6, 7, 9]], nats=3.0)
    search = BeamSearch(beams=VOCABULARY**2, max_new_tokens=3, length_penalty=0.0, candidates=5)
    found = search(decoder, prefix, eos=EOS, index=torch.arange(2), wanted=wanted)
    others = [token for token in range(VOCABULARY) if token != EOS]
    texts = [list(ids) for length in range(4) for ids in product(others, repeat=length)]
    labels = pad_sequence([torch.tensor([*ids, EOS][:3]) for ids in texts], True, IGNORED)
    for row, counts in enumerate([{1: 2}, {2: 1, 3: 2, 4: 1}]):
        with torch.no_grad():
            log_p = decoder.logits(prefix[row].expand(len(texts), -1, -1), labels).log_softmax(-1)
        scores = log_p.gather(2, labels.clamp_min(0)[..., None])[..., 0].masked_fill(labels == IGNORED, 0.0).sum(1)
        used = [Counter(token // 2 for token in ids) & Counter(counts) for ids in texts]
        scores += 3.0 * torch.tensor([one.total() for one in used])
        assert found[row] == [texts[place] for place in scores.topk(5).indices.tolist()]


def test_texts_end_at_different_lengths_and_other_models_step_by_rows() -> None:
    """Otherwise the test above would not see targets leave the batch."""
    found = BeamSearch(beams=3, max_new_tokens=12)(causal(), prefixes(17, 1), eos=EOS, index=torch.arange(17))
    assert len({len(texts[0]) for texts in found}) > 3
    decoder = causal()
    assert isinstance(decoder.start(prefixes(2, 1))[1], GPT2Beams)
    decoder.model.train()  # dropout is the model's own
    assert isinstance(decoder.start(prefixes(2, 1))[1], BeamRows)
    model = GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=1, n_head=1, reorder_and_upcast_attn=True)).eval()
    assert not runs(model)


@pytest.mark.parametrize("make", [causal, encoder_decoder])
@pytest.mark.parametrize(
    "decoding", [BeamSearch(beams=4, max_new_tokens=12, candidates=4), NucleusSampling(candidates=3, max_new_tokens=30)]
)
def test_result_of_a_target_does_not_depend_on_its_neighbours(make: object, decoding: BeamSearch) -> None:
    decoder = make()  # type: ignore[operator]
    prefix, index = prefixes(9, 2), torch.arange(100, 109)
    together = decoding(decoder, prefix, eos=EOS, index=index)
    alone = [decoding(decoder, prefix[i : i + 1], eos=EOS, index=index[i : i + 1])[0] for i in range(9)]
    assert [texts[0] for texts in together] == [texts[0] for texts in alone]


@pytest.mark.parametrize("activation", ["gelu_new", "gelu_pytorch_tanh", "relu"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@torch.no_grad()
def test_steps_of_gpt2_are_those_of_the_model(activation: str, attention: str) -> None:
    """Over many steps, with beams that change places, targets that leave, and rows that are given back."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=40, n_embd=WIDTH, n_layer=2, n_head=2, initializer_range=0.4,
        activation_function=activation, attn_implementation=attention, scale_attn_by_inverse_layer_idx=True,
        bos_token_id=EOS, eos_token_id=EOS,
    )  # fmt: skip
    model = GPT2LMHeadModel(config).eval()
    assert runs(model)
    generator = torch.Generator().manual_seed(2)
    states = [GPT2Beams(model, prefixes(9, 3)), BeamRows(model, prefixes(9, 3))]
    assert torch.equal(states[0].logits, states[1].logits)
    n, width, beams = 9, 1, 4
    most = 0
    for step in range(30):
        targets = torch.randperm(n, generator=generator)[: n if step % 6 else n - 1]
        n = len(targets)
        rows = targets[:, None] * width + torch.randint(width, (n, beams), generator=generator)
        width = beams
        tokens = torch.randint(VOCABULARY, (n, beams), generator=generator)
        for state in states:
            state.select(rows)
        ours, expected = (state.step(tokens) for state in states)
        assert ours.shape == (n, beams, VOCABULARY)
        assert torch.allclose(ours, expected, atol=1e-5, rtol=1e-5)
        most = max(most, states[0].memory[0].shape[1])
    assert most < 3 + 30 * beams  # some were given back


@pytest.mark.parametrize("vocabulary", [7, BLOCK, BLOCK * 40, BLOCK * 40 + 11])
@pytest.mark.parametrize("beams", [1, 5])
def test_largest_scores_are_those_of_a_search_over_all(vocabulary: int, beams: int) -> None:
    generator = torch.Generator().manual_seed(0)
    log_p = torch.randn(6, beams, vocabulary, generator=generator).log_softmax(-1)
    log_p[0, 0, -1] = 0.0  # the best may be the last
    scores = -torch.rand(6, beams, generator=generator)
    count = min(2 * beams, beams * vocabulary)
    top, places = _largest(log_p, scores, count)
    expected = (log_p + scores[..., None]).view(6, -1).topk(count, dim=1)
    assert torch.equal(top, expected.values)
    assert torch.equal(places, expected.indices)


def test_rows_and_candidates() -> None:
    keep = torch.tensor([True, False, True, True, False, True, True])
    assert _packed(keep).tolist() == [0, 5, 2, 3, 6]
    assert _packed(torch.ones(3, dtype=torch.bool)).tolist() == [0, 1, 2]
    assert _packed(torch.zeros(3, dtype=torch.bool)).tolist() == []
    with pytest.raises(ValueError, match="candidates=6"):
        BeamSearch(beams=5, candidates=6)


def test_nucleus_sampling() -> None:
    logits = torch.log(torch.tensor([0.5, 0.25, 0.15, 0.07, 0.03]))
    decoding = NucleusSampling(p=0.8, temperature=1.0)
    samples = decoding._draw(logits.expand(20_000, -1), torch.rand(20_000, generator=torch.Generator().manual_seed(0)))
    shares = torch.bincount(samples, minlength=5) / 20_000
    # .5 + .25 = .75 < .8: the third token crosses p and is kept, the others never sampled
    assert torch.allclose(shares, torch.tensor([0.5, 0.25, 0.15, 0, 0]) / 0.9, atol=0.015)
    assert shares[3:].sum() == 0
    decoder, prefix, index = causal(), prefixes(6, 1), torch.arange(6)
    greedy = BeamSearch(beams=1, max_new_tokens=10)(decoder, prefix, eos=EOS, index=index)
    nucleus = NucleusSampling(p=1e-6, max_new_tokens=10)(decoder, prefix, eos=EOS, index=index)
    assert nucleus == greedy


@pytest.mark.parametrize("p", [0.3, 0.9, 1.0])
def test_a_nucleus_of_any_size_is_that_of_the_sorted_vocabulary(p: float) -> None:
    random = torch.Generator().manual_seed(2)
    logits = torch.randn(200, 700, generator=random) * torch.linspace(0.1, 9, 200)[:, None]  # flat to sharp
    uniforms = torch.rand(200, generator=random)
    expected = []
    for row, uniform in zip(torch.softmax(logits, -1), uniforms.tolist(), strict=True):
        ranked = sorted(enumerate(row.tolist()), key=lambda item: -item[1])
        inside, mass = [], 0.0
        while mass < p and len(inside) < len(ranked):
            inside.append(ranked[len(inside)])
            mass += inside[-1][1]
        edges = accumulate(probability for _, probability in inside)
        expected.append(next(token for (token, _), edge in zip(inside, edges, strict=True) if edge > uniform * mass))
    found = NucleusSampling(p=p, temperature=1.0)._draw(logits, uniforms).tolist()
    assert sum(a != b for a, b in zip(found, expected, strict=True)) <= 1  # a rounded sum at the edge of a token
    assert len(set(expected[:20])) > 15


def f1(a: list[int], b: list[int]) -> float:
    return 2 * sum((Counter(a) & Counter(b)).values()) / (len(a) + len(b)) if a and b else 0.0


def test_order_by_consensus_by_hand() -> None:
    # F1: ab with abc 4/5, ab with d 0, abc with d 0; sums with themselves: 1.8, 1.8, 1
    assert by_expected_f1(["d", "ab", "abc"]) == [1, 2, 0]
    assert by_expected_f1(["", "a", ""]) == [1, 0, 2]  # a text without words agrees with none
    assert by_expected_f1([]) == []


def test_samples_are_those_of_nucleus_sampling_in_the_order_of_brute_force() -> None:
    decoder, prefix, index = causal(), prefixes(12, 1), torch.arange(12)
    settings: dict[str, Any] = {"p": 1.0, "temperature": 1.5, "max_new_tokens": 8, "seed": 3}
    sampled = NucleusSampling(candidates=7, **settings)(decoder, prefix, eos=EOS, index=index)
    found = ConsensusSampling(samples=7, **settings)(decoder, prefix, eos=EOS, index=index)
    moved = 0
    for texts, ordered in zip(sampled, found, strict=True):
        score = [sum(f1(other, text) for other in texts) for text in texts]
        assert sorted(ordered) == sorted(texts)
        best = sum(f1(other, ordered[0]) for other in texts)
        assert best == pytest.approx(max(score))
        moved += ordered[0] != texts[0]
    assert moved > 3  # otherwise there was nothing to choose
    alone = ConsensusSampling(samples=7, **settings)(decoder, prefix[4:5], eos=EOS, index=index[4:5])
    assert alone == [found[4]]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("rows_of_a_block", [1, 5, 1000])
@pytest.mark.parametrize("scale", [1.0, 0.25])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 1e-2)])
def test_value_and_gradient_are_torchs(
    monkeypatch: pytest.MonkeyPatch, smoothing: float, rows_of_a_block: int, scale: float, dtype: torch.dtype,
    tolerance: float,
) -> None:  # fmt: skip
    monkeypatch.setattr(module, "_BLOCK_BYTES", {"cpu": 4 * 50 * rows_of_a_block})
    generator = torch.Generator().manual_seed(0)
    values = (3 * torch.randn(4, 7, 50, generator=generator)).to(dtype)
    labels = torch.randint(0, 50, (4, 7), generator=generator)
    labels[1, 3:] = IGNORED
    ours, theirs = (values.clone().requires_grad_() for _ in range(2))
    loss = cross_entropy(ours, labels, smoothing)
    expected = torch.nn.functional.cross_entropy(
        theirs.flatten(0, 1).float(), labels.flatten(), label_smoothing=smoothing
    )
    assert loss.dtype is torch.float32
    torch.testing.assert_close(loss, expected)
    (scale * loss).backward()
    (scale * expected).backward()
    assert (ours.grad - theirs.grad).abs().max() <= tolerance * theirs.grad.abs().max()
    assert not ours.grad[1, 3:].any()


def test_a_loss_in_float16_and_without_gradient() -> None:
    generator = torch.Generator().manual_seed(0)
    values = (torch.randn(300, 400, generator=generator)).half()
    labels = torch.randint(0, 400, (300,), generator=generator)
    ours, theirs = values.clone().requires_grad_(), values.float().requires_grad_()
    (65536 * cross_entropy(ours, labels, 0.0)).backward()
    (65536 * torch.nn.functional.cross_entropy(theirs, labels)).backward()
    assert ours.grad.dtype is torch.float16
    torch.testing.assert_close(ours.grad.float(), theirs.grad, rtol=2e-3, atol=1e-3)
    logits, labels = torch.randn(3, 5), torch.tensor([0, IGNORED, 4])
    expected = torch.nn.functional.cross_entropy(logits, labels)
    with torch.no_grad():
        torch.testing.assert_close(cross_entropy(logits, labels, 0.0), expected)
