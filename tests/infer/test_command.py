"""The command runs the job that gin files and flags describe."""

import itertools
import json
import shutil
from pathlib import Path

import jax
import pytest
import tiers
from infer_fakes import HERE, INFER, OWN, check, record_of, records

from decoding_jax import gin_path
from decoding_jax.infer.command import main
from decoding_jax.text import embedded


@pytest.mark.exhaustive
@pytest.mark.parametrize("strategy", tiers.values("greedy", exhaustive=["arithmetic_sample"]))
def test_a_job_by_the_names_of_its_files(command, capsys, strategy):
    files = ["runs/infer.gin", "models/directory.gin", f"strategies/{strategy}.gin"]
    samples = {} if strategy == "greedy" else {"NUM_SAMPLES": 4, "TEMPERATURE": 0.5}
    assert command(files=files, SEED=5, **samples) == 0
    made = records()
    assert [r["inputs"] for r in made] == ["one", "two", "", "four, five, six, seven"]
    assert [len(r["outputs"]) for r in made] == [samples.get("NUM_SAMPLES", 1)] * 2 + [0, 0]
    assert {r["seed"] for r in made} == {5}
    printed = capsys.readouterr().err
    assert "compilation 1: 4 inputs of up to 16 tokens\n" in printed
    assert "inputs: 4, faulty: 2 (empty: 1, too long: 1), batches: 1, compilations: 1" in printed
    assert printed.endswith(
        "\nfaulty inputs: 2 of 4 (empty: 1, too long: 1); their records have an error\n"
    )


@pytest.mark.release
def test_weights_of_8_bits_by_the_names_of_its_files(command):
    files = ["runs/infer.gin", "models/directory.gin", "strategies/greedy.gin"]
    assert command(files=files, WEIGHTS="int8") == 0
    assert [len(r["outputs"]) for r in records()] == [1, 1, 0, 0]
    described = json.loads(Path("out/job.json").read_text())
    assert command(files=files, WEIGHTS="int4", OUTPUT_DIR="narrower") == 0
    other = json.loads(Path("narrower/job.json").read_text())
    assert described["model"] != other["model"]


def test_a_job_of_faulty_inputs_fails(command, capsys, monkeypatch, tmp_path):
    """The exit status is 1 if no input could be decoded, and 0 if any could."""
    before = jax.config.jax_compilation_cache_dir
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    Path("faulty.txt").write_text("\n" + "too long " * 9 + "\n\n")
    try:
        jax.config.update("jax_compilation_cache_dir", None)
        for batches in ("batches: 0", "batches: 0, compilations: 0, shards finished before: 1"):
            assert command(INPUT="faulty.txt") == 1
            printed = capsys.readouterr().err
            assert batches in printed
            assert "\nfaulty inputs: 3 of 3 (empty: 2, too long: 1); their records have" in printed
        # The command keeps compiled programs where ``python -m decoding_jax`` does.
        want = str(tmp_path / "cache" / "decoding_jax" / "programs")
        assert jax.config.jax_compilation_cache_dir == want
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
    summary = json.loads(Path("out/summary.json").read_text())
    assert (summary["faulty"], summary["faults"]) == (3, {"empty": 2, "too long": 1})


@pytest.mark.release
def test_phrases_are_strings_or_tokens(command):
    """Strings are encoded by the model's own tokenizer, in which token i is byte i - 3."""
    files = [INFER[0], "strategies/constrained_beam_search.gin", INFER[2]]
    arguments = ["--gin.PHRASES=('ab', (5, 9))", "--gin.ALTERNATIVES=[['c', 'd']]"]
    arguments.append("--gin.infer.run.with_tokens=True")
    assert command(*arguments, files=files, BEAM_SIZE=6, NUM_RETURN=1, MAX_NEW_TOKENS=5) == 0
    outputs = [output for r in records() for output in r["outputs"]]
    assert len(outputs) == 2
    for output in outputs:
        assert "ab" in output["text"]
        assert (5, 9) in itertools.pairwise(output["tokens"])
        assert "c" in output["text"] or "d" in output["text"]


@pytest.mark.release
def test_a_drafter_by_the_names_of_its_files(command, byte_t5):
    """The model is its own drafter, which is recorded in the job's directory."""
    files = ["runs/infer.gin", "models/directory.gin", "strategies/speculative_sample.gin"]
    settings = {"files": files, "VERIFIER": "greedy", "DRAFT_DIR": str(byte_t5)}
    assert command(**settings) == 0
    drafted = [[o["text"] for o in r["outputs"]] for r in records()]
    assert "drafter" in json.loads(Path("out/job.json").read_text())
    assert command(OUTPUT_DIR="plain") == 0
    plain = Path("plain/decodes-00000-of-00001.jsonl").read_text().splitlines()
    assert [[o["text"] for o in json.loads(line)["outputs"]] for line in plain] == drafted


@pytest.mark.release
def test_transforms_are_set_on_the_command_line(command):
    """If only the most probable token is left, all samples are equal."""
    chain = "--gin.transforms.Chain.transforms=[@transforms.temperature(), @transforms.top_k()]"
    files = [INFER[0], "strategies/sample.gin", INFER[2]]
    settings = {"NUM_SAMPLES": 4, "TEMPERATURE": 0.5, "SEED": 5}
    assert command(chain, "--gin.transforms.top_k.k=1", files=files, **settings) == 0
    assert [len(r["outputs"]) for r in records()] == [4, 4, 0, 0]
    assert {r["seed"] for r in records()} == {5}
    assert all(len({o["text"] for o in r["outputs"]}) <= 1 for r in records())
    assert any(
        line.endswith(".k = 1") for line in json.loads(Path("out/job.json").read_text())["gin"]
    )


@pytest.mark.release
def test_a_search_by_the_name_of_its_file(command):
    files = ["runs/infer.gin", "models/directory.gin", "strategies/best_k_search.gin"]
    assert command(files=files, BUDGET=8, NUM_RETURN=2, K=3) == 0
    outputs = [r["outputs"] for r in records()]
    assert [len(o) for o in outputs] == [2, 2, 0, 0]
    assert all(o[0]["score"] >= o[1]["score"] for o in outputs[:2])


@pytest.mark.exhaustive
def test_a_strategy_is_an_object_in_gin(command):
    assert command(files=[INFER[0], "strategies/beam_search.gin", INFER[2]], BEAM_SIZE=2) == 0
    expected = records()
    made = ("--gin.STRATEGY=@decoding_jax.BeamSearch()", "--gin.BeamSearch.beam_size=2")
    length = "--gin.BeamSearch.max_new_tokens=3"
    given = {"files": [INFER[0], INFER[2]], "MAX_NEW_TOKENS": None, "OUTPUT_DIR": "objects"}
    assert command(*made, length, **given) == 0
    found = Path("objects/decodes-00000-of-00001.jsonl").read_text(encoding="utf-8")
    assert [record_of(line) for line in found.splitlines()] == expected


def test_a_job_may_move_but_not_change(command, capsys, monkeypatch, byte_t5):
    """A job does not depend on the paths of its inputs, outputs and model."""
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


def test_your_own_strategy_in_json_lines(command, monkeypatch):
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


def test_a_binding_that_python_reads_is_accepted(command, monkeypatch):
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
    """``runs/infer.gin`` requires INPUT, which some sources do not read."""
    monkeypatch.syspath_prepend(HERE)
    Path("own.gin").write_text(
        "from __gin__ import dynamic_registration\nimport gin_fakes\nSOURCE = @gin_fakes.words()\n"
    )
    assert command(files=[*INFER, "own.gin"], INPUT=None) == 0
    assert [r["inputs"] for r in records()] == ["one", "two"]


def test_the_demo_prints_its_sentences(command, capsys):
    files = ["runs/demo.gin", "strategies/greedy.gin"]  # the later file's strategy
    longer = "--gin.infer.run.max_input_length=48"
    none = dict.fromkeys(["INPUT", "OUTPUT_DIR", "MAX_INPUT_LENGTH", "BATCH_SIZE"])
    assert command(longer, files=files, **none) == 0
    out = capsys.readouterr().out
    sentences = gin_path.find("runs/demo_sentences.txt").read_text().splitlines()
    assert len(sentences) == 8
    for i, sentence in enumerate(sentences, 1):
        assert f"[{i}] {sentence}\n    rank  log-prob  text\n       1 " in out
    assert not Path("out").exists()


@pytest.mark.release  # The gate runs the README's main command, too.
@pytest.mark.skipif(not embedded(), reason="the embedded model is not there")
def test_the_demo_unchanged(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["infer", "--gin_file=runs/demo.gin"]) == 0
    out = capsys.readouterr().out
    assert "mariage" in out  # I was invited to their wedding.
    assert "yeux bleus" in out  # Tom has beautiful blue eyes.


def test_help(capsys):
    assert main(["infer", "--help"]) == 0
    assert "--gin_file=runs/demo.gin" in capsys.readouterr().out
