"""The command: gin files by name, faults in one line, SIGKILL."""

import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import pytest
from infer_fakes import OWN

from decoding_jax.infer import gin_files
from decoding_jax.infer.command import main
from decoding_jax.text import embedded

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
SHIPPED = sorted(str(p.relative_to(ROOT / "gin")) for p in (ROOT / "gin").glob("**/*.gin"))
INFER = ["models/directory.gin", "strategies/greedy.gin", "runs/infer.gin"]


@pytest.fixture
def command(monkeypatch, tmp_path, byte_t5):
    """Runs the command in an empty folder, with the byte model and a small job."""
    (tmp_path / "inputs.txt").write_text("one\ntwo\n\nfour, five, six, seven\n")
    (tmp_path / "models").mkdir()  # gin by itself would take it for a Python package
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(jax, "local_devices", lambda: jax.devices()[:1])

    def run(*args, files=INFER, **bindings):
        settings = {
            "MODEL_DIR": str(byte_t5),
            "INPUT": "inputs.txt",
            "OUTPUT_DIR": "out",
            "MAX_NEW_TOKENS": 3,
            "MAX_INPUT_LENGTH": 16,
            "BATCH_SIZE": 4,
            **bindings,
        }
        given = [f"--gin.{k}={v!r}" for k, v in settings.items() if v is not None]
        return main(["infer", *(f"--gin_file={f}" for f in files), *given, *args])

    return run


def records():
    text = Path("out/decodes-00000-of-00001.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("strategy", ["greedy", "sample", "arithmetic_sample"])
def test_a_job_by_the_names_of_its_files(command, capsys, strategy):
    files = ["runs/infer.gin", "models/directory.gin", f"strategies/{strategy}.gin"]
    samples = {} if strategy == "greedy" else {"NUM_SAMPLES": 4, "TEMPERATURE": 0.5}
    assert command(files=files, SEED=5, **samples) == 0
    made = records()
    assert [r["inputs"] for r in made] == ["one", "two", "", "four, five, six, seven"]
    assert [len(r["outputs"]) for r in made] == [samples.get("NUM_SAMPLES", 1)] * 2 + [0, 0]
    assert {r["seed"] for r in made} == {5}
    said = capsys.readouterr().err
    assert "compilation 1: 4 inputs of up to 16 tokens\n" in said
    assert "inputs: 4, faulty: 2 (empty: 1, too long: 1), batches: 1, compilations: 1" in said


def test_phrases_are_set_on_the_command_line(command):
    files = [INFER[0], "strategies/constrained_beam_search.gin", INFER[2]]
    given = ["--gin.PHRASES=((5, 9),)", "--gin.infer.run.with_tokens=True"]
    assert command(*given, files=files, BEAM_SIZE=3) == 0
    outputs = [output["tokens"] for r in records() for output in r["outputs"]]
    assert len(outputs) == 2
    assert all((5, 9) in itertools.pairwise(tokens) for tokens in outputs)


def test_phrases_may_be_strings(command, capsys):
    """They are tokenised by the model's own tokenizer, beside others that are tokens."""
    files = [INFER[0], "strategies/constrained_beam_search.gin", INFER[2]]
    given = ["--gin.PHRASES=('ab', (70,))", "--gin.ALTERNATIVES=[['c', 'd']]"]
    assert command(*given, files=files, BEAM_SIZE=5, MAX_NEW_TOKENS=4) == 0
    texts = [output["text"] for r in records() for output in r["outputs"]]
    assert len(texts) == 2
    assert all("ab" in text and "C" in text for text in texts)
    assert all("c" in text or "d" in text for text in texts)
    capsys.readouterr()
    one = "--gin.PHRASES='ab'"
    check(command(one, files=files, OUTPUT_DIR="one"), capsys, 1, "phrases: got 'ab'; takes a list")


def test_a_drafter_by_the_names_of_its_files(command, byte_t5):
    """A model that drafts for itself; the job belongs to its drafter as it does to its model."""
    files = ["runs/infer.gin", "models/directory.gin", "strategies/speculative_sample.gin"]
    settings = {"files": files, "VERIFIER": "greedy", "DRAFT_DIR": str(byte_t5)}
    assert command(**settings) == 0
    drafted = [[o["text"] for o in r["outputs"]] for r in records()]
    assert "drafter" in json.loads(Path("out/job.json").read_text())
    assert command(OUTPUT_DIR="plain") == 0
    plain = Path("plain/decodes-00000-of-00001.jsonl").read_text().splitlines()
    assert [[o["text"] for o in json.loads(line)["outputs"]] for line in plain] == drafted


def test_transforms_are_set_on_the_command_line(command):
    """Of the one most probable token there is one sample."""
    chain = "--gin.transforms.Chain.transforms=[@transforms.temperature(), @transforms.top_k()]"
    files = [INFER[0], "strategies/sample.gin", INFER[2]]
    assert command(chain, "--gin.transforms.top_k.k=1", files=files, NUM_SAMPLES=6) == 0
    assert all(len({o["text"] for o in r["outputs"]}) <= 1 for r in records())
    assert any(
        line.endswith(".k = 1") for line in json.loads(Path("out/job.json").read_text())["gin"]
    )


def test_a_job_may_move_but_not_change(command, capsys, monkeypatch, byte_t5):
    """Where inputs, outputs and the model are is not what they are."""
    monkeypatch.syspath_prepend(HERE)
    Path("own.gin").write_text(OWN)
    own = {"files": ["own.gin"], "MAX_NEW_TOKENS": None}
    assert command(**own) == 0
    moved = {"OUTPUT_DIR": "moved", "INPUT": "texts", "MODEL_DIR": "model"}
    for new, old in zip(moved.values(), ["out", "inputs.txt", byte_t5], strict=True):
        shutil.copytree(old, new) if Path(old).is_dir() else shutil.copy(old, new)
    assert command("--gin.infer.run.report=@infer.Printer()", **own, **moved) == 0
    assert "batches: 0, compilations: 0, shards finished before: 1" in capsys.readouterr().err
    check(command("--gin.draw.lanes=2", **own), capsys, 1, "another job (not the same: gin)")
    check(command(SEED=1, **own), capsys, 1, "another job (not the same: seed)")


def test_a_strategy_of_ones_own_in_json_lines(command, monkeypatch):
    monkeypatch.syspath_prepend(HERE)
    Path("own").mkdir()
    Path("own/draw.gin").write_text(
        OWN + 'SOURCE = @infer.JsonLines()\ninfer.JsonLines.field = "en"\n'
    )
    Path("inputs.txt").write_text('{"en": "one"}\n{"fr": "un"}\n{"en": "two"}\n')
    search = "--gin_search_paths=own"
    assert command(search, files=["draw.gin"], MAX_NEW_TOKENS=None) == 0
    assert [len(r["outputs"]) for r in records()] == [3, 0, 3]
    assert records()[1]["error"] == "no field: 'en'"


def test_the_demo_prints_its_sentences(command, capsys):
    files = ["runs/demo.gin", "strategies/greedy.gin"]  # the later file's strategy
    longer = "--gin.infer.run.max_input_length=48"
    none = dict.fromkeys(["INPUT", "OUTPUT_DIR", "MAX_INPUT_LENGTH", "BATCH_SIZE"])
    assert command(longer, files=files, **none) == 0
    out = capsys.readouterr().out
    sentences = gin_files.find("runs/demo_sentences.txt").read_text().splitlines()
    assert len(sentences) == 8
    for i, sentence in enumerate(sentences, 1):
        assert f"[{i}] {sentence}\n    rank  log-prob  text\n       1 " in out
    assert not Path("out").exists()


@pytest.mark.skipif(not embedded(), reason="the embedded model is not there")
def test_the_demo_as_it_is(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["infer", "--gin_file=runs/demo.gin"]) == 0
    out = capsys.readouterr().out
    assert "mariage" in out  # I was invited to their wedding.
    assert "yeux bleus" in out  # Tom has beautiful blue eyes.


FAULTS = {
    "no gin file": (["infer"], 2, "--gin_file: got none"),
    "unknown gin file": (
        ["infer", "--gin_file=strategies/simple.gin"],
        2,
        "nearest: strategies/sample",
    ),
    "unknown flag": (["infer", "--gin_fiel=x"], 2, "gin_fiel"),
    "stray argument": (["infer", "runs/demo.gin"], 2, "got the argument 'runs/demo.gin'"),
    "no value": (["infer", "--gin.SEED"], 2, "got --gin.SEED; takes --gin.NAME=VALUE"),
    "no coordinator": (
        ["infer", "--distributed", "--num_processes=2", "--process_id=0"],
        2,
        "--distributed: got no --coordinator_address; takes --coordinator_address=HOST:PORT, ",
    ),
    "no process": (
        ["infer", "--distributed", "--coordinator_address=localhost:1"],
        2,
        "--distributed: got no --num_processes and no --process_id; takes",
    ),
    "not distributed": (
        ["infer", "--process_id=1"],
        2,
        "--process_id: got it without --distributed; takes both",
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
        "--coordinator_address: got 'a'; takes HOST:PORT",
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
        "--process_id: got 2 of 2 processes; takes 0 to 1",
    ),
    "no processes": (["infer", "--distributed", "--num_processes=0"], 2, "num_processes"),
    "unquoted text": (["infer", "--gin.INPUT=a/b"], 2, "cannot read 'INPUT = a/b'; text is put in"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_flags_is_told_in_one_line(capsys, fault):
    argv, status, message = FAULTS[fault]
    check(main(argv), capsys, status, message)


def check(got, capsys, status, message):
    said = capsys.readouterr()
    assert got == status
    assert said.out == ""
    assert message in said.err
    assert said.err.startswith("decoding_jax.infer: ")
    assert said.err.count("\n") == 1


GIN_FAULTS = [
    ("--gin.nothing.x=1", "No configurable matching 'nothing'"),
    ("--gin.greedy.x=1", "'greedy' doesn't have a parameter named 'x'"),
    ("--gin.STRATEGY=@gredy", "No configurable matching reference '@gredy'"),
    ("--gin.STRATEGY=%NOTHING", "NOTHING has no value"),
    ("--gin.MODEL_DIR=%gin.REQUIRED", "MODEL_DIR has no value; takes one from a gin file or --gin"),
]


@pytest.mark.parametrize(("argument", "message"), GIN_FAULTS)
def test_a_fault_of_gin_is_told_in_one_line(command, capsys, argument, message):
    check(command(argument), capsys, 2, message)


UNREAD = [
    # One letter short; of another strategy; a macro for a parameter; of another source, strategy or
    # scope; what the job passes itself; what another binding overrides.
    (
        "--gin.NUM_SAMPLE=4",
        "nothing reads NUM_SAMPLE; nearest: NUM_SAMPLES, decoding_jax.sample.num",
    ),
    ("--gin.BEAM_SIZE=4", "nothing reads BEAM_SIZE; the job reads BATCH_SIZE, DTYPE, INPUT, MAX_"),
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


def test_a_strategy_takes_no_other_strategys_macro(command, capsys):
    check(command(TEMPERATURE=0.5), capsys, 2, "nothing reads TEMPERATURE; the job reads BATCH_")


def test_a_binding_that_python_reads_is_taken(command, monkeypatch):
    """A function that gin's decorator wraps reads its bindings wherever it is called."""
    monkeypatch.syspath_prepend(HERE)
    Path("own.gin").write_text(
        "from __gin__ import dynamic_registration\nimport gin_fakes\n"
        "STRATEGY = @gin_fakes.draw_lanes\nLANES = 1\ngin_fakes.lanes.count = %LANES\n"
    )
    given = {"files": [*INFER, "own.gin"], "MAX_NEW_TOKENS": None, "LANES": 2}
    assert command(**given) == 0
    assert [len(r["outputs"]) for r in records()] == [2, 2, 0, 0]


def test_what_nothing_reads_need_not_be_given(command, monkeypatch):
    """``runs/infer.gin`` requires INPUT, which a source of one's own does not read."""
    monkeypatch.syspath_prepend(HERE)
    Path("own.gin").write_text(
        "from __gin__ import dynamic_registration\nimport gin_fakes\nSOURCE = @gin_fakes.words()\n"
    )
    assert command(files=[*INFER, "own.gin"], INPUT=None) == 0
    assert [r["inputs"] for r in records()] == ["one", "two"]


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
        (unknown_family, "got 'rnn'; takes one of"),
        (lambda d: (d / "model.safetensors").unlink(), "model.safetensors"),
        (lambda d: (d / "config.json").unlink(), "config.json"),
    ],
)
def test_a_spoilt_checkpoint_is_told_in_one_line(command, capsys, byte_t5, spoil, message):
    copy = Path("copy")
    copy.mkdir()
    for file in byte_t5.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    spoil(copy)
    check(command(MODEL_DIR="copy"), capsys, 1, message)
    assert not Path("out").exists()


def test_faults_of_the_job_are_told_in_one_line(command, capsys):
    check(command(MODEL_DIR="nowhere"), capsys, 1, "nowhere: no such directory")
    for setting in ("MODEL_DIR", "INPUT", "OUTPUT_DIR"):
        bucket = {setting: "gs://bucket/x"}
        check(command(**bucket), capsys, 1, "got 'gs://bucket/x'; takes a local path")
    assert not Path("gs:").exists()
    check(command(INPUT="nowhere.txt"), capsys, 1, "nowhere.txt: no such file")
    check(command(MAX_NEW_TOKENS=-1), capsys, 1, "max_new_tokens: got -1")
    check(command(SEED="x"), capsys, 1, "seed: got 'x'")
    without = "--gin.STRATEGY=@decoding_jax.sample"
    check(command(without, MAX_NEW_TOKENS=None), capsys, 1, "max_new_tokens: got none")
    Path("out").mkdir()
    Path("out/decodes.txt").write_text("")
    check(command(), capsys, 1, "out holds decodes.txt but no job.json")


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


def test_help(capsys):
    assert main(["infer", "--help"]) == 0
    assert "--gin_file=runs/demo.gin" in capsys.readouterr().out


def test_an_installed_copy_finds_the_gin_files_by_name(tmp_path):
    """Builds the package as a wheel holds it, and asks it from another folder for every file."""
    pytest.importorskip("setuptools", "77", reason="needs the test extra: setuptools 77")
    subprocess.run(
        [sys.executable, "setup.py", "-q", "build", "--build-base", tmp_path / "build"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    library = tmp_path / "build" / "lib"
    shipped = library / "decoding_jax" / "gin_files"
    assert sorted(str(p.relative_to(shipped)) for p in shipped.glob("**/*.gin")) == SHIPPED
    ask = (
        "import gin, sys; from decoding_jax import gin_path;"
        "from decoding_jax.infer import gin_files;"
        "assert gin.parse_config and gin_path.folder().name == 'gin_files';"
        "print([str(gin_files.find(name)) for name in sys.argv[1:]])"
    )
    (tmp_path / "elsewhere" / "gin").mkdir(parents=True)  # python -c looks here first
    answer = subprocess.run(
        [sys.executable, "-c", ask, *SHIPPED, "runs/demo_sentences.txt"],
        cwd=tmp_path / "elsewhere",
        env={**os.environ, "PYTHONPATH": str(library)},
        check=True,
        capture_output=True,
        text=True,
    )
    assert answer.stdout.count(str(shipped)) == len(SHIPPED) + 1


def test_a_search_by_the_name_of_its_file(command):
    files = ["runs/infer.gin", "models/directory.gin", "strategies/best_k_search.gin"]
    assert command(files=files, BUDGET=8, NUM_RETURN=2, K=3) == 0
    outputs = [r["outputs"] for r in records()]
    assert [len(o) for o in outputs] == [2, 2, 0, 0]
    assert all(o[0]["score"] >= o[1]["score"] for o in outputs[:2])
