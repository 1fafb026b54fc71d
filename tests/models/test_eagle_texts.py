"""Heads in directories, by ``generate``, the shell, and a refilled job of gin files."""

import functools
import json
import shutil

import jax
import numpy as np
import pytest
import safetensors.numpy
import tiers
from test_eagle import HEADS, target

import decoding_jax
from decoding_jax.infer import BatchDecoder
from decoding_jax.infer.command import main as infer
from decoding_jax.models import save_model
from decoding_jax.models.checkpoint.drafters import holds_drafter
from decoding_jax.shell.command import main as shell

TEXTS = ["a b c", "z", "k l", "q r s t", "c c", "h"]
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLM"


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """The target of a head of EAGLE-3, with a tokenizer of one token a letter."""
    folder = tmp_path_factory.mktemp("target")
    save_model(target(), folder)
    return with_tokenizer(folder)


def with_tokenizer(folder):
    vocabulary = {letter: i for i, letter in enumerate(["<unk>", *LETTERS])}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"}
    parts = dict.fromkeys(("normalizer", "post_processor", "decoder", "truncation", "padding"))
    tokenizer = {"version": "1.0", "added_tokens": [], "model": model, **parts}
    tokenizer["pre_tokenizer"] = {"type": "Whitespace"}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


def texts_of(rows):
    return [completion.text for row in rows for completion in row]


@pytest.mark.release
@pytest.mark.parametrize("way", ["greedy", "tree", "code"])
def test_generate_with_an_assistant_of_gemma4(tmp_path, way):
    """The texts are those without it: greedily, also in dynamic trees, and drawn by code."""
    folder = with_tokenizer(shutil.copytree(HEADS.parent / "fixtures" / "gemma4", tmp_path / "g"))
    model, tokenizer = decoding_jax.load(folder)
    assistant = decoding_jax.load_drafter(HEADS / "gemma4_ordered")
    speculation = {"strategy": "speculative_sample", "drafter": assistant, "num_draft_tokens": 2}
    sampled = {"num_samples": 2, "key": jax.random.key(0)} if way == "code" else {}
    speculation |= {"tree": "dynamic", "num_drafts": 2} if way == "tree" else {}
    run = functools.partial(
        decoding_jax.generate, model, tokenizer, TEXTS, max_new_tokens=8, **sampled
    )
    drafted = run(verifier="code" if sampled else "greedy", **speculation)
    alone = run(strategy="arithmetic_sample" if sampled else "greedy")
    assert texts_of(drafted) == texts_of(alone)


@pytest.mark.release
def test_generate_reads_the_head_for_its_model(directory):
    model, tokenizer = decoding_jax.load(directory)
    settings = {"max_new_tokens": 6}
    alone = decoding_jax.generate(model, tokenizer, TEXTS, **settings)
    speculation = {"strategy": "speculative_sample", "verifier": "greedy", "num_draft_tokens": 2}
    for drafter in (
        decoding_jax.load_drafter(HEADS / "authors"),
        decoding_jax.load_drafter(HEADS / "authors", (model, tokenizer)),
    ):
        drafted = decoding_jax.generate(
            model, tokenizer, TEXTS, drafter=drafter, **speculation, **settings
        )
        assert texts_of(drafted) == texts_of(alone)
    strategy = functools.partial(
        decoding_jax.speculative_sample, verifier="greedy", num_draft_tokens=2, **settings
    )
    head = decoding_jax.load_drafter(HEADS / "authors")
    decoder = BatchDecoder((model, tokenizer), strategy, drafter=head, max_input_length=8)
    batch = {"inputs": np.array(TEXTS), "index": np.arange(len(TEXTS))}
    found = decoder(batch)["outputs"]
    assert [output["text"] for row in found for output in row] == texts_of(alone)


def test_a_whole_model_with_blocks_drafts_for_others_as_any_model(tmp_path):
    whole = shutil.copytree(HEADS / "multi_token", tmp_path / "whole")
    tensors = safetensors.numpy.load_file(whole / "model.safetensors")
    assert holds_drafter(whole, whole)
    assert not holds_drafter(whole, "python-code")
    blocks = {k: v for k, v in tensors.items() if not k.startswith("model.layers.0.")}
    safetensors.numpy.save_file(blocks, whole / "model.safetensors")
    assert holds_drafter(whole, "python-code")
    assert holds_drafter("python-code-eagle", "python-code")


@pytest.mark.release
def test_the_embedded_head_drafts_for_its_model():
    """Texts are those of the model alone, in fewer than half as many calls."""
    model, tokenizer = decoding_jax.load("python-code")
    texts = ["    def __init__(self, name):\n        self.name", "        raise Not", "import os"]
    settings = {"max_new_tokens": 16, "batch_size": 3}
    alone = decoding_jax.generate(model, tokenizer, texts, **settings)
    drafted = decoding_jax.generate(
        model,
        tokenizer,
        texts,
        strategy="speculative_sample",
        verifier="greedy",
        drafter=decoding_jax.load_drafter("python-code-eagle"),
        num_draft_tokens=3,
        **settings,
    )
    assert texts_of(drafted) == texts_of(alone)
    counts = np.array([[row[0].info.emitted, row[0].info.blocks] for row in drafted]).sum(0)
    assert counts[0] > 2 * counts[1]


@pytest.mark.release
@pytest.mark.parametrize("name", tiers.values("authors", release=["multi_token"]))
def test_the_shell_takes_the_directory_of_a_head(name, directory, tmp_path, capsys):
    directory, head = directory_of(name, directory, tmp_path)
    argv = ["a b c", "--model", str(directory), "--max_new_tokens", "6", "--json"]
    assert shell(argv) == 0
    want = json.loads(capsys.readouterr().out)["outputs"][0]["text"]
    more = ["--strategy", "speculative_sample", "--verifier", "greedy"]
    assert shell([*argv, *more, "--drafter", str(head)]) == 0
    assert json.loads(capsys.readouterr().out)["outputs"][0]["text"] == want


def directory_of(name, directory, tmp_path):
    """The directories of a target and of its head; those of blocks are the same."""
    if name == "authors":
        return directory, HEADS / name
    return (with_tokenizer(shutil.copytree(HEADS / name, tmp_path / name)),) * 2


@pytest.mark.release
@pytest.mark.parametrize("name", ["authors", "multi_token"])
def test_a_job_by_the_names_of_its_files(name, directory, tmp_path, monkeypatch):
    """Six inputs in batches of two rows, which are refilled."""
    directory, found = directory_of(name, directory, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(jax, "local_devices", lambda: jax.devices()[:1])
    (tmp_path / "inputs.txt").write_text("".join(f"{text}\n" for text in TEXTS))

    def records(name, strategy, **bindings):
        bindings = {
            "MODEL_DIR": str(directory),
            "INPUT": "inputs.txt",
            "OUTPUT_DIR": name,
            "BATCH_SIZE": 2,
            "MAX_INPUT_LENGTH": 8,
            "MAX_NEW_TOKENS": 6,
            **bindings,
        }
        files = ["runs/infer.gin", "models/directory.gin", f"strategies/{strategy}.gin"]
        argv = [f"--gin_file={file}" for file in files]
        assert infer(["infer", *argv, *(f"--gin.{k}={v!r}" for k, v in bindings.items())]) == 0
        shards = sorted((tmp_path / name).glob("*.jsonl"))
        lines = [line for shard in shards for line in shard.read_text().splitlines()]
        return [[o["text"] for o in json.loads(line)["outputs"]] for line in lines]

    head = {"HEAD_DIR": str(found), "VERIFIER": "greedy", "NUM_DRAFT_TOKENS": 2}
    head |= {"NUM_DRAFTS": 2, "TREE": "dynamic", "TREE_SIZE": 5}
    assert records("drafted", "speculative_eagle", **head) == records("alone", "greedy")
