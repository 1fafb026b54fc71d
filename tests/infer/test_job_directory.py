"""The directory of a job: being killed, continued, refused, and shared by processes."""

import functools
import itertools
import json
import logging
import os

import jax
import pytest
import tiers
from infer_fakes import LINES, draw, files_of, record_of, records_of

import decoding_jax
from decoding_jax import Stop, infer
from decoding_jax.infer import job, merge
from decoding_jax.storage import CloudPath


class KilledError(Exception):
    pass


@pytest.mark.parametrize(
    ("place", "moments"),
    [
        # A file of a disk is synced, then renamed, and then its directory is synced.
        ("disk", range(0, 20, 2)),
        pytest.param("gs", range(10), marks=pytest.mark.release),
    ],
    indirect=["place"],
)
def test_a_job_killed_at_any_moment_ends_with_the_same_bytes(decode, moments, monkeypatch):
    """It has written each of the manifest, three shards and the summary, or it has not."""
    whole = decode(LINES, "whole", shard_size=2)
    assert len(whole) == 4
    for moment in moments:
        calls = itertools.count()

        def interrupted(write, moment=moment, calls=calls):
            def call(*args):
                if next(calls) == moment:
                    raise KilledError
                result = write(*args)
                if next(calls) == moment:
                    raise KilledError
                return result

            return call

        with monkeypatch.context() as patch:
            for owner, name in ((os, "fsync"), (CloudPath, "upload"), (CloudPath, "create")):
                patch.setattr(owner, name, interrupted(getattr(owner, name)))
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
    with pytest.raises(ValueError, match=r"out, which holds thesis.tex but no job.json"):
        decode(LINES)
    with pytest.raises(
        ValueError, match=r"output_dir: expected a directory, got the file .*thesis.tex"
    ):
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
        lambda data: data.replace(b'"text": "', b'"text": "1 ', 1),
        lambda data: data.replace(b"\n", b"\r\n"),
    ],
)
@pytest.mark.parametrize("place", tiers.values("disk", exhaustive=["gs"]), indirect=True)
def test_a_finished_shard_that_is_not_whole_is_decoded_again(decode, place, caplog, spoil):
    whole = decode(LINES, shard_size=2)
    name = "decodes-00001-of-00003.jsonl"
    (place / "out" / name).write_bytes(spoil(whole[name]))
    caplog.set_level(logging.INFO, "decoding_jax")
    caplog.clear()
    assert decode(LINES, shard_size=2) == whole
    [warning] = [m for m in caplog.messages if m.endswith("; the shard is decoded again")]
    assert name in warning
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
    """Only shards before the edit are written."""
    passes = itertools.count()

    class Edited:
        def __iter__(self):
            lines = edit(LINES) if next(passes) else LINES
            return iter([infer.Item(line) for line in lines])

    given = {"output_dir": tmp_path, "batch_size": 2, "max_input_length": 16, "shard_size": 2}
    with pytest.raises(
        ValueError,
        match=r"^source: expected the same items .* got others from index \d on than the 6 that",
    ):
        infer.run(table, Edited(), draw, **given)
    infer.run(table, [infer.Item(line) for line in LINES], draw, **given)
    made = records_of(files_of(tmp_path))
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


def test_the_bar_counts_skipped_shards_and_times_the_others(decode, tmp_path, monkeypatch):
    bars, first = [], []

    class Seen(job.progress.Bar):
        def skip(self, count):
            super().skip(count)
            first.append(self.n) if count >= 0 else None

        def close(self):
            if self.disable:  # The bar is closed already.
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
    assert first == [0, 4, 6, 6]  # Finished shards count from the start.


def test_a_summary_of_the_last_run(decode, tmp_path):
    lines = [*LINES[:3], "", *LINES[3:], "words"]
    whole = decode(lines, shard_size=3, with_tokens=True)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    made = [output for record in records_of(whole) for output in record["outputs"]]
    assert summary["tokens"] == sum(len(output["tokens"]) for output in made) > 0
    assert summary["inputs"] == 8
    assert summary["faults"] == {"cannot be tokenized": 1, "empty": 1}
    assert (summary["finished_before"], summary["batches"], summary["compilations"]) == (0, 3, 1)
    assert 0 < summary["tokens_per_second_with_compilation"] < summary["tokens_per_second"]
    assert summary["versions"] == json.loads(whole["job.json"])["versions"]
    assert decode(lines, shard_size=3, with_tokens=True) == whole
    again = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert again["tokens_per_second"] is None
    assert (again["finished_before"], again["batches"], again["tokens"]) == (3, 0, 0)
    assert {key for key in again if again[key] == summary[key]} >= {"inputs", "faults", "versions"}
    merge.merge(tmp_path / "out")
    merged = (tmp_path / "out.jsonl").read_text().splitlines()
    assert [record_of(line) for line in merged] == records_of(whole)


def test_processes_share_the_shards(decode, monkeypatch, tmp_path):
    whole = decode(LINES, "whole", shard_size=2)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    assert set(decode(LINES, shard_size=2)) == {"job.json", "decodes-00001-of-00003.jsonl"}
    part = json.loads((tmp_path / "out" / "summary-00001-of-00002.json").read_text())
    assert (part["inputs"], part["process"], part["processes"]) == (2, 1, 2)
    monkeypatch.setattr(jax, "process_index", lambda: 0)
    assert decode(LINES, shard_size=2) == whole
