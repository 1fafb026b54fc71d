"""``t5x.infer``, run as a user runs it: a checkpoint, a SeqIO task, the gin files."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

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
    "diverse_beam_search",
    "stochastic_beam_search",
]
RUNS = [("encoder_decoder", name, False) for name in STRATEGIES] + [
    ("encoder_decoder", "arithmetic_sample", True),
    ("encoder_decoder", "beam_search", True),
    ("decoder_only", "arithmetic_sample", False),
    ("decoder_only", "beam_search", True),
]
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
    """The task, the model's gin file, and a checkpoint of random parameters."""
    (folder / "line_tasks.py").write_text(TASK.format(vocabulary=str(VOCABULARY)))
    base, package, config, others = MODELS[kind]
    lines = [
        "from __gin__ import dynamic_registration",
        "import line_tasks",
        "import seqio",
        f"from {package} import network",
        # By its full path: gin cannot look for files in a folder that is no package.
        f'include "{T5X.parent / base}"',
        f'seqio.SentencePieceVocabulary.sentencepiece_model_file = "{VOCABULARY}"',
        f"network.{config}.dtype = 'float32'",
        *(f"network.{config}.{k} = {v}" for k, v in (SHAPE | others).items()),
    ]
    (folder / "small.gin").write_text("\n".join(lines) + "\n")
    gated = {"mlp_activations": ("gelu", "linear")}
    if kind == "encoder_decoder":
        model = T5.init(T5Config(**SHAPE, **others, **gated), jax.random.key(0))
    else:
        model = T5Decoder.init(T5DecoderConfig(**SHAPE, **others, **gated), jax.random.key(0))
    return save_t5x(model, folder, step=10)


@pytest.mark.parametrize(("kind", "strategy", "native"), RUNS)
def test_predictions_are_written(kind, strategy, native, tmp_path):
    checkpoint = write(kind, tmp_path)
    gin_files = ["small.gin", f"gin/t5x/{strategy}.gin"]
    if native:
        gin_files.append(f"gin/t5x/native_{kind}.gin")
    gin_files.append("t5x/configs/runs/infer.gin")
    bindings = {
        "MIXTURE_OR_TASK_NAME": '"lines"',
        "TASK_FEATURE_LENGTHS": '{"inputs": 12, "targets": 8}',
        "CHECKPOINT_PATH": f'"{checkpoint}"',
        "INFER_OUTPUT_DIR": f'"{tmp_path / "out"}"',
        "DROPOUT_RATE": "0.0",
        "NUM_DECODES": "1" if strategy == "greedy" else "4",
        "utils.DatasetConfig.batch_size": "4",
        "utils.RestoreCheckpointConfig.dtype": '"float32"',
    }
    command = [
        sys.executable,
        *("-W", "ignore", "-m", "t5x.infer"),
        f"--gin_search_paths={tmp_path},{ROOT},{T5X.parent}",
        *(f"--gin_file={name}" for name in gin_files),
        *(f"--gin.{name}={value}" for name, value in bindings.items()),
    ]
    paths = [str(tmp_path), str(ROOT), os.environ.get("PYTHONPATH", "")]
    # One device, however many this process has: T5X wants rows for each.
    changes = {"PYTHONPATH": os.pathsep.join(paths), "XLA_FLAGS": ""}
    run = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, env={**os.environ, **changes}
    )
    assert run.returncode == 0, run.stderr[-3000:]
    (predictions,) = (tmp_path / "out").glob("lines-predict.jsonl-?????-of-?????")
    rows = [json.loads(line) for line in predictions.read_text().splitlines()]
    assert [row["inputs"]["inputs_pretokenized"] for row in rows] == [
        "Good morning!",
        "Where is the station?",
        "I am tired.",
    ]
    assert all(row["prediction"] for row in rows)
