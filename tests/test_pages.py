"""Runs every block of code on the documentation pages exactly as it is printed.

The working directory contains small models under the names that the pages use.
"""

import ast
import dataclasses
import gzip
import importlib.util
import io
import itertools
import json
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import types
from pathlib import Path

import jax
import pytest
from networks import drawn
from pages import PAGES, ROOT, blocks, commands, links

import decoding_jax
from decoding_jax import gin_path, shell
from decoding_jax.infer import merge, records, shards
from decoding_jax.infer.command import main
from decoding_jax.models import T5, Bart, BartConfig, T5Config, save_model
from decoding_jax.models.gpt2 import GPT2, GPT2Config

DOCS = ROOT / "docs"
ALL = [block for page in PAGES for block in blocks(page)]
SHELL = ("bash", "sh")
# The beginnings of commands that these tests do not run, and the reasons.
NOT_RUN = {
    "python -m decoding_jax.infer --gin_file=runs/demo.gin": "tests/infer/test_command.py runs it",
    "pip install": "the gate installs what the README says; T5X is installed where it is tested",
    "python -m pytest": "runs these tests",
    "python -m decoding_jax.testing.certify": "takes minutes: tests/testing/test_certify.py",
    "python -m experiments.cloud.preemptions": "takes minutes: tests/cloud/test_preemptions.py",
    "python -m decoding_jax.lm_eval": "tasks of the network: tests/test_lm_eval.py has others",
    "python -m experiments.benchmarks": "takes minutes: tests/test_quick_forms.py",
    "python -m experiments.tpu_ledger": "takes minutes: tests/sharding/test_tpu_ledger.py",
    "python -m experiments.gpu_ledger": "takes minutes: tests/test_gpu_ledger.py",
    "python -m experiments.audit": "needs other projects: tests/audit/test_audit.py",
    "python -m experiments.site": "takes a minute: tests/site/test_site.py",
    "python -m experiments.papers": "takes minutes: tests/papers/ runs the quick forms",
    "python -m experiments.notebooks.execute": "minutes: tests/notebooks/test_notebooks.py",
    "python -m experiments.train_code": "trains for half an hour: tests/test_quick_forms.py",
    "python -m experiments.train_drafter": "trains for half an hour: tests/test_train_drafter.py",
    "python -m experiments.train_translation": "trains for hours on data of another site",
    "uv ": "makes an environment",
    "curl": "needs the network",
    "experiments/cloud/install_t5x.sh": "needs the network",
    "cat out/": "prints predictions of T5X: tests/t5x/test_gin.py",
    "python -m venv": "makes an environment",
    ".ci/": "runs the whole gate",
    "JAX_PLATFORMS=cuda": "needs a GPU",
    "gcloud": "needs the network",
    "export": "sets a variable; for T5X see tests/t5x/test_gin.py",
    "for i in 0 1": "starts two processes: tests/infer/test_processes.py",
    "python -m t5x.infer": "needs T5X: tests/t5x/test_gin.py",
    "--gin": "flags of that command: tests/t5x/test_gin.py",
}
# Blocks that cannot be run here: signatures without bodies, lists of modules, and a module.
SKETCHES = {
    ("docs/model_methods.md", "class LanguageModel("),
    ("docs/t5x.md", "import seqio"),  # a module, which tests/t5x/test_gin.py runs
    ("docs/design.md", "init(model, prompt, key) -> state"),
    ("docs/chat.md", "parameters ="),  # tests/constraints/test_constrained_texts.py has calls
    ("CONTRIBUTING.md", "decoding_jax/\n"),
}
RUN = [
    (block, command)
    for block in ALL
    if block.language in SHELL
    for command in commands(block)
    if not command.startswith(tuple(NOT_RUN))
]


def is_sketch(block):
    return any(block.page == p and block.text.startswith(start) for p, start in SKETCHES)


# With the embedded models, these pages show what their blocks print.
SHOWN = ("README.md", "docs/index.md")
PYTHON = {b.page for b in ALL if b.language == "python" and not is_sketch(b)} - set(SHOWN)


def small_t5(**changes):
    shape = {"vocab_size": 384, "emb_dim": 8, "num_heads": 1, "head_dim": 8, "mlp_dim": 8}
    layers = {"num_encoder_layers": 1, "num_decoder_layers": 1}
    return drawn(T5, T5Config(**shape | layers | changes))


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """Models under the names that pages use. The T5 models read bytes, and GPT-2 a few words."""
    folder = tmp_path_factory.mktemp("models")
    for name in ("translation-en-fr", "translation-en-fr-draft"):
        save_model(small_t5(), folder / name, settings={"eos_token_id": 1})
    config = GPT2Config(vocab_size=16, emb_dim=8, num_heads=1, num_layers=1, mlp_dim=8)
    save_model(drawn(GPT2, config), folder / "gpt2", settings={"eos_token_id": 15})
    names = ("?", "once", "upon", "a", "time", "there", "was", "in", "the", "end")
    words = {word: i for i, word in enumerate(names)}
    tokenizer = {
        "version": "1.0",
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "?"},
    }
    (folder / "gpt2" / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "python-code").symlink_to(folder / "gpt2")
    nllb = BartConfig(20, 8, 1, 1, 8, 8, 1, 1, positions="sinusoidal_inclusive", norm_first=True)
    nllb = dataclasses.replace(nllb, embedding_norm=False, logits_bias=False)
    save_model(drawn(Bart, nllb), folder / "nllb-200-distilled-600M")
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    codes = ("</s>", "eng_Latn", "fra_Latn", "deu_Latn")
    tokenizer["added_tokens"] = [
        {"id": 2 if i == 0 else 15 + i, "content": code, "special": True, **special}
        for i, code in enumerate(codes)
    ]
    tokenizer["model"]["vocab"] = {name: i if i != 2 else 14 for name, i in words.items()}
    (folder / "nllb-200-distilled-600M" / "tokenizer.json").write_text(json.dumps(tokenizer))
    chat = shutil.copytree(folder / "gpt2", folder / "Qwen3-0.6B")
    template = (
        "{% if tools %}tools {% endif %}{% if enable_thinking is false %}think {% endif %}"
        "{% for m in messages %}{{ m.role }} {{ m.content }} end {% endfor %}"
    )
    (chat / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    return folder


@pytest.fixture
def hub(models, monkeypatch):
    """Leads ``hf://`` to the models above."""
    hub = types.SimpleNamespace(snapshot_download=lambda name, **_: models / name.split("/")[1])
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)


@pytest.fixture
def place(models, hub, tmp_path, monkeypatch):
    """A working directory with the models, inputs and task module that pages use."""
    for model in models.iterdir():
        (tmp_path / model.name).symlink_to(model)
    (tmp_path / "sentences.txt").write_text("Good morning!\nI am here.\n")
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "once upon a time"}\n')
    (tmp_path / "data").mkdir()
    for name in ("one", "two"):
        (tmp_path / "data" / f"{name}.jsonl").write_text('{"inputs": "I am here."}\n')
    (tmp_path / "my_tasks.py").write_text(TASKS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(jax, "local_devices", lambda: jax.devices()[:1])
    return tmp_path


TASKS = """
import seqio
import tensorflow as tf


def source(split, shuffle_files=False, seed=None):
    return tf.data.Dataset.from_tensor_slices({"inputs": ["one", "two"]})


seqio.TaskRegistry.add(
    "my_task",
    source=seqio.FunctionDataSource(source, ["test"], num_input_examples={"test": 2}),
    preprocessors=[seqio.preprocessors.tokenize],
    output_features={"inputs": seqio.Feature(seqio.ByteVocabulary())},
)
"""


@pytest.mark.parametrize("page", PAGES)
def test_every_block_is_valid(page):
    """Each block is code that a test runs, or an exception that is listed above."""
    for block in blocks(page):
        where = f"{block.page}:{block.line}"
        if block.language == "":
            gin_file = "from __gin__ import dynamic_registration\n" in block.text
            assert gin_file or is_sketch(block), f"{where}: neither a gin file nor a language"
        elif block.language == "{toctree}":
            pass  # The build of the site checks it: tests/site.
        elif block.language == "json":
            json.loads(block.text)
        elif block.language == "python":
            assert is_sketch(block) or ast.parse(block.text), where
        else:
            assert block.language in SHELL, where
            syntax = subprocess.run(["bash", "-n"], input=block.text, text=True, check=False)
            assert syntax.returncode == 0, where


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_to_a_file_of_the_repository(page):
    """And not to a page that only the built site has."""
    for target in links(page):
        if not target.startswith(("http:", "https:", "#")):
            file = (ROOT / page).parent / target.partition("#")[0]
            assert file.exists(), f"{page}: {target}"
            assert "generated" not in file.parts, f"{page}: {target}"


def test_intervals_are_those_of_the_committed_tables():
    """An estimate with an interval, such as 0.5 (0.4 to 0.6), is in a table of a command."""
    number = r"[-+]?\d+(?:\.\d+)?"
    written = [page for part in ("papers", "measured") for page in DOCS.glob(f"{part}/*.md")]
    made = "".join(page.read_text("utf-8") for page in written)
    for page in DOCS.glob("*.md"):  # A command writes tables between marks.
        made += "".join(re.findall(r"<!-- [^>]* begins -->[^<]*", page.read_text("utf-8")))
    for page in DOCS.glob("*.md"):
        text = " ".join(page.read_text("utf-8").split())
        found = re.findall(rf"(?<![\w.])({number} \({number} to {number}\))", text)
        assert [interval for interval in found if interval not in made] == [], page.name


@pytest.mark.parametrize("page", ["README.md", "CHANGELOG.md", *sorted(DOCS.glob("*.md"))], ids=str)
def test_a_page_that_a_user_reads_is_short(page):
    """Longer ones are divided, or their tables are on generated pages, in folders of ``docs``."""
    assert len((ROOT / page).read_text("utf-8").split()) <= 2500


def test_the_gate_runs_what_the_readme_says():
    gate = (ROOT / ".ci" / "run").read_text()
    run = re.findall(r"^  \[\w+\]='(.*?)'$", gate, re.M | re.S)
    printed = [block.text.strip() for block in blocks("README.md") if block.language == "bash"]
    assert len(run) == 2
    assert set(run) <= set(printed)


def test_the_citation_is_of_this_version():
    assert f"\nversion: {decoding_jax.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_every_exception_is_needed():
    printed = [c for block in ALL if block.language in SHELL for c in commands(block)]
    for start in NOT_RUN:
        assert any(command.startswith(start) for command in printed), start
    for page, start in SKETCHES:
        assert any(b.page == page and b.text.startswith(start) for b in ALL), start


def tier(block):
    """The README's commands stand for those of all pages."""
    return () if block.page == "README.md" else pytest.mark.exhaustive


@pytest.mark.parametrize(
    ("block", "command"),
    [pytest.param(b, c, id=f"{b.page}:{b.line}", marks=tier(b)) for b, c in RUN],
)
def test_a_command_as_it_is_printed(block, command, place, capsys, monkeypatch):
    argv = shlex.split(command)
    if argv[0] == "printf":
        subprocess.run(["bash", "-c", command], cwd=place, check=True)
        return
    if argv[:3] == ["python", "-m", "decoding_jax.infer.merge"]:
        merge_as_printed(argv[3:], place)
        return
    if "<" in argv:
        monkeypatch.setattr("sys.stdin", io.StringIO(Path(argv.pop()).read_text()))
        argv.remove("<")
    if argv[:3] == ["python", "-m", "decoding_jax"]:
        assert shell.main(argv[3:]) == 0, capsys.readouterr().err
        assert capsys.readouterr().out
        return
    if argv[0].startswith("experiments/cloud/"):
        dry = [*argv, *["--dry-run"] * ("--dry-run" not in argv)]
        monkeypatch.setenv("PROJECT", "p")
        monkeypatch.setenv("BUCKET", "gs://b")
        done = subprocess.run(dry, cwd=ROOT, check=True, capture_output=True, text=True)
        assert "+ " in done.stdout + done.stderr
        return
    assert argv[:3] == ["python", "-m", "decoding_jax.infer"], "no other command is run so far"
    for other in blocks(block.page):
        if other.language == "" and other.text.startswith("# "):
            name = other.text.split()[1].removesuffix(":")
            (place / name).write_text(other.text)
    if "task.gin" in command:
        pytest.importorskip("seqio", reason="SeqIO is not installed", exc_type=ImportError)
    assert main(argv[2:]) == 0, capsys.readouterr().err
    (out,) = [arg for arg in argv if arg.startswith("--gin.OUTPUT_DIR=")]
    (shard,) = (place / ast.literal_eval(out.split("=", 1)[1])).glob("decodes-*.jsonl")
    made = [json.loads(line) for line in shard.read_text("utf-8").splitlines()]
    assert made
    assert all(record["outputs"] for record in made)


def merge_as_printed(argv, place):
    """Runs the command in place of a job that has written one shard."""
    out = place / argv[0]
    out.mkdir()
    job = {"inputs": {"count": 1}, "shard_size": 1024, "name": "decodes"}
    (out / "job.json").write_text(json.dumps(job))
    record = records.fault(0, "", "empty", seed=0)
    shards.write_records(out / shards.shard_name("decodes", 0, 1), [record])
    assert merge.main(argv) == 0
    assert gzip.decompress((place / argv[2]).read_bytes()).decode() == records.to_checked_line(
        record
    )


# These pages take longest; the gate runs them with the exhaustive tests.
LONG = (
    "docs/adapters.md",
    "docs/combined_models.md",
    "docs/conditional.md",
    "docs/constraints.md",
    "docs/drafters.md",
    "docs/engines.md",
    "docs/estimators.md",
    "docs/generation_config.md",
    "docs/models.md",
    "docs/quantization.md",
    "docs/rollouts.md",
    "docs/shared_prefix.md",
    "docs/show.md",
    "docs/speculative.md",
    "docs/stopping.md",
    "docs/strategies.md",
    "docs/streaming.md",
    "docs/token_scores.md",
    "docs/watermarks.md",
)
# Blocks with these imports are run where the package is installed.
OPTIONAL = {
    "from tunix.": "tunix",
    "import ray\n": "ray",
    "import apache_beam": "apache_beam",
    "import datasets\n": "datasets",
    "import inspect_ai\n": "inspect_ai",
}


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(p, marks=pytest.mark.exhaustive) if str(p) in LONG else p
        for p in sorted(PYTHON)
    ],
)
# The pages' models have random weights here, and few of their texts come to an end.
@pytest.mark.filterwarnings("ignore::decoding_jax.CutTextWarning")
def test_python_as_it_is_printed(page, place, capsys, monkeypatch):
    """Runs the blocks of a page in order, in one namespace."""
    if page == "docs/t5x.md":
        pytest.importorskip("tensorstore", reason="tensorstore is not installed")
        write_t5x_checkpoints(place)
    if page == "docs/adapters.md":
        for package in ("equinox", "haiku"):
            pytest.importorskip(package, reason=f"{package} is not installed")
    if page == "docs/constraints.md":
        (place / "python-code").unlink()  # The embedded model has tokens for JSON.
    if page == "docs/generation_config.md":  # It copies an embedded model.
        small = {path.name: path for path in place.iterdir()}
        monkeypatch.setattr(decoding_jax.text, "embedded", lambda: small)
    names = {"__name__": __name__}  # Its warnings are errors, as this module's are.
    for block in blocks(page):
        missing = any(
            start in block.text and importlib.util.find_spec(package) is None
            for start, package in OPTIONAL.items()
        )
        if block.language == "python" and not is_sketch(block) and not missing:
            exec(compile(block.text, f"{page}:{block.line}", "exec"), names)


@pytest.mark.exhaustive
@pytest.mark.parametrize("page", SHOWN)
# Of the models of the Hub, which have random weights here, few texts come to an end.
@pytest.mark.filterwarnings("ignore::decoding_jax.CutTextWarning")
def test_a_page_shows_what_its_blocks_print(page, hub, capsys):
    """With the embedded models, the last lines of a block, which are comments, are its output."""
    names = {"__name__": __name__}
    for block in blocks(page):
        if block.language == "python":
            exec(compile(block.text, f"{page}:{block.line}", "exec"), names)
            lines = reversed(block.text.splitlines())
            shown = [line[2:] for line in itertools.takewhile(lambda line: line[:2] == "# ", lines)]
            assert capsys.readouterr().out.splitlines() == shown[::-1]


def write_t5x_checkpoints(place):
    from decoding_jax.models import save_t5x
    from decoding_jax.text.loading import embedded

    pieces = embedded()["translation-en-fr"] / "spiece.model"
    shutil.copy(pieces, place / "sentencepiece.model")
    save_t5x(small_t5(vocab_size=8192), place / "t5_1_1_base", step=1_000_000)
    gated = small_t5(mlp_activations=("silu", "linear"), logits_via_embedding=False)
    save_t5x(gated, place / "my_model", step=1)


def test_the_folder_of_gin_files_is_printed(capsys):
    """Runs the module as ``python -m decoding_jax.gin_path`` does."""
    runpy.run_path(gin_path.__file__, run_name="__main__")
    printed = capsys.readouterr().out
    assert printed.endswith("\n")
    assert (Path(printed.strip()) / "t5x" / "arithmetic_sample.gin").is_file()
