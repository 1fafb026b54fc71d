"""The job as a function: order, faults, buckets, settings."""

import dataclasses
import functools
import json
import logging

import gin.config as gin
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from infer_fakes import LINES, draw, records_of
from machine import need_devices

import decoding_jax
from decoding_jax import Prompt, Stop, infer, models, transforms
from decoding_jax.batches import RowDecoder, parse
from decoding_jax.batches.decoder import SeparateBatches
from decoding_jax.infer.command import register_names
from decoding_jax.loop.forms import as_strategy
from decoding_jax.sharding.rules import as_mesh
from decoding_jax.text import completions


def test_records_are_those_of_the_strategy_itself(table, decode):
    sample = functools.partial(decoding_jax.sample, num_samples=3, max_new_tokens=4)
    made = records_of(decode(LINES, strategy=sample, seed=7, with_tokens=True))
    model, tokenizer = table
    for i, (line, record) in enumerate(zip(LINES, made, strict=True)):
        ids = tokenizer.encode(line)
        prompt = Prompt(np.array([ids + [0] * (16 - len(ids))]), np.array([len(ids)]))
        key = jax.random.fold_in(jax.random.key(7), i)[None]
        alone = jax.device_get(sample(model, prompt, key, stop=Stop(eos_ids=0)))
        assert (record["index"], record["inputs"], record["seed"]) == (i, line, 7)
        for n, output in enumerate(record["outputs"]):
            tokens = alone.tokens[0, n, : alone.length[0, n]].tolist()
            assert output["tokens"] == tokens
            assert output["text"] == tokenizer.decode(tokens)
            assert output["finished"] == bool(alone.finished[0, n])
            assert np.float32(output["log_prob"]) == alone.log_prob[0, n]
            assert np.float32(output["score"]) == alone.score[0, n]
        ranked = sorted(record["outputs"], key=lambda o: o["rank"])
        assert [o["rank"] for o in ranked] == [1, 2, 3]
        assert ranked[0]["score"] >= ranked[1]["score"] >= ranked[2]["score"]


@pytest.mark.parametrize(
    "settings",
    [
        {"buckets": [2, 3, 5]},
        {"buckets": []},
        {"batch_size": 16, "max_input_length": 7},
        {"shard_size": 2},
        {"devices": 8, "batch_size": 3},
    ],
)
def test_records_do_not_depend_on_batches_buckets_or_shards(decode, settings):
    assert records_of(decode(LINES, **settings)) == records_of(decode(LINES, "as usual"))


@pytest.mark.exhaustive
def test_rows_are_spread_over_the_devices_and_weights_are_on_each(byte_t5):
    """A T5 also gives the same results on eight devices as on one."""
    need_devices(8)
    model, tokenizer = decoding_jax.load(byte_t5)
    greedy = {"max_new_tokens": 2, "stop": Stop(eos_ids=1)}
    ids = [tokenizer.encode(text) for text in ("one", "two", "three")]
    made = []
    for count in (1, 8):
        decoder = RowDecoder(
            parse(model, "greedy", greedy), batch_size=3, devices=jax.devices()[:count]
        )
        assert decoder.batch_size == {1: 3, 8: 8}[count]
        _, bound, prompt, _ = decoder.inputs.make(ids, [0, 1, 2], None, 16, decoder.batch_size)
        rows = [bound.source, bound.source_length, *prompt]
        assert all(x.sharding.is_fully_replicated for x in jax.tree.leaves(bound.params))
        assert all(len(jnp.asarray(x).sharding.device_set) == count for x in rows)
        assert count == 1 or not any(x.sharding.is_fully_replicated for x in rows)
        [(_, output)] = decoder.decode(ids, [0, 1, 2], {16: range(3)})
        made.append(completions(tokenizer, output, 3))
    for [one], [eight] in zip(*made, strict=True):
        assert one.tokens == eight.tokens
        assert abs(one.log_prob - eight.log_prob) < 1e-4


@pytest.mark.release
def test_a_model_on_a_mesh_decodes_the_same(byte_t5):
    model, tokenizer = decoding_jax.load(byte_t5)
    sharded, _ = decoding_jax.load(byte_t5, mesh={"data": 4, "model": 1}, scan_layers=True)
    greedy = {"max_new_tokens": 2, "stop": Stop(eos_ids=1)}
    ids = [tokenizer.encode(text) for text in ("one", "two", "three")]
    made = []
    for each in (model, sharded):
        decoder = RowDecoder(parse(each, "greedy", greedy), batch_size=3, devices=jax.devices()[:1])
        assert decoder.batch_size == (4 if each is sharded else 3)
        [(_, output)] = decoder.decode(ids, [0, 1, 2], {16: range(3)})
        made.append(completions(tokenizer, output, 3))
    assert [[c.tokens for c in row] for row in made[0]] == [
        [c.tokens for c in row] for row in made[1]
    ]


def test_meshes_of_several_processes(byte_t5, tmp_path, monkeypatch):
    """A mesh that fits into a process is made of its devices; a larger one is of all processes."""
    need_devices(8)
    model = decoding_jax.load(byte_t5, mesh={"data": 2, "model": 1})
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    line = r"^model: expected a mesh of at most 8 .* got one on 2 devices of 1 of 2 processes$"
    with pytest.raises(ValueError, match=line):
        infer.run(model, [infer.Item("one")], decoding_jax.greedy, tmp_path)
    with pytest.raises(
        ValueError, match=r"^model: expected .* got one on 2 devices of several processes, "
    ):
        infer.BatchDecoder(model, decoding_jax.greedy)
    monkeypatch.setattr(jax, "local_devices", lambda: jax.devices()[4:])
    monkeypatch.setattr(jax, "local_device_count", lambda: 4)
    assert set(as_mesh({"data": 2, "model": 1}).devices.flat) == set(jax.devices()[4:6])
    assert as_mesh({"data": 8}).devices.size == 8


def test_one_compilation_a_bucket_is_enough_and_is_logged(decode, caplog):
    caplog.set_level(logging.INFO, "decoding_jax")
    decode(LINES * 5, buckets=[4], shard_size=7)
    lines = [m for m in caplog.messages if m.startswith("compilation")]
    assert lines == [
        "compilation 1: 8 inputs of up to 16 tokens",
        "compilation 2: 8 inputs of up to 4 tokens",
    ]
    assert "inputs: 30, faulty: 0, batches: 10, compilations: 2" in caplog.messages[-1]


def test_faulty_inputs_are_recorded_and_counted_and_affect_no_others(decode, caplog):
    caplog.set_level(logging.INFO, "decoding_jax")
    broken = [*LINES[:2], "", "   ", "1" * 17, "one", *LINES[2:]]
    made = records_of(decode(broken))
    assert [r["index"] for r in made] == list(range(10))
    assert [r["inputs"] for r in made] == broken
    errors = {r["index"]: r["error"] for r in made if "error" in r}
    assert errors == {
        2: "empty",
        3: "empty",
        4: "too long: 17 tokens, of at most 16",
        5: "cannot be tokenized: invalid literal for int() with base 10: 'o'",
    }
    assert all(r["outputs"] == [] for r in made if "error" in r)
    assert all(len(r["outputs"]) == 3 for r in made if "error" not in r)
    counted = "faulty: 4 (cannot be tokenized: 1, empty: 2, too long: 1)"
    assert counted in caplog.messages[-2]
    # A second run reports the same counts, although it decodes nothing.
    decode(broken)
    assert counted in caplog.messages[-2]
    assert "batches: 0" in caplog.messages[-2]


def test_inputs_that_are_too_long_are_cut_where_that_is_wanted(decode):
    cut = decode([*LINES, "2" + "1" * 17], "cut", truncate=True)
    short = decode([*LINES, "1" * 16], "short", truncate=True)
    *same, long = records_of(cut)
    *others, whole = records_of(short)
    assert same == others
    assert long.pop("num_cut") == 2
    assert {**long, "inputs": whole["inputs"]} == whole


def test_a_shard_of_faults_alone(decode):
    assert [r["error"] for r in records_of(decode(["", ""]))] == ["empty", "empty"]


def test_ids_of_inputs_are_in_their_records(table):
    made = []
    items = [infer.Item("1", None, "a"), infer.Item("2"), infer.Item("", "empty", [3])]
    infer.run(table, items, draw, report=made.append, max_input_length=16)
    assert [r.get("id") for r in made] == ["a", None, [3]]
    assert [list(r)[:3] for r in made[:2]] == [
        ["index", "id", "inputs"],
        ["index", "inputs", "outputs"],
    ]


@pytest.mark.parametrize(
    ("stop", "ends"), [(None, [0]), (Stop(min_new_tokens=4), [0]), (Stop(eos_ids=(3, 4)), [3, 4])]
)
def test_end_tokens_are_the_tokenizers_unless_others_are_named(decode, stop, ends):
    seen = []

    def look(model, prompt, key, *, stop):
        seen.append(stop)
        return draw(model, prompt, key, stop=stop)

    decode(LINES, strategy=look, stop=stop)
    assert seen[0].eos_ids.tolist() == ends
    assert seen[0].min_new_tokens == (0 if stop is None else stop.min_new_tokens)


def test_records_are_reported_once_and_in_order(decode):
    seen = []
    decode(LINES, shard_size=4, report=seen.append)
    assert [r["index"] for r in seen] == list(range(6))
    decode(LINES, shard_size=4, report=seen.append)
    assert len(seen) == 6


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 0}, "batch_size: expected an int of 1 or more, got 0"),
        ({"shard_size": "3"}, "shard_size: expected an int of 1 or more, got '3'"),
        ({"max_input_length": 0}, "max_input_length: expected an int of 1 or more, got 0"),
        ({"buckets": [0]}, "buckets: expected widths of 1 and above, got .0."),
        ({"seed": -1}, "seed: expected a whole number from 0 to 4294967295, got -1"),
        ({"lines": []}, "source: expected at least one input, got none"),
    ],
)
def test_invalid_settings(decode, settings, message):
    with pytest.raises(ValueError, match=message):
        decode(**{"lines": LINES, **settings})


def test_a_model_too_small_for_the_buckets_is_an_error_before_decoding(table, tmp_path):
    model = dataclasses.replace(table[0], max_positions=10)
    strategy = functools.partial(decoding_jax.greedy, max_new_tokens=4)
    with pytest.raises(ValueError, match="10 positions"):
        infer.run((model, table[1]), [infer.Item("1")], strategy, tmp_path, max_input_length=16)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["model", "drafter", "language model"])
def test_inputs_longer_than_the_positions_are_an_error_before_decoding(table, name):
    """Otherwise an encoder would fail only when it meets such an input."""
    strategy, settings, model, drafter = decoding_jax.greedy, {"max_new_tokens": 1}, bart(8), None
    if name == "drafter":
        strategy, model, drafter = decoding_jax.speculative_sample, bart(16), bart(8)
        settings["num_draft_tokens"] = 2
    if name == "language model":
        model = dataclasses.replace(table[0], max_positions=8)
    kind = "drafter" if drafter else "model"
    message = f"max_input_length: expected at most 8, got 9: the {kind} has 8 positions"
    strategy = functools.partial(strategy, **settings)
    given = {"report": list, "max_input_length": 9, "drafter": drafter}
    with pytest.raises(ValueError, match=message):
        infer.run((model, table[1]), [infer.Item("1")], strategy, **given)


def bart(positions):
    config = models.BartConfig(7, 4, 2, 2, 8, 8, 1, 1, max_positions=positions)
    shapes = jax.eval_shape(lambda: models.Bart.init(config, jax.random.key(0)))
    return jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)


def test_neither_directory_nor_report(table):
    with pytest.raises(
        ValueError, match="output_dir: expected a path, or else a report, got neither"
    ):
        infer.run(table, [infer.Item("1")], decoding_jax.greedy)


def report_settings(model, prompt, *, stop, transform):
    """A strategy that outputs the temperature of the row as often as its maximum length allows."""
    tokens = jnp.asarray(transform.value).astype(jnp.int32)[:, None, None]
    length = jnp.asarray(stop.max_new_tokens)[:, None]
    none = jnp.zeros(length.shape, jnp.float32)
    return decoding_jax.DecodeOutput(jnp.tile(tokens, (1, 1, 3)), length, none, none, length > 0)


@pytest.mark.parametrize("devices", [1, 8])
def test_settings_with_a_value_for_each_input_follow_their_inputs(decode, devices):
    """This includes several shards, buckets, partial batches and several devices."""
    values, limits = [1, 2, 3, 4, 5, 6], [3, 2, 1, 1, 2, 3]
    lines = [*LINES[:2], "too long" + " 1" * 20, *LINES[3:]]
    made = records_of(
        decode(
            lines,
            devices=devices,
            strategy=functools.partial(report_settings, transform=transforms.temperature(values)),
            stop=Stop(max_new_tokens=limits),
            shard_size=4,
            batch_size=2,
            buckets=[2, 8],
            with_tokens=True,
        )
    )
    got = [output["tokens"] for record in made for output in record["outputs"]]
    assert got == [[v] * n for v, n in zip(values, limits, strict=True) if v != 3]


@pytest.mark.exhaustive
def test_a_strategy_may_be_an_object(decode):
    """Its fields are its settings, which may have one value for each input."""
    sample = decoding_jax.Sample
    settings = {"max_new_tokens": 3, "num_samples": 2}
    settings["transform"] = transforms.temperature(np.linspace(0.5, 3, 6, dtype=np.float32))
    found = decode(LINES, "object", strategy=sample(**settings))
    assert (
        "Sample(max_new_tokens=3, transform=Temperature("
        in json.loads(found["job.json"])["strategy"]
    )
    expected = decode(LINES, strategy=functools.partial(decoding_jax.sample, **settings))
    assert records_of(found) == records_of(expected)
    for wrong, message in (
        (sample(), "max_new_tokens: sample expected an int of 1 or more, got none"),
        (sample(max_new_tokens=3, stop=Stop(eos_ids=1)), "strategy: expected one without a stop"),
        (sample, "strategy: expected a function .* or an object .*, got the class Sample"),
    ):
        with pytest.raises(ValueError, match=message):
            decode(LINES, "wrong", strategy=wrong)


@pytest.mark.release
def test_the_drafter_of_an_object_is_that_of_the_job(table):
    model, _ = table
    speculative = decoding_jax.SpeculativeSample
    settings = {"num_draft_tokens": 2, "max_new_tokens": 4, "verifier": "greedy"}
    items, given = [infer.Item(line) for line in LINES], {"max_input_length": 16, "batch_size": 4}
    made, expected = [], []
    strategy = speculative(drafter=model, **settings)
    infer.run(table, items, strategy, report=made.append, **given)
    strategy = functools.partial(decoding_jax.speculative_sample, **settings)
    infer.run(table, items, strategy, report=expected.append, drafter=model, **given)
    assert made == expected
    with pytest.raises(ValueError, match="drafter: expected none beside that of the strategy"):
        infer.run(table, items, speculative(drafter=model, **settings), report=print, drafter=model)


def test_another_number_of_values_than_inputs_is_refused(decode):
    strategy = functools.partial(report_settings, transform=transforms.temperature([1, 2, 3]))
    words = (
        "transform.value: expected one value for all, or one for each of the 6 texts, got values"
    )
    with pytest.raises(ValueError, match=words):
        decode(LINES, strategy=strategy, stop=Stop(max_new_tokens=[1] * 6))


def test_settings_are_found_where_gin_has_bound_them():
    register_names()
    with gin.unlock_config():
        gin.parse_config(
            "decoding_jax.sample.transform = @decoding_jax.transforms.temperature()\n"
            "decoding_jax.transforms.temperature.value = [1, 2]\n"
        )
        try:
            bound = as_strategy(gin.get_configurable("decoding_jax.sample"), {"max_new_tokens": 2})
        finally:
            gin.clear_config()
    assert bound.transform.value.tolist() == [1, 2]


def test_a_batch_that_does_not_fit_into_memory_is_one_line(table, monkeypatch):
    def decode(self, by_width, make):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory\nand a long list")
        yield

    monkeypatch.setattr(SeparateBatches, "decode", decode)
    items = [infer.Item("1 2 3")]
    with pytest.raises(ValueError) as error:
        infer.run(table, items, draw, report=list, batch_size=16, max_input_length=20)
    assert str(error.value) == (
        "batch_size: expected a smaller one, such as 8, or a MESH that spreads the model over more "
        "devices, got 16 inputs of up to 16 tokens, which do not fit into the memory of a device "
        "(RESOURCE_EXHAUSTED: Out of memory)"
    )
