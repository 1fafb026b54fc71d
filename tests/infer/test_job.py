"""The job as a function: order, faults, buckets, shards, and being killed."""

import dataclasses
import functools
import itertools
import json
import logging
import os

import gin.config as gin
import jax
import jax.numpy as jnp
import pytest
from infer_fakes import draw, files_of

import decoding_jax
from decoding_jax import Prompt, Stop, infer, transforms
from decoding_jax.infer import gin_names, job
from decoding_jax.infer.decoder import Decoder

LINES = ["1 2 3", "4", "5 6 1 2 3 4 5", "2 2", "6 5 4 3 2 1", "3 3 3"]


def records(files):
    names = sorted(n for n in files if n.endswith(".jsonl"))
    return [json.loads(line) for n in names for line in files[n].decode().splitlines()]


def test_records_are_those_of_the_strategy_itself(table, decode):
    sample = functools.partial(decoding_jax.sample, num_samples=3, max_new_tokens=4)
    made = records(decode(LINES, devices=8, strategy=sample, seed=7, with_tokens=True))
    model, tokenizer = table
    for i, (line, record) in enumerate(zip(LINES, made, strict=True)):
        ids = tokenizer.encode(line)
        prompt = Prompt(jnp.array([ids + [0] * (16 - len(ids))]), jnp.array([len(ids)]))
        key = jax.random.fold_in(jax.random.key(7), i)[None]
        alone = sample(model, prompt, key, stop=Stop(eos_ids=0))
        assert (record["index"], record["inputs"], record["seed"]) == (i, line, 7)
        for n, output in enumerate(record["outputs"]):
            tokens = alone.tokens[0, n, : alone.length[0, n]].tolist()
            assert output["tokens"] == tokens
            assert output["text"] == tokenizer.decode(tokens)
            assert output["finished"] == bool(alone.finished[0, n])
            assert jnp.float32(output["log_prob"]) == alone.log_prob[0, n]
            assert jnp.float32(output["score"]) == alone.score[0, n]
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
    assert records(decode(LINES, **settings)) == records(decode(LINES, "as usual"))


def test_rows_are_spread_over_the_devices_and_weights_are_on_each(byte_t5):
    """And a T5 gives on eight devices what it gives on one."""
    model, tokenizer = decoding_jax.load(byte_t5)
    greedy = functools.partial(decoding_jax.greedy, max_new_tokens=2)
    given = {"stop": Stop(eos_ids=1), "seed": 0, "batch_size": 3}
    ids = [tokenizer.encode(text) for text in ("one", "two", "three")]
    made = []
    for count in (1, 8):
        decoder = Decoder(model, tokenizer, greedy, **given, devices=jax.devices()[:count])
        assert decoder.batch_size == {1: 3, 8: 8}[count]
        bound, prompt, index, *_ = decoder._batch(ids, [0, 1, 2], 16)
        rows = [bound.source, bound.source_length, *prompt, index]
        assert all(x.sharding.is_fully_replicated for x in jax.tree.leaves(bound.params))
        assert all(len(jnp.asarray(x).sharding.device_set) == count for x in rows)
        assert count == 1 or not any(x.sharding.is_fully_replicated for x in rows)
        made.append(decoder.finish(decoder.start(ids, [0, 1, 2], 16), ids))
    for [one], [eight] in zip(*made, strict=True):
        assert one.tokens == eight.tokens
        assert abs(one.log_prob - eight.log_prob) < 1e-4


def test_one_compilation_a_bucket_is_enough_and_is_logged(decode, caplog):
    caplog.set_level(logging.INFO, "decoding_jax")
    decode(LINES * 5, buckets=[4], shard_size=7)
    lines = [m for m in caplog.messages if m.startswith("compilation")]
    assert lines == [
        "compilation 1: 8 inputs of up to 16 tokens",
        "compilation 2: 8 inputs of up to 4 tokens",
    ]
    assert "inputs: 30, faulty: 0, batches: 10, compilations: 2" in caplog.messages[-1]


def test_faulty_inputs_are_marked_and_counted_and_cost_nothing_else(decode, caplog):
    caplog.set_level(logging.INFO, "decoding_jax")
    broken = [*LINES[:2], "", "   ", "1" * 17, "one", *LINES[2:]]
    made = records(decode(broken))
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
    assert counted in caplog.messages[-1]
    # Run again, the counts are the same, though nothing is decoded.
    decode(broken)
    assert counted in caplog.messages[-1]
    assert "batches: 0" in caplog.messages[-1]


def test_a_shard_of_faults_alone(decode):
    assert [r["error"] for r in records(decode(["", ""]))] == ["empty", "empty"]


class KilledError(Exception):
    pass


def test_a_job_killed_at_any_moment_ends_with_the_same_bytes(decode, monkeypatch):
    """Four files (the manifest and three shards), each before and after it gets its name."""
    whole = decode(LINES, "whole", shard_size=2)
    assert len(whole) == 4
    fsync = os.fsync
    for moment in range(8):
        calls = itertools.count()

        def interrupted(handle, moment=moment, calls=calls):
            if next(calls) == moment:  # a file's own fsync, then its directory's
                raise KilledError
            fsync(handle)

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", interrupted)
            with pytest.raises(KilledError):
                decode(LINES, f"killed {moment}", shard_size=2)
        assert decode(LINES, f"killed {moment}", shard_size=2) == whole


def test_finished_shards_are_not_decoded_again(decode, tmp_path):
    whole = decode(LINES, shard_size=2)
    shard = tmp_path / "out" / "decodes-00001-of-00003.jsonl"
    before = shard.stat().st_mtime_ns
    (tmp_path / "out" / "decodes-00000-of-00003.jsonl").unlink()
    assert decode(LINES, shard_size=2) == whole
    assert shard.stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"seed": 1}, "seed"),
        ({"lines": LINES[1:]}, "inputs"),
        ({"shard_size": 3}, "shard_size"),
        ({"stop": Stop(eos_ids=3)}, "stop"),
        ({"strategy": functools.partial(decoding_jax.greedy, max_new_tokens=2)}, "strategy"),
    ],
)
def test_a_directory_of_another_job_is_refused(decode, settings, named):
    before = decode(LINES)
    with pytest.raises(ValueError, match=rf"belongs to another job \(not the same: .*{named}"):
        decode(**{"lines": LINES, **settings})
    assert decode(LINES) == before


def test_a_directory_of_something_else_is_refused(decode, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("")
    with pytest.raises(ValueError, match=r"out holds thesis.tex but no job.json"):
        decode(LINES)
    with pytest.raises(ValueError, match=r"thesis.tex is a file; takes a directory"):
        decode(LINES, "out/thesis.tex")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data[:40] + bytes(20) + data[60:],
        lambda data: bytes(len(data)),
        lambda data: data[: data.index(b"\n") + 1],
        lambda data: data[:-1],
        lambda data: data * 2,
        lambda data: b"".join(reversed(data.splitlines(keepends=True))),
        lambda data: data.replace(b'"outputs"', b'"output"'),
        lambda data: data.replace(b'"5 6 ', b'"5 5 '),
        lambda data: b"",
    ],
)
def test_a_finished_shard_that_is_not_whole_is_decoded_again(decode, tmp_path, caplog, spoil):
    whole = decode(LINES, shard_size=2)
    name = "decodes-00001-of-00003.jsonl"
    (tmp_path / "out" / name).write_bytes(spoil(whole[name]))
    caplog.set_level(logging.INFO, "decoding_jax")
    caplog.clear()
    assert decode(LINES, shard_size=2) == whole
    [told] = [m for m in caplog.messages if m.endswith("; the shard is decoded again")]
    assert name in told
    assert "shards finished before: 2" in caplog.messages[-1]


@pytest.mark.parametrize(
    "edit",
    [
        lambda lines: [*lines[:3], "3 2", *lines[4:]],
        lambda lines: lines[:-1],
        lambda lines: [*lines, "1"],
        lambda lines: lines[:4],
        lambda lines: [*lines[:2], "", *lines[2:-1]],
    ],
)
def test_inputs_edited_under_a_job_are_noticed(table, tmp_path, edit):
    """Shards of before the edit are written, and no other."""
    passes = itertools.count()

    class Edited:
        def __iter__(self):
            lines = edit(LINES) if next(passes) else LINES
            return iter([infer.Item(line) for line in lines])

    given = {"output_dir": tmp_path, "batch_size": 2, "max_input_length": 16, "shard_size": 2}
    with pytest.raises(
        ValueError, match=r"^source: the inputs from index \d on are not the 6 that"
    ):
        infer.run(table, Edited(), draw, **given)
    infer.run(table, [infer.Item(line) for line in LINES], draw, **given)
    made = records(files_of(tmp_path))
    assert [r["inputs"] for r in made] == LINES


def test_another_environment_is_another_job(decode, monkeypatch):
    decode(LINES)
    with (
        jax.default_matmul_precision("highest"),
        pytest.raises(ValueError, match=r"not the same: jax\)"),
    ):
        decode(LINES)
    monkeypatch.setattr(job.manifest.jaxlib, "__version__", "0.0.1")
    with pytest.raises(ValueError, match=r"not the same: versions\)"):
        decode(LINES)


def test_ids_of_inputs_are_in_their_records(table):
    made = []
    items = [infer.Item("1", None, "a"), infer.Item("2"), infer.Item("", "empty", [3])]
    infer.run(table, items, draw, report=made.append, max_input_length=16)
    assert [r.get("id") for r in made] == ["a", None, [3]]
    assert [list(r)[:3] for r in made[:2]] == [
        ["index", "id", "inputs"],
        ["index", "inputs", "outputs"],
    ]


def test_the_bar_counts_skipped_shards_and_times_the_others(decode, tmp_path, monkeypatch):
    bars, first = [], []

    class Seen(job.progress.Bar):
        def skip(self, count):
            super().skip(count)
            first.append(self.n) if count >= 0 else None

        def close(self):
            if self.disable:  # closed before
                return
            bars.append((self.n, self.initial, self.format_dict["rate"]))
            super().close()

    monkeypatch.setattr(job.progress, "Bar", Seen)
    decode(LINES, shard_size=2)
    (tmp_path / "out" / "decodes-00001-of-00003.jsonl").unlink()
    decode(LINES, shard_size=2)
    (tmp_path / "out" / "decodes-00000-of-00003.jsonl").write_bytes(bytes(100))
    decode(LINES, shard_size=2)
    decode(LINES, shard_size=2)
    assert [bar[:2] for bar in bars] == [(6, 0), (6, 4), (6, 4), (6, 6)]
    assert [bar[2] is None for bar in bars] == [False, False, False, True]
    assert first == [0, 4, 6, 6]  # finished shards count from the start, wherever they are


def test_processes_share_the_shards(decode, monkeypatch):
    whole = decode(LINES, "whole", shard_size=2)
    monkeypatch.setattr(job.jax, "process_count", lambda: 2)
    monkeypatch.setattr(job.jax, "process_index", lambda: 1)
    assert set(decode(LINES, shard_size=2)) == {"job.json", "decodes-00001-of-00003.jsonl"}
    monkeypatch.setattr(job.jax, "process_index", lambda: 0)
    assert decode(LINES, shard_size=2) == whole


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


def test_records_are_reported_in_order_and_not_again(decode):
    seen = []
    decode(LINES, shard_size=4, report=seen.append)
    assert [r["index"] for r in seen] == list(range(6))
    decode(LINES, shard_size=4, report=seen.append)
    assert len(seen) == 6


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 0}, "batch_size: got 0; takes a whole number of 1 or more"),
        ({"shard_size": "3"}, "shard_size: got '3'; takes a whole number of 1 or more"),
        ({"max_input_length": 0}, "max_input_length: got 0; takes"),
        ({"buckets": [0]}, "buckets: got .0.; takes lengths of 1 and above"),
        ({"seed": -1}, "seed: got -1; takes 0 to"),
        ({"lines": []}, "source: got no inputs; takes at least one"),
    ],
)
def test_settings_that_do_not_serve(decode, settings, message):
    with pytest.raises(ValueError, match=message):
        decode(**{"lines": LINES, **settings})


def test_a_model_too_small_for_the_buckets_is_told_before_anything_is_decoded(table, tmp_path):
    model = dataclasses.replace(table[0], max_positions=10)
    strategy = functools.partial(decoding_jax.greedy, max_new_tokens=4)
    with pytest.raises(ValueError, match="10 positions"):
        infer.run((model, table[1]), [infer.Item("1")], strategy, tmp_path, max_input_length=16)
    assert list(tmp_path.iterdir()) == []


def test_neither_directory_nor_report(table):
    with pytest.raises(ValueError, match="output_dir: got None, and no report either"):
        infer.run(table, [infer.Item("1")], decoding_jax.greedy)


def tell(model, prompt, *, stop, transform):
    """A strategy whose one token is the row's temperature, and whose length is its limit."""
    tokens = jnp.asarray(transform.value).astype(jnp.int32)[:, None, None]
    length = jnp.asarray(stop.max_new_tokens)[:, None]
    none = jnp.zeros(length.shape, jnp.float32)
    return decoding_jax.DecodeOutput(jnp.tile(tokens, (1, 1, 3)), length, none, none, length > 0)


@pytest.mark.parametrize("devices", [1, 8])
def test_settings_with_a_value_for_each_input_follow_their_inputs(decode, devices):
    """Through shards, buckets, batches that are not full and rows spread over devices."""
    values, limits = [1, 2, 3, 4, 5, 6], [3, 2, 1, 1, 2, 3]
    lines = [*LINES[:2], "too long" + " 1" * 20, *LINES[3:]]
    made = records(
        decode(
            lines,
            devices=devices,
            strategy=functools.partial(tell, transform=transforms.temperature(values)),
            stop=Stop(max_new_tokens=limits),
            shard_size=4,
            batch_size=2,
            buckets=[2, 8],
            with_tokens=True,
        )
    )
    got = [output["tokens"] for record in made for output in record["outputs"]]
    assert got == [[v] * n for v, n in zip(values, limits, strict=True) if v != 3]


def test_another_number_of_values_than_inputs_is_refused(decode):
    strategy = functools.partial(tell, transform=transforms.temperature([1, 2, 3]))
    words = "transform.value: got values for 3 texts; takes one for all, or one for each of the 6"
    with pytest.raises(ValueError, match=words):
        decode(LINES, strategy=strategy, stop=Stop(max_new_tokens=[1] * 6))


def test_settings_are_found_where_gin_has_bound_them():
    gin_names.register()
    with gin.unlock_config():
        gin.parse_config(
            "decoding_jax.sample.transform = @decoding_jax.transforms.temperature()\n"
            "decoding_jax.transforms.temperature.value = [1, 2]\n"
        )
        try:
            bound = gin_names.bound_settings(gin.get_configurable("decoding_jax.sample"))
        finally:
            gin.clear_config()
    assert bound["transform"].value.tolist() == [1, 2]
