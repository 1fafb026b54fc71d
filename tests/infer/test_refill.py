"""Batches that are refilled: an input's result does not depend on when it came, or beside what."""

import contextlib
import dataclasses
import functools
import json
import logging
import operator

import jax
import numpy as np
import pytest
import tiers
from infer_fakes import LINES, Digits, files_of, records_of
from machine import need_devices
from same_texts import check_equal

import decoding_jax
from decoding_jax import Constraints, Stop, infer, loop, transforms
from decoding_jax.batches import RowDecoder, parse
from decoding_jax.models import confident, guided
from decoding_jax.strategies.speculative import Assistant, Measured, PromptLookup
from decoding_jax.testing import TableLM
from decoding_jax.testing.certificate.strategies import DRAFTS
from decoding_jax.testing.table_head import TableAssistant, TableHead
from decoding_jax.text import completions

COUNT = 17
MODEL = TableLM.random(jax.random.key(0), 7, sharpness=2.0, zeros=0.1)
DRAFT = TableLM.random(jax.random.key(1), 7, sharpness=2.0)
DRAWN = np.random.default_rng(0)
IDS = [DRAWN.integers(1, 7, 1 + i % 5).tolist() for i in range(COUNT)]
TEMPERATURES = DRAWN.uniform(0.5, 1.5, COUNT).astype(np.float32)
LIMITS = DRAWN.integers(1, 7, COUNT)

LANGUAGE = transforms.prefix_allowed_tokens(
    transforms.Trie.from_sequences([(1,), (2, 3), (4, 1, 5), (4, 6), (5, 5, 2)], eos_ids=0)
)
# Of each input, by the number of tokens that it may have.
BUDGET = transforms.thinking_budget((3,), (4, 1), max_tokens=LIMITS % 3, then=(5,))
THINKING = {"transform": transforms.chain(transforms.temperature(TEMPERATURES), BUDGET)}
STRATEGIES = {
    "greedy": {},
    "sample": {"num_samples": 3},
    "arithmetic_sample": {"num_samples": 3, **THINKING},
    "several codes": {"num_samples": 3, "order": "probability", "after": "lattice"},
    "beam_search": {"beam_size": 3, "length_penalty": TEMPERATURES},
    "beam_sample": {"beam_size": 3},
    "diverse_beam_search": {"beam_size": 4, "num_groups": 2},
    "stochastic_beam_search": {"beam_size": 3},
    "conditional_sample": {"num_samples": 2, "language": LANGUAGE},
    "smc_sample": {"num_samples": 3, "language": LANGUAGE, "ess_threshold": TEMPERATURES / 2},
    "power_sample": {"num_samples": 3, "alpha": 2 * TEMPERATURES},
    "metropolis_sample": {"num_samples": 2, "num_steps": 1, "block_size": 3},
    "constrained_beam_search": {"beam_size": 3, "constraints": Constraints(phrases=((3, 1),))},
    "beam_search_with_phrases": {"beam_size": 3, "phrases": ((3, 1),), "tokenizer": Digits()},
    "contrastive_search": {"penalty_alpha": TEMPERATURES / 2, "top_k": 3},
    "best_k_search": {"k": 2, "budget": 8, "num_return": 2},
    "best_first_search": {"budget": 8, "num_return": 2, "gamma": TEMPERATURES / 2},
    "token": {"num_draft_tokens": 2, "num_samples": 2, "verifier": "token", **THINKING},
    "block": {"num_draft_tokens": Measured(3), "verifier": "block"},
    "greedy verifier": {"num_draft_tokens": 2, "verifier": "greedy"},
    "gumbel": {"num_draft_tokens": 2, "verifier": "gumbel"},
    "code": {"num_draft_tokens": 2, "num_samples": 2, "verifier": "code"},
    "tree": {"num_draft_tokens": 2, "num_drafts": 2},
    "tree by block": {"num_draft_tokens": 2, "num_drafts": 2, "verifier": "block"},
    "tree by row": {"num_draft_tokens": 2, "num_drafts": 3, "drafts_by_row": LIMITS % 3 + 1},
    "dynamic tree": {"num_draft_tokens": 2, "num_drafts": 2, "tree": "dynamic", "tree_size": 3},
    "lookup": {"num_draft_tokens": 2},
    "eagle": {"num_draft_tokens": 2, "num_samples": 2},
    "assistant": {"num_draft_tokens": 2, "num_samples": 2},
}
DRAFTERS = {
    "lookup": PromptLookup(),
    "eagle": DRAFTS["eagle, 3"].make(MODEL),
    "assistant": Assistant(TableAssistant(TableHead(MODEL, DRAFT, np.arange(7, dtype=np.int32)))),
}
# Speculation has all that a row brings: its draws, its budget of thoughts, and its draft.
SHOWN = ("beam_search",)
EXHAUSTIVE = ("token",)
every = pytest.mark.parametrize(
    "name",
    tiers.values(
        *SHOWN,
        exhaustive=EXHAUSTIVE,
        release=[name for name in STRATEGIES if name not in SHOWN + EXHAUSTIVE],
    ),
)


def make_decoder(name, batch_size=4, *, model=MODEL, devices=1, refill=True, **settings_of_decoder):
    """A decoder of a strategy whose temperatures and limits differ from input to input."""
    settings = {
        "max_new_tokens": 6,
        "transform": transforms.temperature(TEMPERATURES),
        **STRATEGIES[name],
    }
    if name.startswith("best"):
        del settings["transform"]
    drafts = "num_draft_tokens" in settings
    module = infer if name in infer.__all__ else decoding_jax
    named = {"several codes": "arithmetic_sample"}.get(name, name)
    function = getattr(module, "speculative_sample" if drafts else named)
    call = parse(
        model,
        functools.partial(function, **settings),
        {"stop": Stop(eos_ids=(0,), max_new_tokens=LIMITS)},
        key=jax.random.key(5),
        drafter=DRAFTERS.get(name, DRAFT) if drafts else None,
    )
    decoder = RowDecoder(
        call,
        batch_size=batch_size,
        devices=jax.devices()[:devices],
        refill=refill,
        **settings_of_decoder,
    )
    decoder.prepare(8)
    decoder.inputs.expect(COUNT)
    return decoder


def decode(decoder, order=range(COUNT), widths=(8,), with_info=False):
    """The completions of every input by its index, decoded in this order at each width."""
    found = {}
    by_width = {
        width: [n for n, i in enumerate(order) if least < len(IDS[i]) <= width]
        for least, width in zip((0, *widths), widths, strict=False)
    }
    widest_first = dict(reversed(by_width.items()))
    for members, output in decoder.decode([IDS[i] for i in order], list(order), widest_first):
        output = output if with_info else output._replace(info=None)
        made = completions(Digits(), output, len(members), [IDS[order[m]] for m in members])
        found.update({order[m]: of_input for m, of_input in zip(members, made, strict=True)})
    assert len(found) == len(order)
    return [found[i] for i in sorted(found)]


@pytest.mark.release
@every
def test_an_input_has_the_result_of_a_batch_that_is_not_refilled(name):
    expected = decode(make_decoder(name, refill=False))
    decoder = make_decoder(name)
    assert decoder.group_size == 2
    check_equal(decode(decoder), expected)
    assert decoder.batches == -(-COUNT // 2)
    assert 0 < decoder.row_steps.waste < 0.5


@every
def test_the_order_of_inputs_changes_no_bit(name):
    decoder = make_decoder(name)
    whole = decode(decoder)
    shuffled = np.random.default_rng(1).permutation(COUNT).tolist()
    assert decode(decoder, shuffled) == whole
    assert decode(decoder, shuffled[:6]) == [whole[i] for i in sorted(shuffled[:6])]
    assert (
        len(decoder.compilations) == 2
    )  # of the whole job, most inputs fit into half of the width


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "name",
    tiers.values(
        "greedy",
        release=[name for name in STRATEGIES if name != "greedy"],
    ),
)
def test_inputs_of_all_widths_share_a_batch(name):
    """The widest begin; each is prefilled at its own width, and the batch narrows as they end."""
    expected = decode(make_decoder(name, refill=False))
    decoder = make_decoder(name)
    assert decoder.together == 32 * 4
    found = decode(decoder, widths=(1, 3, 5))
    check_equal(found, expected)
    assert len(decoder.compilations) == 3
    steps = decoder.row_steps.taken
    shuffled = np.random.default_rng(1).permutation(COUNT).tolist()
    assert decode(decoder, shuffled, widths=(1, 3, 5)) == found
    apart = make_decoder(name, independent=True)
    assert apart.together is None
    check_equal(decode(apart, widths=(1, 3, 5)), expected)
    assert steps < apart.row_steps.taken


@pytest.mark.release
@pytest.mark.parametrize(
    "name",
    tiers.values(
        exhaustive=["sample", "token"],
        release=[name for name in STRATEGIES if name not in ("sample", "token")],
    ),
)
def test_a_batch_gets_fewer_rows_as_its_last_inputs_end(name):
    """It has 8 rows and, once 4 or fewer inputs are left, 4; these may be any inputs."""
    decoder = make_decoder(name, 8)
    expected = decode(make_decoder(name, 8, refill=False))
    found = decode(decoder)
    check_equal(found, expected)
    assert len(decoder.compilations) == 2  # 8 rows, and 4
    steps = decoder.row_steps
    shuffled = np.random.default_rng(1).permutation(COUNT).tolist()
    assert decode(decoder, shuffled) == found
    whole = make_decoder(name, 8, independent=True)
    check_equal(decode(whole), expected)
    assert whole.row_steps.used == steps.used
    assert whole.row_steps.taken > steps.taken
    few = decoder.row_steps
    check_equal(decode(decoder, [3, 5, 7]), [expected[i] for i in (3, 5, 7)])
    assert (decoder.row_steps.taken - few.taken) % 4 == 0
    longest = 15 if name == "metropolis_sample" else 6
    assert decoder.row_steps.taken - few.taken <= 4 * longest  # they begin in 4 rows


@pytest.mark.release
@pytest.mark.parametrize("batch_size", tiers.values(exhaustive=[8], release=[2, 3]))
def test_any_number_of_rows_gives_the_same(batch_size):
    expected = decode(make_decoder("arithmetic_sample", 4))
    decoder = make_decoder("arithmetic_sample", batch_size)
    assert decoder.group_size == {2: 1, 3: 1, 8: 4}[batch_size]
    check_equal(decode(decoder), expected)


@pytest.mark.release
@pytest.mark.parametrize("name", ["sample", "beam_search"])
def test_rows_that_are_spread_over_devices_give_the_same(name):
    need_devices(4)
    expected = decode(make_decoder(name, 8))
    decoder = make_decoder(name, 8, devices=4)
    assert decoder.group_size == 4
    check_equal(decode(decoder), expected)


COUNTED = ("token", "tree by block", "best_k_search", "smc_sample")


@pytest.mark.release
@pytest.mark.parametrize(
    "name",
    tiers.values(exhaustive=COUNTED, release=[name for name in STRATEGIES if name not in COUNTED]),
)
def test_the_info_of_a_row_is_its_own(name):
    """Counters too: each is that of the input decoded alone."""
    alone = decode(make_decoder(name, 1, refill=False), with_info=True)
    refilled = decode(make_decoder(name), list(range(COUNT))[::-1], with_info=True)
    for row, expected in zip(refilled, alone, strict=True):
        for completion, other in zip(row, expected, strict=True):
            for key, value in other.info._asdict().items():
                # An iteration drafts for the row that needs most; a trace is not asked for.
                if key not in ("draft_calls", "trace"):
                    np.testing.assert_allclose(getattr(completion.info, key), value, rtol=2e-6)
        if name == "token":
            made = sum(c.info.emitted for c in row)
            assert made == sum(max(len(c.tokens) - 1, 0) for c in row)


@pytest.mark.release
def test_steps_that_are_not_wasted_are_those_that_inputs_need():
    """The steps that are not wasted are those that the inputs need."""
    decoder = make_decoder("sample", 2)
    made = decode(decoder)
    steps = sum(max(len(c.tokens) for c in row) - 1 for row in made)
    assert decoder.row_steps.used == steps


@pytest.mark.exhaustive
def test_what_cannot_be_refilled_is_decoded_in_batches(table, caplog):
    caplog.set_level(logging.INFO, "decoding_jax")

    def own(model, prompt, *, stop):
        return decoding_jax.greedy(model, prompt, max_new_tokens=2, stop=stop)

    @decoding_jax.pytree
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Together(decoding_jax.Greedy):
        refills = False

    model, tokenizer = table
    lockstep = model.lockstep()
    greedy = functools.partial(decoding_jax.greedy, max_new_tokens=2)
    for net, strategy, reason in (
        (model, own, "the strategy is a function of your own"),
        (
            model,
            functools.partial(loop.as_function(Together), max_new_tokens=2),
            "the strategy does not say when a single row is done",
        ),
        (lockstep, greedy, "the model's rows advance in step (ragged=False)"),
    ):
        caplog.clear()
        made = []
        items = [infer.Item(line) for line in LINES]
        infer.run((net, tokenizer), items, strategy, report=made.append, max_input_length=16)
        assert [r["index"] for r in made] == list(range(len(LINES)))
        lines = [m for m in caplog.messages if "refilled" in m]
        assert lines == [f"batches are not refilled: {reason}"]


@pytest.mark.parametrize("model", ["table", pytest.param("network", marks=pytest.mark.release)])
def test_a_killed_job_ends_with_the_same_bytes(model, request, tmp_path):
    """Shards that share a batch are decoded together again, unless all of them are written."""
    net = request.getfixturevalue("table" if model == "table" else "byte_t5")
    net = net if model == "table" else decoding_jax.load(net)
    items = [infer.Item(LINES[i % 6], id=i) for i in range(20)]
    greedy = functools.partial(decoding_jax.greedy, max_new_tokens=4)

    def run(name, killed_after=None):
        reported = []

        def report(record):
            reported.append(record)
            if len(reported) == killed_after:
                raise KeyboardInterrupt

        settings = {"batch_size": 2, "shard_size": 3, "max_input_length": 16, "buckets": [4]}
        with pytest.raises(KeyboardInterrupt) if killed_after else contextlib.nullcontext():
            summary = infer.run(net, items, greedy, tmp_path / name, report, **settings)
            assert (summary.inputs, summary.compilations) == (20, 2)
            assert len(reported) == 20 - 3 * summary.finished_before
        return files_of(tmp_path / name)

    whole = run("whole")
    assert [record["id"] for record in records_of(whole)] == list(range(20))
    assert json.loads(whole["job.json"])["shards_together"] == -(-8 * 32 // 3)
    assert 1 < len(run("killed", killed_after=5)) < len(whole)
    assert run("killed") == whole


# Each ends where the mean of so many confidences is below its threshold.
CONFIDENT = confident(
    MODEL, 0, TEMPERATURES + 0.5, window=(LIMITS % 3 + 1).astype(np.int32), num_tokens=2
)
GUIDED = guided(DRAFT, 1.5, [[1 + i % 6] * (1 + i % 3) for i in range(COUNT)])


@pytest.mark.release
@pytest.mark.parametrize(
    "model", [pytest.param(GUIDED, id="guided"), pytest.param(CONFIDENT, id="confident")]
)
def test_a_model_has_its_own_values_for_each_input(model):
    """In refilled batches of all widths, in any order, as for each input alone."""
    by_row = make_decoder("sample", model=model)
    alone = make_decoder("sample", 1, model=model, refill=False)
    assert by_row.group_size is not None
    found = decode(alone)
    assert decode(by_row, widths=(2, 8)) == found
    shuffled = np.random.default_rng(1).permutation(COUNT).tolist()
    assert decode(by_row, shuffled, widths=(2, 8)) == found


@pytest.mark.exhaustive
def test_jobs_and_streams_end_texts_that_are_not_confident():
    """By the threshold and the window of each text, as ``generate`` does for it alone."""
    settings = {"num_samples": 2, "max_new_tokens": 6}
    texts = ["".join(map(str, ids)) for ids in IDS]
    keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(5), np.arange(COUNT))
    call = {"strategy": "sample", **settings}

    def tokens_of(found):
        return [[completion.tokens for completion in row] for row in found]

    alone = decoding_jax.generate(CONFIDENT, Digits(), texts, key=keys, batch_size=1, **call)
    expected = tokens_of(alone)
    whole = decoding_jax.generate(MODEL, Digits(), texts, key=keys, **call)
    assert sum(map(operator.ne, expected, tokens_of(whole))) > 3
    *_, last = decoding_jax.stream(CONFIDENT, Digits(), texts, key=keys, chunk=2, **call)
    assert tokens_of(last) == expected
    made = []
    sample = functools.partial(decoding_jax.sample, **settings)
    items = [infer.Item(text) for text in texts]
    options = {"seed": 5, "batch_size": 4, "max_input_length": 8, "with_tokens": True}
    infer.run((CONFIDENT, Digits()), items, sample, report=made.append, **options)
    assert [[output["tokens"] for output in record["outputs"]] for record in made] == expected
