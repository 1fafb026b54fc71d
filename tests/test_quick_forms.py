"""The quick forms of the experiments run to their end and write their files."""

import gzip
import importlib
import importlib.util
import itertools
import json

import jax
import pytest

import decoding_jax
from experiments import train_code, train_translation
from experiments.benchmarks import job_start, run

FORMS = {
    "constraints": ("constraints.json",),
    "conditional": ("conditional.json", "conditional.png"),
    "confident_votes": ("confident_votes.json",),
    "eight_samples": ("eight_samples.json", "eight_samples.svg"),
    "reproducible": ("reproducible.json",),
    "quantization": ("quantization.json",),
    "quality_diversity": ("quality_diversity.json", "quality_diversity.png"),
    "pass_at_k": ("pass_at_k.json", "pass_at_k.png"),
    "rollouts": ("rollouts.json", "rollouts.png"),
    "rollouts_training": ("rollouts_training.json", "rollouts_training.png"),
    "speculative_agreement": ("greedy-draft-1x1-translation-en-fr-draft-4-1-0.json",),
    "wide_tries": ("wide_tries.json",),
    "speculative_couplings": ("couplings.json", "token.jsonl"),
}
PLOTS = {"sampling_step", "whole_decode", "beam_search", "best_k", "speculative"}


def packages(*names):
    for name in names:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")


@pytest.mark.release
@pytest.mark.parametrize("name", FORMS)
def test_an_experiment(name, tmp_path, capsys):
    packages("matplotlib", "sacrebleu", "rouge_score")
    importlib.import_module(f"experiments.{name}").main(["--quick", "--out", str(tmp_path)])
    for file in FORMS[name]:
        assert (tmp_path / file).stat().st_size > 50
        if file.endswith(".json"):
            json.loads((tmp_path / file).read_text())
    assert len(capsys.readouterr().out.splitlines()) > 2


@pytest.mark.release
@pytest.mark.parametrize("name", ["verification_bounds", "drafts_compared"])
def test_an_experiment_that_prints_a_table(name, capsys):
    importlib.import_module(f"experiments.{name}").main(["--quick"])
    assert 5 <= len(capsys.readouterr().out.splitlines()) <= 9


@pytest.mark.release
def test_the_evaluation_of_a_model(capsys):
    packages("sacrebleu")
    importlib.import_module("experiments.evaluate_translation").main(["--quick"])
    assert "translation-en-fr-draft: BLEU = " in capsys.readouterr().out


@pytest.mark.release
def test_the_training_of_a_model(tmp_path):
    """Of short sentences of one length, so that one program is compiled."""
    words = itertools.product(("I", "we", "you"), ("eat", "see", "hear"), ("it", "her", "all"))
    pairs = "".join(f"{a} {b} {c}\t{a} {c} {b}\tlicence\n" for a, b, c in words)
    with gzip.open(tmp_path / "pairs.gz", "wt", encoding="utf-8") as file:
        file.write(pairs)
    given = {"data": "pairs.gz", "out": "run", "export": "model"}
    paths = itertools.chain(*((f"--{name}", str(tmp_path / path)) for name, path in given.items()))
    with jax.numpy_dtype_promotion("standard"):  # As the command has it.
        train_translation.main(["--quick", "--vocab_size=22", *paths])
    assert len((tmp_path / "run" / "held_out.jsonl").read_text().splitlines()) == 4
    model, tokenizer = decoding_jax.load(tmp_path / "model")
    assert model.config.vocab_size == 22
    assert tokenizer.encode("I see it")


@pytest.mark.release
def test_the_training_of_a_model_of_code(tmp_path, capsys):
    """It stops after its last step, continues there, and the exported model is the trained one."""
    for i in range(8):
        lines = (f"def f{k}(x):\n    return {k % i if i else k} + x\n" for k in range(16))
        (tmp_path / f"m{i}.py").write_text("\n".join(lines))
    given = {"data": "", "out": "run", "export": "model"}
    paths = itertools.chain(*((f"--{name}", str(tmp_path / path)) for name, path in given.items()))
    argv = ["--quick", "--vocab_size=270", "--every=2", *paths]
    with jax.numpy_dtype_promotion("standard"):  # As the command has it.
        train_code.main([*argv, "--epochs=1"])
        first = capsys.readouterr().out
        train_code.main([*argv, "--epochs=1"])
    assert "bits per character" in first
    assert capsys.readouterr().out == first
    model, tokenizer = decoding_jax.load(tmp_path / "model")
    assert (model.config.vocab_size, tokenizer.eos_ids) == (270, (0,))
    assert tokenizer.decode(tokenizer.encode("def f(x):\n    ")) == "def f(x):\n    "


@pytest.mark.release
@pytest.mark.parametrize("name", run.BENCHMARKS)
def test_a_benchmark(name, tmp_path, capsys):
    packages("matplotlib")
    if name in run.BESIDE_TRANSFORMERS:
        packages("transformers", "torch")
    run.main(["--quick", "--out", str(tmp_path), "--only", name])
    assert json.loads((tmp_path / f"{name}.json").read_text())
    assert name not in PLOTS or (tmp_path / f"{name}.png").stat().st_size > 5000
    assert len(capsys.readouterr().out.splitlines()) > 1


def test_the_start_of_a_job(capsys):
    job_start.measure(num_inputs=30, shard_size=20)
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines[:2]] == [
        "counting 30 inputs",
        "holding 20 inputs",
    ]
    assert len(lines) == 5
