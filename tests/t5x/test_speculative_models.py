"""The speculative model classes on T5X's own modules, parameters and checkpoints."""

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from heads import write_head

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("t5x.models", reason="T5X is not installed", exc_type=ImportError)
    import seqio
    from t5x import adafactor, checkpoints, models, partitioning, train_state
    from t5x.examples.decoder_only import network as decoder_only
    from t5x.examples.t5 import network as t5

    from decoding_jax.t5x import decode_fns, drafts
    from decoding_jax.t5x.models import (
        NativeDecoderOnlyModel,
        NativeEncoderDecoderModel,
        SpeculativeDecoderOnlyModel,
        SpeculativeEncoderDecoderModel,
        as_speculative,
    )

from decoding_jax.models import load_drafter
from decoding_jax.strategies.speculative import PromptLookup

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
    "mlp_activations": ("silu", "linear"),
}
INPUT, TARGET, ROWS = 8, 10, 6
VOCABULARY = seqio.ByteVocabulary()
KINDS = {
    "encoder_decoder": (
        models.EncoderDecoderModel,
        NativeEncoderDecoderModel,
        SpeculativeEncoderDecoderModel,
    ),
    "decoder_only": (
        models.DecoderOnlyModel,
        NativeDecoderOnlyModel,
        SpeculativeDecoderOnlyModel,
    ),
}


def config_of(kind, layers):
    if kind == "encoder_decoder":
        return t5.T5Config(**SHAPE, num_encoder_layers=layers, num_decoder_layers=layers)
    return decoder_only.TransformerConfig(**SHAPE, num_layers=layers)


def make(kind, cls, layers=2, **settings):
    """A model of T5X's class or of ours."""
    config = config_of(kind, layers)
    optimizer = adafactor.Adafactor(decay_rate=0.8, step_offset=0)
    if kind == "encoder_decoder":
        return cls(t5.Transformer(config), VOCABULARY, VOCABULARY, optimizer, **settings)
    module = decoder_only.DecoderWrapper(config)
    settings = {"inputs_bidirectional_attention": True} | settings
    return cls(module, VOCABULARY, optimizer, **settings)


def variables(kind, seed, layers=2):
    """T5X's own initial variables, scaled so that heads have different biases."""
    model = make(kind, KINDS[kind][0], layers, decode_fn=decode_fns.temperature_sample)
    shapes = {"encoder_input_tokens": (1, INPUT), "decoder_input_tokens": (1, TARGET)}
    types = dict.fromkeys(shapes, jnp.int32)
    found = model.get_initial_variables(jax.random.PRNGKey(seed), shapes, types)
    draw = np.random.default_rng(seed)
    scale = functools.partial(jax.tree.map, lambda x: x * (1 + draw.normal(size=x.shape) / 4))
    return model, found.copy({"params": scale(found["params"])})


@functools.cache
def params(kind):
    return variables(kind, 0)[1]["params"]


def write_draft(kind, folder, layers=1):
    """A checkpoint of a smaller network, by T5X's own checkpointer."""
    model, found = variables(kind, 1, layers)
    state = train_state.FlaxOptimTrainState.create(model.optimizer_def, found)
    partitioner = partitioning.PjitPartitioner(
        num_partitions=1, logical_axis_rules=partitioning.standard_logical_axis_rules()
    )
    checkpoints.Checkpointer(state, partitioner, str(folder)).save(state)
    return drafts.DraftCheckpoint(str(folder))


def batch_of():
    draw = np.random.default_rng(2)
    source = draw.integers(3, 24, size=(ROWS, INPUT), dtype=np.int32)
    source[np.arange(INPUT)[None] >= draw.integers(3, INPUT + 1, size=ROWS)[:, None]] = 0
    target = draw.integers(3, 24, size=(ROWS, TARGET), dtype=np.int32)
    given = (np.arange(TARGET)[None] <= draw.integers(0, 5, size=ROWS)[:, None]).astype(np.int32)
    shifted = np.pad(target, ((0, 0), (1, 0)))[:, :-1] * given
    return {
        "encoder_input_tokens": jnp.asarray(source),
        "decoder_input_tokens": jnp.asarray(shifted),
        "decoder_causal_attention": jnp.asarray(given),
    }


def predict(model, kind, num_decodes, **settings):
    """All decodes of a batch with prompts of several lengths, and their scores."""
    prompted = {"prompt_with_targets": True} if kind == "encoder_decoder" else {}
    call = jax.jit(
        lambda params, batch, rng: model.predict_batch_with_aux(
            params,
            batch,
            rng=rng,
            num_decodes=num_decodes,
            return_all_decodes=True,
            decoder_params=dict(settings),
            **prompted,
        )
    )
    decodes, aux = call(params(kind), batch_of(), jax.random.PRNGKey(4))
    return np.asarray(decodes), np.asarray(aux["scores"])


@pytest.mark.parametrize("kind", KINDS)
def test_texts_are_those_of_the_native_class(kind, tmp_path):
    """They equal greedy texts at temperature 0, and arithmetic samples with the code verifier."""
    _, native, ours = KINDS[kind]
    speculative = make(kind, ours, drafter=write_draft(kind, tmp_path))
    greedy = make(kind, native, decode_fn=decode_fns.temperature_sample)
    settings = {"temperature": 0.0, "rescale_log_probs": False}
    for count in (1, 3):
        got, want = (predict(m, kind, count, **settings) for m in (speculative, greedy))
        np.testing.assert_array_equal(got[0], want[0])
        np.testing.assert_allclose(got[1], want[1], rtol=1e-4)
    settings = {"topk": 8, "temperature": 0.8}
    arithmetic = make(kind, native, decode_fn=decode_fns.arithmetic_sample)
    want = predict(arithmetic, kind, 4, **settings)
    got = predict(speculative, kind, 4, verifier="code", **settings)
    np.testing.assert_array_equal(got[0], want[0])
    np.testing.assert_allclose(got[1], want[1], rtol=1e-4, atol=1e-4)
    assert (np.diff(got[1]) >= 0).all()


def test_a_head_drafts_for_the_parameters_of_a_batch(tmp_path):
    """Its texts equal the greedy ones, on a target whose weights have 8 bits too."""
    kind = "encoder_decoder"
    write_head(tmp_path, SHAPE["vocab_size"], SHAPE["emb_dim"])
    for weights in (None, "int8"):
        head = load_drafter(tmp_path)
        speculative = make(kind, KINDS[kind][2], drafter=head, weights=weights)
        greedy = make(
            kind, KINDS[kind][1], decode_fn=decode_fns.temperature_sample, weights=weights
        )
        settings = {"temperature": 0.0, "rescale_log_probs": False}
        got, want = (predict(m, kind, 2, **settings) for m in (speculative, greedy))
        np.testing.assert_array_equal(got[0], want[0])
        np.testing.assert_allclose(got[1], want[1], rtol=1e-4)


def test_as_speculative_converts_a_t5x_model():
    """Prompt lookup copies from the inputs; ``predict_batch`` returns the best decode."""
    theirs = make("encoder_decoder", models.EncoderDecoderModel,
                  decode_fn=decode_fns.speculative_sample)  # fmt: skip
    model = as_speculative(theirs, PromptLookup(size=2), num_decodes=3)
    assert isinstance(model, SpeculativeEncoderDecoderModel)
    one, all_three = (
        model.predict_batch_with_aux(
            params("encoder_decoder"),
            batch_of(),
            rng=jax.random.PRNGKey(4),
            return_all_decodes=all_decodes,
        )
        for all_decodes in (False, True)
    )
    assert all_three[0].shape == (ROWS, 3, TARGET)
    np.testing.assert_array_equal(one[0], all_three[0][:, -1])
    np.testing.assert_array_equal(one[1]["scores"], all_three[1]["scores"][:, -1])


def test_a_draft_that_does_not_fit_is_refused_in_one_line(tmp_path):
    _, _, ours = KINDS["decoder_only"]
    with pytest.raises(ValueError, match="num_layers: expected 1 to the target's 2, got 3"):
        make("decoder_only", ours, drafter=drafts.EarlyExit(3))
    draft = write_draft("encoder_decoder", tmp_path)
    with pytest.raises(
        ValueError, match="drafter: expected a decoder alone, got an encoder and a decoder"
    ):
        make("decoder_only", ours, drafter=draft)
    draft = drafts.DraftCheckpoint(draft.directory, config_of("encoder_decoder", 2))
    with pytest.raises(ValueError, match="config: expected num_encoder_layers=1, as the"):
        make("encoder_decoder", SpeculativeEncoderDecoderModel, drafter=draft)
    plain = make("encoder_decoder", NativeEncoderDecoderModel,
                 decode_fn=decode_fns.speculative_sample)  # fmt: skip
    with pytest.raises(ValueError, match="drafter: expected that of Speculative"):
        predict(plain, "encoder_decoder", 1)
