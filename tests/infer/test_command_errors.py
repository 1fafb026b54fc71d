"""The command reports every error in one line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from infer_fakes import HERE, INFER, check

from decoding_jax.infer.command import main

FAULTS = {
    "no gin file": (["infer"], 2, "--gin_file: expected one such as"),
    "unknown gin file": (
        ["infer", "--gin_file=strategies/simple.gin"],
        2,
        "nearest: strategies/sample",
    ),
    "unknown flag": (["infer", "--gin_fiel=x"], 2, "gin_fiel"),
    "stray argument": (
        ["infer", "runs/demo.gin"],
        2,
        "expected only flags, which --help lists, got 'runs/demo.gin'",
    ),
    "no value": (["infer", "--gin.SEED"], 2, "expected --gin.NAME=VALUE, got --gin.SEED"),
    "no coordinator": (
        ["infer", "--distributed", "--num_processes=2", "--process_id=0"],
        2,
        "each of the processes, got no --coordinator_address",
    ),
    "no process": (
        ["infer", "--distributed", "--coordinator_address=localhost:1"],
        2,
        "each of the processes, got no --num_processes and no --process_id",
    ),
    "not distributed": (
        ["infer", "--process_id=1"],
        2,
        "--process_id: expected --distributed beside it",
    ),
    "no port": (
        [
            "infer",
            "--distributed",
            "--coordinator_address=a",
            "--num_processes=2",
            "--process_id=1",
        ],
        2,
        "--coordinator_address: expected HOST:PORT, got 'a'",
    ),
    "no such process": (
        [
            "infer",
            "--distributed",
            "--coordinator_address=a:1",
            "--num_processes=2",
            "--process_id=2",
        ],
        2,
        "--process_id: expected 0 to 1, got 2 of 2 processes",
    ),
    "no processes": (["infer", "--distributed", "--num_processes=0"], 2, "num_processes"),
    "unquoted text": (["infer", "--gin.INPUT=a/b"], 2, "cannot read 'INPUT = a/b'; text is put in"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_flags_is_reported_in_one_line(capsys, fault):
    argv, status, message = FAULTS[fault]
    check(main(argv), capsys, status, message)


@pytest.mark.exhaustive
def test_a_machine_without_a_cluster_says_which_flags_are_missing():
    # JAX looks for a cluster only before the process has touched a device.
    command = [sys.executable, "-m", "decoding_jax.infer"]
    flags = ["--distributed", "--gin_file=runs/demo.gin"]
    done = subprocess.run([*command, *flags], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == (
        "decoding_jax.infer: --distributed: expected --coordinator_address=HOST:PORT, "
        "--num_processes=N and --process_id=I (0 to N - 1) on each of the processes, found no "
        "cluster to join\n"
    )


GIN_FAULTS = [
    ("--gin.nothing.x=1", "No configurable matching 'nothing'"),
    ("--gin.greedy.x=1", "'greedy' doesn't have a parameter named 'x'"),
    ("--gin.STRATEGY=@gredy", "No configurable matching reference '@gredy'"),
    ("--gin.STRATEGY=%NOTHING", "NOTHING: expected a value from"),
    ("--gin.infer.run.with_tokens=true", "expected True, with a capital, got"),
    ("--gin.REFILL=none", "expected None, with a capital, got 'REFILL = none'"),
    ("--gin.MODEL_DIR=%gin.REQUIRED", "MODEL_DIR: expected a value from a gin file or --gin"),
]


@pytest.mark.parametrize(("argument", "message"), GIN_FAULTS)
def test_a_fault_of_gin_is_reported_in_one_line(command, capsys, argument, message):
    check(command(argument), capsys, 2, message)


UNREAD = [
    # One letter short; of another strategy; a macro for a parameter; of another source, strategy or
    # scope; what the job passes itself; what another binding overrides.
    (
        "--gin.NUM_SAMPLE=4",
        "nothing reads NUM_SAMPLE; nearest: NUM_SAMPLES, decoding_jax.sample.num",
    ),
    (
        "--gin.BEAM_SIZE=4",
        "nothing reads BEAM_SIZE; the job reads BATCH_SIZE, DTYPE, GRAMMAR, INPUT,",
    ),
    ("--gin.with_tokens=True", "nothing reads with_tokens; nearest: infer.run.with_tokens"),
    ("--gin.JsonLines.field='en'", "nothing reads infer.JsonLines.field; "),
    (
        "--gin.greedy.max_new_tokens=4",
        "nothing reads decoding_jax.greedy.max_new_tokens; nearest: ",
    ),
    (
        "--gin.draft/load.directory='x'",
        "nothing reads draft/decoding_jax.load.directory; nearest: ",
    ),
    (
        "--gin.sample.stop=@Stop()",
        "nothing reads decoding_jax.sample.stop; nearest: infer.run.stop",
    ),
    ("--gin.infer.run.seed=1", "nothing reads SEED; nearest: infer.run.seed"),
]


@pytest.mark.parametrize(("argument", "message"), UNREAD)
def test_a_binding_that_nothing_reads_is_refused(command, capsys, argument, message):
    files = [INFER[0], "strategies/sample.gin", INFER[2]]
    check(command(argument, files=files, SEED=2), capsys, 2, message)
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("argument", "status", "message"),
    [
        ("--gin.STRATEGY='greedy'", 1, "strategy: expected a function such as functools.partial"),
        ("--gin.SOURCE='inputs.txt'", 1, "source: expected TextLines(path), JsonLines(path), "),
        ("--gin.MODEL='translation-en-fr'", 1, "model: expected a model and its tokenizer, as "),
        (
            "--gin.SOURCE=@infer.SeqioTask()",
            2,
            "nothing reads INPUT, which sets infer.TextLines.path, infer.JsonLines.path, "
            "infer.CsvRows.path, infer.ParquetRows.path and not @infer.SeqioTask; ",
        ),
    ],
)
def test_what_is_bound_wrongly_is_named_and_not_what_it_leaves_unread(
    command, capsys, argument, status, message
):
    check(command(argument), capsys, status, message)


def test_a_strategy_takes_no_other_strategys_macro(command, capsys):
    check(command(TEMPERATURE=0.5), capsys, 2, "nothing reads TEMPERATURE; the job reads BATCH_")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("include 'modles/directory.gin'", "nearest: models/directory.gin"),
        ("from __gin__ import dynamic_registration\nimport nothing_at_all", "nothing_at_all"),
        ("from __gin__ import dynamic_registration\nnothing.x = 1", "'nothing' was not provided"),
        ("x = = 1", "cannot read 'x = = 1'"),
    ],
)
def test_a_fault_of_a_gin_file_names_the_file(command, capsys, text, message):
    Path("own.gin").write_text(text + "\n")
    check(command(files=["own.gin"]), capsys, 2, message)


def truncated(directory):
    weights = directory / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])


def unknown_family(directory):
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "model_type": "rnn"}))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (truncated, "model.safetensors"),
        (unknown_family, "model_type: expected one of"),
        (lambda d: (d / "model.safetensors").unlink(), "model.safetensors"),
        (lambda d: (d / "config.json").unlink(), "config.json"),
    ],
)
def test_a_spoilt_checkpoint_is_reported_in_one_line(command, capsys, byte_t5, spoil, message):
    copy = Path("copy")
    copy.mkdir()
    for file in byte_t5.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    spoil(copy)
    check(command(MODEL_DIR="copy"), capsys, 1, message)
    assert not Path("out").exists()


@pytest.mark.exhaustive
def test_faults_of_the_job_are_reported_in_one_line(command, capsys):
    check(command(MODEL_DIR="nowhere"), capsys, 1, "nowhere: no such directory")
    for setting in ("MODEL_DIR", "INPUT", "OUTPUT_DIR"):
        url = {setting: "ftp://host/x"}
        check(
            command(**url),
            capsys,
            1,
            "expected a local path, or a URL of gs, s3 or memory, got 'ftp://host/x'",
        )
    assert not Path("ftp:").exists()
    check(command(INPUT="nowhere.txt"), capsys, 1, "nowhere.txt: no such file")
    check(
        command(INPUT="models"),
        capsys,
        1,
        "path: expected a file, or a pattern such as 'models/*.txt', got the folder 'models'",
    )
    message = "got '*.jsonl', which matches none; the folder '.' has inputs.txt, models"
    check(command(INPUT="*.jsonl"), capsys, 1, message)
    message = (
        "source: expected an object of the class, in gin @infer.JsonLines() with parentheses, got"
    )
    check(command("--gin.SOURCE=@infer.JsonLines"), capsys, 1, message)
    name = "--gin.STRATEGY='greedy'"
    message = (
        "strategy: expected a function such as functools.partial(decoding_jax.greedy, "
        "max_new_tokens=64), in gin @decoding_jax.greedy, or an object such as "
        "decoding_jax.Greedy(max_new_tokens=64), got 'greedy'"
    )
    check(command(name, MAX_NEW_TOKENS=None), capsys, 1, message)
    message = "greedy expected a language model, got none; gin names a strategy without parenthese"
    check(command("--gin.STRATEGY=@decoding_jax.greedy()"), capsys, 1, f"model: {message}")
    flag = "--gin.infer.run.with_tokens='yes'"
    check(command(flag), capsys, 1, "with_tokens: expected True or False, got 'yes'")
    check(
        command(MAX_NEW_TOKENS=-1),
        capsys,
        1,
        "max_new_tokens: expected an int of 1 or more, got -1",
    )
    check(
        command(SEED="x"), capsys, 1, "seed: expected a whole number from 0 to 4294967295, got 'x'"
    )
    without = "--gin.STRATEGY=@decoding_jax.sample"
    check(
        command(without, MAX_NEW_TOKENS=None),
        capsys,
        1,
        "max_new_tokens: sample expected an int of 1 or more, got none",
    )
    one = {"files": [INFER[0], "strategies/constrained_beam_search.gin", INFER[2]]}
    check(command("--gin.PHRASES='ab'", **one), capsys, 1, "phrases: expected a list of")
    Path("out").mkdir()
    Path("out/decodes.txt").write_text("")
    check(command(), capsys, 1, "out, which holds decodes.txt but no job.json")


def test_a_fault_of_the_program_keeps_its_traceback(command, monkeypatch):
    monkeypatch.syspath_prepend(HERE)
    Path("own.gin").write_text(
        "from __gin__ import dynamic_registration\nimport infer_fakes\n"
        "STRATEGY = @infer_fakes.broken\n"
    )
    with pytest.raises(TypeError):
        command(files=[*INFER, "own.gin"], MAX_NEW_TOKENS=None)
    with pytest.raises(ValueError, match="no such directory"):
        command("--traceback", MODEL_DIR="nowhere")
