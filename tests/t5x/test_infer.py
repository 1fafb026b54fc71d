"""Runs ``t5x.infer`` as a user does: with a checkpoint, a SeqIO task and the gin files."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from decoding_jax import gin_path
from decoding_jax.models import T5, T5Config, T5Decoder, T5DecoderConfig, save_t5x
from decoding_jax.text.loading import embedded

if importlib.util.find_spec("t5x") is None or not importlib.util.find_spec("t5x").origin:
    pytest.skip("T5X is not installed", allow_module_level=True)

ROOT = Path(__file__).parents[2]
T5X = Path(importlib.util.find_spec("t5x").origin).parent
VOCABULARY = embedded()["translation-en-fr"] / "spiece.model"
SHAPE = {"vocab_size": 8192, "emb_dim": 16, "num_heads": 2, "head_dim": 8, "mlp_dim": 32}
STRATEGIES = [
    "greedy",
    "temperature_sample",
    "arithmetic_sample",
    "beam_search",
    "beam_sample",
    "constrained_beam_search",
    "diverse_beam_search",
    "stochastic_beam_search",
]
RUNS = [("encoder_decoder", name, False) for name in STRATEGIES] + [
    ("encoder_decoder", "arithmetic_sample", True),
    ("encoder_decoder", "beam_search", True),
    ("encoder_decoder", "best_k_search", True),
    ("encoder_decoder", "best_first_search", True),
    ("encoder_decoder", "contrastive_search", True),
    ("encoder_decoder", "conditional_sample", True),
    ("encoder_decoder", "smc_sample", True),
    ("decoder_only", "arithmetic_sample", False),
    ("decoder_only", "beam_search", True),
    ("decoder_only", "best_k_search", True),
    ("decoder_only", "constrained_beam_search", True),
    ("decoder_only", "contrastive_search", True),
]
PHRASE = "gare"
TASK = """
import seqio
import tensorflow as tf

VOCABULARY = seqio.SentencePieceVocabulary({vocabulary!r})
LINES = ["Good morning!", "Where is the station?", "I am tired."]


def source(split, shuffle_files=False, seed=None):
    return tf.data.Dataset.from_tensor_slices({{"inputs": LINES, "targets": LINES}})


seqio.TaskRegistry.add(
    "lines",
    source=seqio.FunctionDataSource(source, ["test"], num_input_examples={{"test": 3}}),
    preprocessors=[seqio.preprocessors.tokenize, seqio.preprocessors.append_eos],
    output_features={{
        "inputs": seqio.Feature(VOCABULARY),
        "targets": seqio.Feature(VOCABULARY),
    }},
)
"""
MODELS = {
    "encoder_decoder": (
        "t5x/examples/t5/t5_1_1/base.gin",
        "t5x.examples.t5",
        "T5Config",
        {"num_encoder_layers": 2, "num_decoder_layers": 2, "logits_via_embedding": False},
    ),
    "decoder_only": (
        "t5x/examples/decoder_only/models/base.gin",
        "t5x.examples.decoder_only",
        "TransformerConfig",
        {"num_layers": 2, "logits_via_embedding": False},
    ),
}


def write(kind, folder):
    """Writes the task, the model's gin file, and a checkpoint of random parameters."""
    (folder / "line_tasks.py").write_text(TASK.format(vocabulary=str(VOCABULARY)))
    base, package, config, others = MODELS[kind]
    lines = [
        "from __gin__ import dynamic_registration",
        "import line_tasks",
        "import seqio",
        f"from {package} import network",
        # The full path is needed, since gin does not search a folder that is not a package.
        f'include "{T5X.parent / base}"',
        f'seqio.SentencePieceVocabulary.sentencepiece_model_file = "{VOCABULARY}"',
        f"network.{config}.dtype = 'float32'",
        *(f"network.{config}.{k} = {v}" for k, v in (SHAPE | others).items()),
    ]
    (folder / "small.gin").write_text("\n".join(lines) + "\n")
    return save_t5x(random_model(kind), folder, step=10)


def random_model(kind, seed=0, **changes):
    settings = SHAPE | MODELS[kind][-1] | {"mlp_activations": ("gelu", "linear")} | changes
    if kind == "encoder_decoder":
        return T5.init(T5Config(**settings), jax.random.key(seed))
    return T5Decoder.init(T5DecoderConfig(**settings), jax.random.key(seed))


def infer(folder, gin_files, bindings):
    """Runs ``t5x.infer`` in a separate process and returns the predictions that it wrote."""
    bindings = {
        "MIXTURE_OR_TASK_NAME": '"lines"',
        "TASK_FEATURE_LENGTHS": '{"inputs": 12, "targets": 8}',
        "INFER_OUTPUT_DIR": f'"{folder / "out"}"',
        "DROPOUT_RATE": "0.0",
        "utils.DatasetConfig.batch_size": "4",
        "utils.RestoreCheckpointConfig.dtype": '"float32"',
        **bindings,
    }
    gin_files = ["small.gin", *gin_files, "t5x/configs/runs/infer.gin"]
    command = [
        sys.executable,
        *("-W", "ignore", "-m", "t5x.infer"),
        f"--gin_search_paths={folder},{gin_path.folder()},{T5X.parent}",
        *(f"--gin_file={name}" for name in gin_files),
        *(f"--gin.{name}={value}" for name, value in bindings.items()),
    ]
    paths = [str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")]
    # The process has one device, whatever this one has: T5X needs rows for each device.
    changes = {"PYTHONPATH": os.pathsep.join(paths), "XLA_FLAGS": ""}
    run = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, env={**os.environ, **changes}
    )
    assert run.returncode == 0, run.stderr[-3000:]
    (predictions,) = (folder / "out").glob("lines-predict.jsonl-?????-of-?????")
    rows = [json.loads(line) for line in predictions.read_text().splitlines()]
    assert [row["inputs"]["inputs_pretokenized"] for row in rows] == [
        "Good morning!",
        "Where is the station?",
        "I am tired.",
    ]
    return [row["prediction"] for row in rows]


@pytest.mark.parametrize(("kind", "strategy", "native"), RUNS)
def test_predictions_are_written(kind, strategy, native, tmp_path):
    checkpoint = write(kind, tmp_path)
    gin_files = [f"t5x/{strategy}.gin"]
    if native:
        gin_files.append(f"t5x/native_{kind}.gin")
    count = 1 if strategy in ("greedy", "contrastive_search") else 4
    returns_all = strategy.endswith("sample") and strategy not in (
        "temperature_sample",
        "beam_sample",
    )
    returns_all = returns_all or strategy == "stochastic_beam_search"
    bindings = {"CHECKPOINT_PATH": f'"{checkpoint}"', "NUM_DECODES": count}
    if strategy == "constrained_beam_search":
        bindings["PHRASES"] = f"({PHRASE!r},)"
    predictions = infer(tmp_path, gin_files, bindings)
    assert all(predictions)
    if returns_all:
        assert [len(texts) for texts in predictions] == [4, 4, 4]
        assert all(isinstance(text, str) for texts in predictions for text in texts)
    if strategy == "constrained_beam_search":
        assert all(PHRASE in prediction for prediction in predictions)


DRAFTERS = {
    "lookup": """
from __gin__ import dynamic_registration
from decoding_jax.strategies import speculative
DRAFTER = @speculative.PromptLookup()
NUM_DRAFT_TOKENS = @speculative.Heuristic()
speculative.Heuristic.max_draft_tokens = 3
VERIFIER = "block"
NUM_DECODES = 3
""",
    "exit": """
from __gin__ import dynamic_registration
from decoding_jax.t5x import drafts
DRAFTER = @drafts.EarlyExit()
drafts.EarlyExit.num_layers = 1
VERIFIER = "code"
NUM_DECODES = 3
""",
    "config": """
from __gin__ import dynamic_registration
from t5x.examples.t5 import network
from decoding_jax.t5x import drafts
drafts.DraftCheckpoint.config = @draft/network.T5Config()
draft/network.T5Config.num_decoder_layers = 1
TEMPERATURE = 0.0
""",
}


@pytest.mark.parametrize(
    ("kind", "draft"),
    [
        ("encoder_decoder", "config"),
        ("encoder_decoder", "lookup"),
        ("decoder_only", "checkpoint"),
        ("decoder_only", "exit"),
    ],
)
def test_speculation_with_a_draft_named_in_gin(kind, draft, tmp_path):
    """The case ``config`` is at temperature 0, so its texts equal those of greedy decoding."""
    bindings = {"CHECKPOINT_PATH": f'"{write(kind, tmp_path)}"'}
    gin_files = [f"t5x/speculative_{kind}.gin"]
    drafting = {}
    if draft in DRAFTERS:
        (tmp_path / "draft.gin").write_text(DRAFTERS[draft])
        gin_files.append("draft.gin")
    if draft in ("checkpoint", "config"):
        drafting["DRAFT_CHECKPOINT_PATH"] = '"draft/checkpoint_5"'
        layers = {"num_decoder_layers": 1} if kind == "encoder_decoder" else {"num_layers": 1}
        save_t5x(random_model(kind, seed=1, **layers), tmp_path / "draft", step=5)
    found = infer(tmp_path, gin_files, bindings | drafting)
    assert all(found)
    if draft == "config":
        for file in (tmp_path / "out").iterdir():
            file.unlink()
        gin_files = ["t5x/greedy.gin", f"t5x/native_{kind}.gin"]
        assert infer(tmp_path, gin_files, bindings) == found
