"""The gin files for T5X, read as ``t5x.infer`` reads them: by name, in any order, or refused."""

import sys
import types
import warnings

import pytest

import gin
from decoding_jax import gin_path
from decoding_jax.t5x.drafts import DraftCheckpoint

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("t5x.models", reason="T5X is not installed", exc_type=ImportError)
    import t5x.infer

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
    with pytest.raises(
        ValueError, match="directory: got None; takes a T5X checkpoint, DRAFT_CHECK"
    ):
        DraftCheckpoint(None).load(None)
