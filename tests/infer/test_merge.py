"""The shards of a finished job joined in one file."""

import gzip
import json

import pytest

from decoding_jax.infer import merge, progress, records, shards

SHARDS = 3


@pytest.fixture
def job(tmp_path):
    """The directory of a finished job of eight inputs in three shards."""
    directory = tmp_path / "out"
    directory.mkdir()
    settings = {"inputs": {"count": 8}, "shard_size": 3, "name": "decodes"}
    (directory / "job.json").write_text(json.dumps(settings))
    made = [records.fault(i, f"input {i}, \u2028 ü", "empty", seed=0) for i in range(8)]
    for shard in range(SHARDS):
        shards.write_records(path_of(directory, shard), made[3 * shard : 3 * shard + 3])
    return directory


def path_of(directory, shard):
    return directory / shards.shard_name("decodes", shard, SHARDS)


def check(argv, status, message, capsys):
    """Checks that the command fails in one line, and writes nothing."""
    assert merge.main(argv) == status
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("decoding_jax.infer.merge: ")
    assert message in printed.err
    assert printed.err.count("\n") == 1


def test_a_merged_file_has_the_lines_of_all_shards(job, tmp_path, capsys):
    whole = b"".join(path_of(job, shard).read_bytes() for shard in range(SHARDS))
    assert merge.main([str(job)]) == 0
    assert (tmp_path / "out.jsonl").read_bytes() == whole
    printed = capsys.readouterr().err
    assert printed == f"records: 8, output: {tmp_path / 'out.jsonl'}\n"
    packed = tmp_path / "all.jsonl.gz"
    packed.write_bytes(b"earlier")
    assert merge.main([str(job), "-o", str(packed)]) == 0
    assert gzip.decompress(packed.read_bytes()) == whole
    first = packed.read_bytes()
    assert merge.merge(job, packed) == (packed, 8)
    assert packed.read_bytes() == first
    assert sorted(p.name for p in tmp_path.iterdir()) == ["all.jsonl.gz", "out", "out.jsonl"]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda lines: lines[:-1], "has 2 records of 3"),
        (lambda lines: [*lines, lines[-1]], "line 4 is not record 6, but has index 5"),
        (lambda lines: [lines[0], lines[0], lines[2]], "line 2 is not record 4, but has index 3"),
        (lambda lines: [lines[0], lines[2]], "line 2 is not record 4, but has index 5"),
        (
            lambda lines: [*lines, lines[-1].replace(b'"index": 5', b'"index": 6')[:-23] + b"}\n"],
            "has more than 3 records of 3",
        ),
        (lambda lines: [*lines[:2], lines[2][:20]], "line 3 is not JSON"),
        (lambda lines: [*lines[:2], b"{}\n"], "line 3 is not a record"),
        (lambda lines: [], "has 0 records of 3"),
        (
            lambda lines: [lines[0].replace(b"empty", b"full"), *lines[1:]],
            "line 1 was changed: its crc32 is of another text",
        ),
    ],
)
@pytest.mark.parametrize("name", ["all.jsonl", "all.jsonl.gz"])
def test_a_shard_that_is_not_whole_is_refused(job, tmp_path, capsys, spoil, message, name):
    path = path_of(job, 1)
    path.write_bytes(b"".join(spoil(path.read_bytes().splitlines(keepends=True))))
    (tmp_path / name).write_text("earlier")
    check([str(job), "-o", str(tmp_path / name)], 1, f"{path}: {message}", capsys)
    assert (tmp_path / name).read_text() == "earlier"
    assert sorted(p.name for p in tmp_path.iterdir()) == [name, "out"]


def test_a_job_that_is_not_finished_is_refused(job, tmp_path, capsys):
    path_of(job, 2).unlink()
    lack = "lacks decodes-00002-of-00003.jsonl (1 of 3 shards are missing)"
    message = f"output_dir: expected the directory of a finished job, got {job}, which {lack}"
    check([str(job)], 1, message, capsys)
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("contents", [None, "{", "[]", '{"inputs": {"count": 0}}'])
def test_a_directory_of_something_else_is_refused(job, capsys, contents):
    (job / "job.json").unlink() if contents is None else (job / "job.json").write_text(contents)
    check([str(job)], 1, "output_dir: expected the directory of a job, got ", capsys)
    check([str(job / "nowhere")], 1, "nowhere'\n", capsys)


def test_refused_arguments(job, capsys):
    before = path_of(job, 1).read_bytes()
    for own in (path_of(job, 1), job / "job.json", job / "summary.json"):
        check(
            [str(job), "-o", str(own)],
            1,
            f"file: expected another file than those of the job, got {str(own)!r}",
            capsys,
        )
    assert path_of(job, 1).read_bytes() == before
    for folder in (job, job / "nowhere" / "all.jsonl"):
        check(
            [str(job), "-o", str(folder)],
            1,
            "file: expected a file in a directory that exists",
            capsys,
        )
    check(["ftp://host/out"], 1, "output_dir: expected a local path", capsys)
    check([], 2, "expected OUTPUT_DIR [-o FILE]: ", capsys)
    check([str(job), "--gzip"], 2, "unrecognized arguments: --gzip", capsys)


def test_a_long_merge_shows_its_progress(job, capsys, monkeypatch):
    monkeypatch.setattr(merge, "_SHOWN_AFTER", 0.0)
    options = {**progress.on_stderr(), "mininterval": 0.0, "miniters": 1}
    monkeypatch.setattr(progress, "on_stderr", lambda: options)
    merge.merge(job)
    lines = capsys.readouterr().err.splitlines()
    assert all(line.startswith("merging: ") for line in lines)
    assert "8/8" in lines[-1]
