"""T5X's ``InteractiveModel`` with this library's decode functions and model classes in it."""

import warnings

import jax
import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("t5x.models", reason="T5X is not installed", exc_type=ImportError)
    import seqio
    from t5x import adafactor, decoding, interactive_model, models, partitioning
    from t5x.examples.t5 import network

    from decoding_jax.t5x import decode_fns, drafts
    from decoding_jax.t5x.models import NativeEncoderDecoderModel, SpeculativeEncoderDecoderModel

pytestmark = pytest.mark.filterwarnings("ignore")
BATCH = max(2, jax.device_count())  # T5X needs a row for each device.
LENGTHS = {"inputs": 12, "targets": 8}


@pytest.fixture(autouse=True)
def _as_t5x_is_written():
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield


def interactive(folder, make, decode_fn, **settings):
    """An interactive model whose random parameters are the same in every call."""
    config = network.T5Config(
        vocab_size=384,
        emb_dim=16,
        num_heads=8,  # One for each device.
        head_dim=4,
        mlp_dim=32,
        num_encoder_layers=1,
        num_decoder_layers=2,
        mlp_activations=("gelu", "linear"),
        dropout_rate=0.0,
    )
    vocabulary = seqio.ByteVocabulary()
    model = make(
        network.Transformer(config),
        vocabulary,
        vocabulary,
        adafactor.Adafactor(decay_rate=0.8, step_offset=0),
        decode_fn=decode_fn,
        **settings,
    )
    return interactive_model.InteractiveModel(
        batch_size=BATCH,
        task_feature_lengths=LENGTHS,
        output_dir=str(folder),
        partitioner=partitioning.PjitPartitioner(num_partitions=1),
        model=model,
        dtype=None,
        restore_mode="specific",
        checkpoint_path="",
        input_shapes={
            "encoder_input_tokens": (BATCH, LENGTHS["inputs"]),
            "decoder_target_tokens": (BATCH, LENGTHS["targets"]),
            "decoder_input_tokens": (BATCH, LENGTHS["targets"]),
            "decoder_loss_weights": (BATCH, LENGTHS["targets"]),
        },
    )


def test_predictions_are_t5xs(tmp_path):
    ways = {
        "t5x": (models.EncoderDecoderModel, decoding.temperature_sample, {}),
        "decode_fn": (models.EncoderDecoderModel, decode_fns.temperature_sample, {}),
        "native": (NativeEncoderDecoderModel, decode_fns.temperature_sample, {}),
        "speculative": (
            SpeculativeEncoderDecoderModel,
            decode_fns.speculative_sample,
            {"drafter": drafts.EarlyExit(1)},
        ),
    }
    found = {}
    for name, (make, decode_fn, settings) in ways.items():
        greedy = lambda *args, fn=decode_fn, **kw: fn(*args, **kw, temperature=0.0)  # noqa: E731
        model = interactive(tmp_path / name, make, greedy, **settings)
        predictions, aux = model.predict_with_aux(["Guten Tag", "ja"])
        assert len(aux["scores"]) == 2
        found[name] = [prediction for _, prediction in predictions]
    assert found["decode_fn"] == found["native"] == found["speculative"] == found["t5x"]
