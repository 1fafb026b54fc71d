"""The native networks against T5X's own, on the same parameters."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from machine import need_devices

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("t5x.models", reason="T5X is not installed", exc_type=ImportError)
    import seqio
    from t5x import adafactor, decoding, models, partitioning, utils
    from t5x.examples.decoder_only import network as decoder_only
    from t5x.examples.scalable_t5 import network as scalable
    from t5x.examples.t5 import network as t5

    from decoding_jax.t5x import decode_fns
    from decoding_jax.t5x.models import NativeDecoderOnlyModel, NativeEncoderDecoderModel, as_native

from decoding_jax.models import quantize
from decoding_jax.models.t5 import T5Network

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def _as_t5x_is_written():
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield


SHAPE = {
    "vocab_size": 24,
    "emb_dim": 24,
    "num_heads": 3,
    "head_dim": 8,
    "mlp_dim": 32,
    "dropout_rate": 0.0,
}
LAYERS = {"num_encoder_layers": 2, "num_decoder_layers": 2}
GATED = {"mlp_activations": ("gelu", "linear")}
NETWORKS = {
    "t5_1_0": (t5, LAYERS | {"logits_via_embedding": True}),
    "t5_1_1": (t5, LAYERS | GATED),
    "byt5": (t5, LAYERS | GATED | {"num_encoder_layers": 3}),
    "mt5_scanned": (scalable, LAYERS | GATED | {"scan_layers": True}),
    "mt5_unscanned": (scalable, LAYERS | GATED | {"scan_layers": False}),
    "t5_1_0_scanned": (scalable, LAYERS | {"scan_layers": True, "logits_via_embedding": True}),
}
INPUT, TARGET = 10, 12
VOCABULARY = seqio.ByteVocabulary()


def batch_of(rows=6):
    draw = np.random.default_rng(2)
    source = draw.integers(3, 24, size=(rows, INPUT), dtype=np.int32)
    source[np.arange(INPUT)[None] >= draw.integers(3, INPUT + 1, size=rows)[:, None]] = 0
    target = draw.integers(3, 24, size=(rows, TARGET), dtype=np.int32)
    shifted = np.pad(target, ((0, 0), (1, 0)))[:, :-1]
    causal = (np.arange(TARGET)[None] <= draw.integers(1, 6, size=rows)[:, None]).astype(np.int32)
    return {
        "encoder_input_tokens": jnp.asarray(source),
        "decoder_input_tokens": jnp.asarray(shifted),
        "decoder_target_tokens": jnp.asarray(target),
        "decoder_causal_attention": jnp.asarray(causal),
    }


def pair(name, decode_fn=None, native_fn=None, **shape):
    """T5X's model, the native one, and parameters for both."""
    shape = SHAPE | shape
    if name.startswith("decoder_only"):
        config = decoder_only.TransformerConfig(**shape, **GATED, num_layers=2)
        module = decoder_only.DecoderWrapper(config)
        classes = (models.DecoderOnlyModel, NativeDecoderOnlyModel)
        settings = {"inputs_bidirectional_attention": name.endswith("prefix")}
        vocabularies = (VOCABULARY,)
        shapes = {"decoder_input_tokens": (1, TARGET)}
    else:
        network, changes = NETWORKS[name]
        module = network.Transformer(network.T5Config(**(shape | changes)))
        classes = (models.EncoderDecoderModel, NativeEncoderDecoderModel)
        settings, vocabularies = {}, (VOCABULARY, VOCABULARY)
        shapes = {"encoder_input_tokens": (1, INPUT), "decoder_input_tokens": (1, TARGET)}
    optimizer = adafactor.Adafactor(decay_rate=0.8, step_offset=0)
    theirs = classes[0](module, *vocabularies, optimizer,
                        decode_fn or decoding.temperature_sample, **settings)  # fmt: skip
    ours = classes[1](module, *vocabularies, optimizer,
                      native_fn or decode_fns.temperature_sample, **settings)  # fmt: skip
    types = dict.fromkeys(shapes, jnp.int32)
    params = jax.jit(lambda key: theirs.get_initial_variables(key, shapes, types)["params"])(
        jax.random.PRNGKey(0)
    )
    draw = np.random.default_rng(3)
    # Initial biases are close to 0; larger ones show whether heads are confused.
    params = jax.tree.map(lambda x: x * (1 + draw.normal(size=x.shape) / 4), params)
    return theirs, ours, params


@pytest.mark.parametrize("name", NETWORKS)
def test_logits_of_an_encoder_decoder(name):
    theirs, ours, params = pair(name)
    batch = batch_of()
    want = jax.jit(theirs._compute_logits)(params, batch)
    model = ours.native(params)
    source, rows = batch["encoder_input_tokens"], len(batch["encoder_input_tokens"])
    got = jax.jit(
        lambda params: T5Network(model.config).apply(
            {"params": params},
            source,
            (source > 0).sum(-1),
            batch["decoder_input_tokens"],
            jnp.full(rows, TARGET),
        )
    )(model.params)
    np.testing.assert_allclose(got, want, atol=1e-4)


@pytest.mark.parametrize("name", ["decoder_only", "decoder_only_prefix"])
def test_logits_of_a_decoder(name):
    theirs, ours, params = pair(name)
    batch = batch_of()
    inputs = batch["decoder_input_tokens"] * batch["decoder_causal_attention"]
    length = (inputs[:, 1:] != 0).sum(-1) + 1
    model = ours.native(params)
    output, cache = model.prefill(inputs, length, lanes=1, slots=4)
    text = batch["decoder_target_tokens"][:, None, -4:]
    later, _ = model.extend(cache, text, 0)
    got = jnp.concatenate([output.logits, later.logits], axis=2)[:, 0]
    for row in range(len(inputs)):
        size = int(length[row])
        tokens = jnp.concatenate([inputs[row, :size], text[row, 0]])[None]
        causal = (jnp.arange(size + 4) < size).astype(jnp.int32)[None]
        want = theirs._compute_logits(params, {
            "decoder_input_tokens": tokens,
            "decoder_target_tokens": jnp.ones_like(tokens),
            "decoder_causal_attention": causal,
        })  # fmt: skip
        np.testing.assert_allclose(got[row], want[0, size - 1 :], atol=1e-4)


@pytest.mark.parametrize("name", ["t5_1_1", "decoder_only"])
def test_weights_of_8_bits(name):
    _, ours, params = pair(name)
    narrow = as_native(ours, weights="int8")
    expected = quantize(ours.native(params), "int8")
    jax.tree.map(np.testing.assert_array_equal, narrow.native(params), expected)
    want, _ = jax.jit(predict(ours, 1, {"temperature": 0.0}))(params, batch_of())
    got, _ = jax.jit(predict(narrow, 1, {"temperature": 0.0}))(params, batch_of())
    assert got.shape == want.shape


BEAMS = {"alpha": 0.6}
DETERMINISTIC = [
    ("t5_1_1", "temperature_sample", {}, 1),
    ("t5_1_1", "beam_search", BEAMS, 4),
    ("mt5_scanned", "temperature_sample", {}, 1),
    ("mt5_scanned", "beam_search", BEAMS, 4),
    ("decoder_only", "temperature_sample", {}, 1),
    ("decoder_only", "beam_search", BEAMS, 4),
    ("decoder_only_prefix", "temperature_sample", {}, 1),
]


@pytest.mark.parametrize(("name", "strategy", "settings", "count"), DETERMINISTIC)
def test_texts_are_those_of_t5x(name, strategy, settings, count):
    """T5X's function, ours on T5X's network and ours on the native network give the same texts."""
    settings = settings | ({"rescale_log_probs": False} if strategy != "beam_search" else {})
    theirs, native, params = pair(name, getattr(decoding, strategy), getattr(decode_fns, strategy))
    plugged = pair(name, getattr(decode_fns, strategy))[0]
    batch = batch_of(64)
    found = []
    for model in (theirs, plugged, native):
        predict = jax.jit(
            lambda params, batch, model=model: model.predict_batch_with_aux(
                params,
                batch,
                num_decodes=count,
                return_all_decodes=True,
                decoder_params=dict(settings),
            )
        )
        decodes, aux = predict(params, batch)
        found.append((np.asarray(decodes), np.asarray(aux["scores"])))
    (decodes, scores), *others = found
    # T5X treats unfinished beams in another way, so only finished ones are compared.
    compared = (decodes == 1).any(-1) if strategy == "beam_search" else np.ones(scores.shape, bool)
    assert compared.sum() > 20
    for other, other_scores in others:
        assert ((decodes == other).all(-1) | ~compared).all()
        np.testing.assert_allclose(other_scores[compared], scores[compared], rtol=1e-4, atol=1e-4)


def predict(model, count, settings):
    """``predict_batch_with_aux`` as a function of parameters and a batch."""
    given = {"decode_rng": jax.random.PRNGKey(1)} | settings
    return lambda params, batch: model.predict_batch_with_aux(
        params, batch, num_decodes=count, return_all_decodes=True, decoder_params=dict(given)
    )


@pytest.mark.parametrize("name", ["t5_1_1", "decoder_only"])
def test_contrastive_search_without_a_penalty_is_greedy_decoding_of_t5x(name):
    """With a penalty its texts are those of the strategy, which are others."""
    theirs, ours, params = pair(name, native_fn=decode_fns.contrastive_search)
    batch = batch_of()
    want, _ = jax.jit(predict(theirs, 1, {"temperature": 0.0}))(params, batch)
    got, aux = jax.jit(predict(ours, 1, {"penalty_alpha": 0.0}))(params, batch)
    np.testing.assert_array_equal(got, want)
    assert np.isfinite(aux["scores"]).all()
    other, _ = jax.jit(predict(ours, 1, {"penalty_alpha": 0.6}))(params, batch)
    assert (other != want).any()


SPREAD = [
    ("t5_1_1", "temperature_sample", True),
    ("t5_1_1", "beam_search", False),
    ("t5_1_1", "beam_search", True),
    ("t5_1_1", "best_k_search", True),
    ("decoder_only", "temperature_sample", False),
    ("decoder_only", "beam_search", True),
]


@pytest.mark.parametrize(("name", "strategy", "native"), SPREAD)
def test_a_mesh_of_devices_changes_nothing(name, strategy, native, monkeypatch):
    """T5X's partitioner with rows over 8 devices, and over 4 with the parameters over pairs."""
    need_devices(8)
    decode_fn = getattr(decode_fns, strategy)
    theirs, ours, params = pair(name, decode_fn, decode_fn, num_heads=4)
    model, batch = ours if native else theirs, batch_of(8)
    settings = {"topk": 0} if strategy == "temperature_sample" else {}
    fn = predict(model, 2, settings)
    decodes, aux = jax.jit(fn)(params, batch)
    for partitions in (1, 2):
        # On the CPU, T5X itself would put all devices on the axis of the model.
        devices = np.array(jax.devices()).reshape(-1, partitions)
        mesh = jax.sharding.Mesh(devices, ("data", "model"))
        monkeypatch.setattr(partitioning, "default_mesh", lambda *_, mesh=mesh: mesh)
        partitioner = partitioning.PjitPartitioner(num_partitions=partitions)
        initializer = utils.TrainStateInitializer(
            optimizer_def=None,
            init_fn=model.get_initial_variables,
            input_shapes={key: value.shape for key, value in batch.items()},
            partitioner=partitioner,
        )
        spread = partitioner.partition(
            fn,
            in_axis_resources=(
                initializer.train_state_axes.params,
                partitioner.data_partition_spec,
            ),
            out_axis_resources=None,
        )
        got, got_aux = spread(params, batch)
        np.testing.assert_array_equal(got, decodes)
        np.testing.assert_allclose(got_aux["scores"], aux["scores"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["t5_1_1", "decoder_only"])
def test_bfloat16(name):
    """In bfloat16, ``decode_fn`` gives T5X's results; native ones are as close to float32."""
    fns = (decoding.temperature_sample, decode_fns.temperature_sample)
    theirs, ours, params = pair(name, *fns, dtype=jnp.bfloat16)
    plugged = pair(name, fns[1], dtype=jnp.bfloat16)[0]
    params = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
    precise = jax.tree.map(lambda x: x.astype(jnp.float32), params)
    batch = batch_of(32)
    settings = {"rescale_log_probs": False}
    runs = [jax.jit(predict(m, 1, settings))(params, batch) for m in (theirs, plugged, ours)]
    (want, want_aux), (got, got_aux), _ = runs
    np.testing.assert_array_equal(got, want)
    np.testing.assert_allclose(got_aux["scores"], want_aux["scores"], rtol=1e-5, atol=1e-5)
    texts, aux = jax.jit(predict(pair(name, *fns)[0], 1, settings))(precise, batch)
    same, error = {}, {}
    for way, (found, found_aux) in (("t5x", runs[0]), ("native", runs[2])):
        alike = np.asarray((found == texts).all(-1))
        same[way] = alike.mean()
        error[way] = np.abs(found_aux["scores"] - aux["scores"])[alike].mean()
    assert same["native"] > same["t5x"] - 0.2
    assert error["native"] < 1.5 * error["t5x"]
