"""The gin files for T5X, read as ``t5x.infer`` reads them; files in a wrong order are refused."""

import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import types
import warnings
from pathlib import Path

import pytest
from pages import ROOT, blocks, commands

import gin
from decoding_jax import gin_path
from decoding_jax.gin_config import MACRO, bindings_in, reach
from decoding_jax.t5x.drafts import DraftCheckpoint

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("t5x.models", reason="T5X is not installed", exc_type=ImportError)
    import t5x.infer
from test_infer import write

MODEL = "t5x/examples/t5/t5_1_1/base.gin"
DECODER = f"{t5x.__path__[0]}/examples/decoder_only/models/base.gin"
RUN = "t5x/configs/runs/infer.gin"
REQUIRED = """
MIXTURE_OR_TASK_NAME = "task"
TASK_FEATURE_LENGTHS = {"inputs": 8, "targets": 8}
CHECKPOINT_PATH = "checkpoint"
INFER_OUTPUT_DIR = "out"
DROPOUT_RATE = 0.0
"""


@pytest.fixture
def read(monkeypatch, tmp_path):
    """Reads gin files and bindings as the command does, up to its call of ``infer``."""
    command = types.ModuleType("__main__")
    command.infer = t5x.infer.infer
    monkeypatch.setitem(sys.modules, "__main__", command)
    monkeypatch.setattr(gin.config, "_LOCATION_PREFIXES", ["", str(gin_path.folder())])
    monkeypatch.chdir(tmp_path)

    def parse(files, bindings=""):
        with gin.unlock_config():
            gin.clear_config()
            gin.parse_config_files_and_bindings(files, [REQUIRED, bindings])
        return gin.query_parameter("MODEL/gin.macro.value").selector

    yield parse
    with gin.unlock_config():
        gin.clear_config()


def test_files_are_found_by_name_and_set_the_model(read):
    files = [MODEL, "t5x/arithmetic_sample.gin", "t5x/native_encoder_decoder.gin"]
    for order in ([*files, RUN], [RUN, *files]):
        assert read(order).endswith("as_native")
    assert read([MODEL, "t5x/beam_search.gin", RUN]).endswith("EncoderDecoderModel")
    # Of two strategies the later one decodes.
    read([MODEL, "t5x/beam_search.gin", "t5x/greedy.gin", RUN])


def test_the_recipe_for_cloud_tpus(read):
    recipe = ROOT / "configs" / "tpu" / "t5x_v5e_8.gin"
    assert read([str(recipe)]).endswith("as_native")
    with gin.unlock_config():
        assert gin.query_parameter("NUM_DECODES/gin.macro.value") == 4
        assert gin.query_parameter("partitioning.PjitPartitioner.num_partitions") == 4
        # T5X's own file has 32 as well, and reads no macro for it.
        assert gin.query_parameter("utils.DatasetConfig.batch_size") == 32
        run = [key for key in gin.config._CONFIG if key[1].endswith("infer_script.infer")]
    assert unread([recipe.read_text()], run) == []


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["t5x/beam_search.gin", "t5x/native_encoder_decoder.gin", MODEL], "replaced the model"),
        (["t5x/speculative_encoder_decoder.gin", MODEL], "replaced the model class, so give the"),
        (
            ["t5x/temperature_sample.gin", DECODER],
            "replaced the decode_fn, so give the model's own",
        ),
    ],
)
def test_a_model_after_this_librarys_files_is_refused(read, files, message):
    with pytest.raises(ValueError, match=message):
        read([*files, RUN])


def test_a_draft_without_a_checkpoint_needs_no_path(read):
    lookup = (
        "from __gin__ import dynamic_registration\n"
        "from decoding_jax.strategies import speculative\n"
        "DRAFTER = @speculative.PromptLookup()\n"
    )
    files = [MODEL, "t5x/speculative_encoder_decoder.gin", RUN]
    assert read(files, lookup).endswith("as_speculative")


def test_a_draft_checkpoint_without_a_path():
    with pytest.raises(ValueError, match="directory: expected a T5X checkpoint, DRAFT_CHECK"):
        DraftCheckpoint(None).load(None)


PAGE = "docs/t5x.md"
FLAGS = [b for b in blocks(PAGE) if b.language == "sh" and b.text.lstrip().startswith("--gin")]
GIN = [b for b in blocks(PAGE) if b.language == ""]
# The gin files that the flags or the gin file of a block need, by a word of the block.
OTHER_FILES = {
    "sentencepiece_model_file": ["t5x/beam_search.gin"],
    "native_encoder_decoder": [],
    "PHRASES": ["t5x/constrained_beam_search.gin"],
    "DRAFT_CHECKPOINT_PATH": [],
    "min_p": ["t5x/temperature_sample.gin"],
    "max_texts": ["t5x/arithmetic_sample.gin", "t5x/native_encoder_decoder.gin"],
    "constraints.": ["t5x/temperature_sample.gin"],
    "drafts.": ["t5x/speculative_encoder_decoder.gin"],
    "speculative.": ["t5x/speculative_encoder_decoder.gin"],
    "load_drafter": ["t5x/speculative_encoder_decoder.gin"],
}


def other_files(block):
    return next(files for word, files in OTHER_FILES.items() if word in block.text)


@pytest.mark.parametrize("block", FLAGS, ids=lambda block: f"line {block.line}")
def test_flags_as_they_are_printed(read, block):
    (command,) = commands(block._replace(text=block.text.rstrip().removesuffix("\\")))
    flags = shlex.split(command)
    files = [flag.split("=", 1)[1] for flag in flags if flag.startswith("--gin_file=")]
    settings = [flag.removeprefix("--gin.") for flag in flags if flag.startswith("--gin.")]
    files = [MODEL, *other_files(block), *(file for file in files if file not in (MODEL, RUN)), RUN]
    read(files, "\n".join(settings))
    assert unread(settings) == []


@pytest.mark.parametrize("block", GIN, ids=lambda block: f"line {block.line}")
def test_a_gin_file_as_it_is_printed(read, block, tmp_path):
    if block.text.count("include "):  # A model's own file.
        (tmp_path / "model.gin").write_text(block.text)
        read([str(tmp_path / "model.gin"), *other_files(block), RUN])
    else:
        read([MODEL, *other_files(block), RUN], block.text)
    assert unread([block.text]) == []


def unread(settings, roots=(("MODEL", MACRO),)):
    """The bindings of these settings that do not reach the model, or what else is called."""
    read = reach(gin.config._CONFIG, roots).bindings
    return [b for text in settings for b in bindings_in(text) if b not in read]


def as_printed(block, home, place, first=""):
    """Runs a block of the page in a shell, after lines of its own; returns what it prints.

    The page's ``~/src`` is the folder ``src`` of that home; what is elsewhere stays on the path.
    """
    path = [home / "src" / "t5x", place, *os.environ.get("PYTHONPATH", "").split(":"), ROOT]
    changes = {"HOME": str(home), "XLA_FLAGS": "", "PYTHONWARNINGS": "ignore"}
    run = subprocess.run(
        ["bash", "-euo", "pipefail"],
        input=first + block.text,
        cwd=place,
        env={**os.environ, **changes, "PYTHONPATH": ":".join(map(str, path))},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return run.stdout


def block_of(start, language="sh"):
    (block,) = [b for b in blocks(PAGE) if start in b.text and b.language == language]
    return block


def test_the_toy_run_as_it_is_printed(tmp_path):
    """From the blocks of the page to the prediction that it shows."""
    (tmp_path / "my_tasks.py").write_text(block_of("import seqio", "python").text)
    (tmp_path / "toy.gin").write_text(block_of("logits_via_embedding = True", "").text)
    home = tmp_path / "home"
    (home / "src").mkdir(parents=True)
    (home / "src" / "t5x").symlink_to(Path(t5x.__path__[0]).parent)
    made = block_of('save_t5x(model, "toy"', "python")
    with contextlib.chdir(tmp_path):
        exec(made.text, {})
    block = block_of("toy.gin")
    shown = [line[2:] for line in block.text.splitlines() if line.startswith("# ")]
    printed = as_printed(block, home, tmp_path).splitlines()[-len(shown) :]
    assert [json.loads(line) for line in printed] == [json.loads(line) for line in shown]


def test_the_recipe_as_it_is_printed(tmp_path):
    """In a home directory with all files that it names.

    T5X's folder there is a copy in which the model is small and has random parameters.
    """
    source = Path(t5x.__path__[0])
    home = tmp_path / "home"
    shutil.copytree(
        source, home / "src" / "t5x" / "t5x", ignore=shutil.ignore_patterns("*_test.py")
    )
    checkpoint = write("encoder_decoder", tmp_path)
    (home / "flan_t5_base").mkdir()
    Path(checkpoint).rename(home / "flan_t5_base" / "checkpoint_1184000")
    small = (tmp_path / "small.gin").read_text().replace("line_tasks", "my_tasks")
    (home / "src" / "t5x" / MODEL).with_name("base.gin").rename(tmp_path / "base.gin")
    small = small.replace(str(source.parent / MODEL), str(tmp_path / "base.gin"))
    (home / "src" / "t5x" / MODEL).write_text(small)
    task = (tmp_path / "line_tasks.py").read_text().replace('"lines"', '"my_task"')
    (tmp_path / "my_tasks.py").write_text(task)
    as_printed(block_of("flan_t5_base"), home, tmp_path, first="gcloud() { :; }\n")
    predictions = home / "out" / "my_task-predict.jsonl-00000-of-00001"
    rows = [json.loads(line) for line in predictions.read_text().splitlines()]
    assert [len(row["prediction"]) for row in rows] == [8, 8, 8]
    assert all(isinstance(text, str) for row in rows for text in row["prediction"])
