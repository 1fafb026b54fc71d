"""The results of ``generate`` and ``stream``: the last item, ``info``, and the ends of texts."""

import functools
import io
import sys

import jax
import numpy as np
import pytest
from text_fakes import TABLE, Digits, Halves
from tqdm import tqdm

import decoding_jax
from decoding_jax import Stop, infer, loop, transforms
from decoding_jax.infer.sources import Item
from decoding_jax.loop import streaming
from decoding_jax.strategies.speculative.stages import Info
from decoding_jax.text import Completion

TEXTS = ["1 2 3", "4"]
NO_ENDS = Stop(eos_ids=())


@pytest.mark.exhaustive
def test_the_last_item_of_a_stream_is_what_generate_returns():
    """Earlier items leave out an incomplete character at the end of a text."""
    real = transforms.allowed_tokens(range(1, 7))
    settings = {"max_new_tokens": 5, "stop": NO_ENDS, "transform": real}
    want = decoding_jax.generate(TABLE, Halves(), TEXTS, **settings)
    *early, last = decoding_jax.stream(TABLE, Halves(), TEXTS, **settings)
    for [a], [b] in zip(want, last, strict=True):
        assert (a.text, a.tokens, a.finished) == (b.text, b.tokens, b.finished)
        assert a.log_prob == pytest.approx(b.log_prob, abs=2e-6)
        assert a.info == b.info
    assert any(row[0].text.endswith("\ufffd") for row in last)
    assert not any(row[0].text.endswith("\ufffd") for item in early for row in item)


@pytest.mark.release
def test_a_stream_compiles_nothing_after_its_first_item():
    settings = {"strategy": "sample", "num_samples": 3, "max_new_tokens": 7, "stop": NO_ENDS}
    items = decoding_jax.stream(TABLE, Digits(), TEXTS, key=jax.random.key(0), **settings)
    next(items)
    _, advance = streaming.programs_of(decoding_jax.Sample)
    before = advance.cache_size()
    *_, last = items
    assert advance.cache_size() == before > 0
    assert advance.__name__ == "advance_sample"
    assert [len(c.tokens) for row in last for c in row] == [7] * 6


@pytest.mark.release
def test_completions_have_the_info_of_their_strategy():
    """Each sequence has its weight and each text its threshold, for any batch size."""
    settings = {"strategy": "stochastic_beam_search", "beam_size": 3, "max_new_tokens": 3}
    settings["key"] = jax.random.key(1)
    rows = decoding_jax.generate(TABLE, Digits(), ["1", "2 3 4", "5 6"], batch_size=2, **settings)
    for row in rows:
        assert len({float(c.info.threshold) for c in row}) == 1
        # Without a transform, the distribution that is drawn from is the model's own.
        weights = [c.info.sampling_log_prob for c in row]
        np.testing.assert_allclose(weights, [c.log_prob for c in row], atol=1e-5)
    assert len({float(row[0].info.threshold) for row in rows}) == 3


@pytest.mark.release
def test_completions_have_the_counts_of_a_speculation():
    settings = {"strategy": "speculative_sample", "drafter": TABLE, "num_draft_tokens": 2}
    settings |= {"num_samples": 2, "max_new_tokens": 4, "stop": NO_ENDS}
    rows = decoding_jax.generate(TABLE, Digits(), TEXTS, key=jax.random.key(0), **settings)
    assert [[c.info.emitted for c in row] for row in rows] == [[3, 3], [3, 3]]
    assert all(c.info.acceptance_rate == 1 for row in rows for c in row)


@pytest.mark.parametrize(
    ("stop", "ends"),
    [(None, [0]), (Stop(min_new_tokens=2), [0]), (Stop(eos_ids=3), [3]), (NO_ENDS, [])],
)
def test_end_tokens_are_the_tokenizers_unless_others_are_named(monkeypatch, stop, ends):
    seen, none = [], np.zeros((1, 1), np.int32)

    def look(*args, stop, **settings):
        seen.append(stop)
        return decoding_jax.DecodeOutput(none[..., None], none, none, none, none)

    monkeypatch.setattr(
        "decoding_jax.text.streaming.in_steps",
        lambda call, chunk: iter([loop.Progress(look(stop=call.strategy.stop), none, True)]),
    )
    settings = {"max_new_tokens": 1, "stop": stop}
    decoding_jax.generate(TABLE, Digits(), ["1 2"], strategy=look, **settings)
    list(decoding_jax.stream(TABLE, Digits(), ["1 2"], **settings))
    assert [s.eos_ids.tolist() for s in seen] == [ends, ends]
    assert all(s.min_new_tokens == (0 if stop is None else stop.min_new_tokens) for s in seen)


@pytest.mark.release
def test_greedy_verification_needs_no_key_by_any_door():
    settings = {"strategy": "speculative_sample", "drafter": TABLE, "verifier": "greedy"}
    settings |= {"num_draft_tokens": 2, "max_new_tokens": 4, "stop": NO_ENDS}
    want = decoding_jax.generate(TABLE, Digits(), TEXTS, max_new_tokens=4, stop=NO_ENDS)
    *_, streamed = decoding_jax.stream(TABLE, Digits(), TEXTS, **settings)
    with_limit = decoding_jax.generate(TABLE, Digits(), TEXTS, max_time=60, **settings)
    for got in (decoding_jax.generate(TABLE, Digits(), TEXTS, **settings), streamed, with_limit):
        assert [row[0].tokens for row in got] == [row[0].tokens for row in want]
    # Neither strings nor a batch: the strategy itself.
    settings = {"verifier": "greedy", "num_draft_tokens": 2, "max_new_tokens": 4}
    prompt = decoding_jax.Prompt([[1, 2, 3], [4, 0, 0]], [3, 1])
    direct = decoding_jax.speculative_sample(TABLE, TABLE, prompt, stop=NO_ENDS, **settings)
    assert direct.tokens[:, 0].tolist() == [row[0].tokens for row in want]


@pytest.mark.release
def test_a_completions_numbers_are_pythons():
    settings = {"strategy": "speculative_sample", "drafter": TABLE, "num_draft_tokens": 2}
    [[completion]] = decoding_jax.generate(
        TABLE, Digits(), ["12"], verifier="greedy", max_new_tokens=4, stop=NO_ENDS, **settings
    )
    assert "np." not in repr(completion)
    assert {type(value) for value in completion.info} <= {int, float, np.ndarray}


def test_what_is_printed_is_short():
    """A model without its weights, and a completion without long arrays."""
    model, _ = decoding_jax.load("translation-en-fr-draft")
    assert repr(model).startswith("T5(params=<")
    assert len(repr(model)) < 1000
    completion = Completion(
        "text", list(range(99)), -1.0, -1.0, True, {"widths": np.zeros((4, 64))}, None, np.ones(99)
    )
    assert repr(completion) == (
        "Completion(text='text', tokens=[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, ... "
        "99 in all], log_prob=-1.0, score=-1.0, finished=True, info=<an array of 256 numbers>, "
        "sample_log_prob=float64[99])"
    )


def test_rates_of_one_completion_are_those_of_its_counts():
    """A completion has plain numbers where an output has an array of all lanes."""
    counts = {"blocks": 3, "proposed": 6, "accepted": 3, "rejected": 1, "emitted": 5}
    by_depth = {"proposed_by_depth": np.array([3, 3]), "accepted_by_depth": np.array([2, 1])}
    by_depth["accepted_by_draft"] = np.array([3])
    of_lane = Info(3, 3, **counts, **by_depth)
    of_all = Info(3, 3, *(np.asarray(count)[None, None] for count in of_lane[2:]))
    for name in ("acceptance_rate", "tokens_per_call", "tokens_per_iteration"):
        assert float(getattr(of_lane, name)) == float(getattr(of_all, name))
    assert float(of_lane.acceptance_rate) == 0.75
    for info in (of_lane, of_all):
        np.testing.assert_allclose(info.acceptance_by_depth, [2 / 3, 1 / 3], 1e-6)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_progress_bar_is_printed_on_terminals_and_can_be_turned_off(monkeypatch):
    def at_once(*args, **settings):
        return tqdm(*args, **{**settings, "delay": 0})

    monkeypatch.setattr(sys.modules["decoding_jax.text.generate"], "tqdm", at_once)
    settings = {"max_new_tokens": 2, "batch_size": 1}
    for file, more, shown in (
        (Terminal(), {}, True),
        (Terminal(), {"progress": False}, False),
        (io.StringIO(), {}, False),
    ):
        monkeypatch.setattr(sys, "stderr", file)
        decoding_jax.generate(TABLE, Digits(), TEXTS, **settings, **more)
        assert ("decoding:" in file.getvalue()) == shown


@pytest.mark.exhaustive
def test_completions_and_records_have_the_log_probabilities_of_draws():
    """The job's key of an input is not that of ``generate``, but the figures are of one kind."""
    settings = {"num_samples": 3, "max_new_tokens": 4, "with_sample_log_prob": True}
    settings["transform"] = transforms.top_k(1)  # whose tokens are certain
    [row] = decoding_jax.generate(
        TABLE, Digits(), ["12"], strategy="sample", key=jax.random.key(0), **settings
    )
    assert [c.sample_log_prob.tolist() for c in row] == [[0.0] * len(c.tokens) for c in row]
    found = []
    infer.run(
        (TABLE, Digits()),
        [Item("12")],
        functools.partial(decoding_jax.sample, **settings),
        report=found.append,
        batch_size=1,
        max_input_length=16,
        with_num_tokens=True,
    )
    for output in found[0]["outputs"]:
        assert output["sample_log_probs"] == [0.0] * output["num_tokens"]
