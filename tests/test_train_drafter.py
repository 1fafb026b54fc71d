"""The training of heads: what is unrolled is what drafts, and what is written can be read."""

import dataclasses
import gzip

import jax
import numpy as np
import pytest
import tiers
from jax import numpy as jnp

import decoding_jax
from decoding_jax import Prompt
from decoding_jax.models import Llama, LlamaConfig
from decoding_jax.strategies.speculative import Eagle, MultiTokenPrediction, Path

pytest.importorskip("optax", reason="optax is not installed (extra experiments)")

from experiments import held_out, train_drafter

CONFIG = LlamaConfig(
    vocab_size=40,
    emb_dim=8,
    num_heads=2,
    num_kv_heads=1,
    head_dim=4,
    mlp_dim=12,
    num_layers=3,
    max_positions=64,
)
PREFIX, STEPS = 6, 3


@pytest.mark.release
@pytest.mark.parametrize("kind", ["eagle", "mtp"])
def test_training_sees_what_drafting_sees(kind):
    """The logits after each of three drafted tokens, of a prompt of 6 tokens."""
    target = Llama.init(CONFIG, jax.random.key(0))
    sizes = {"num_heads": 2, "num_kv_heads": 1, "mlp_dim": 12}
    head = train_drafter.head_of(kind, target, 40, jax.random.key(1), **sizes)
    draw = np.random.default_rng(1)
    params = jax.tree.map(lambda x: draw.normal(0, 0.5, x.shape).astype(np.float32), head.params)
    head = dataclasses.replace(head, params=params)
    tokens = draw.integers(40, size=(1, 12)).astype(np.int32)

    @jax.jit
    def run(target, head, tokens):
        reading = target.with_features(head.feature_layers)
        features = reading.prefill(tokens, jnp.array([12]), lanes=1, slots=1)[0].features
        states = head.fuse(tuple(x[:, :, :-1] for x in features))
        unrolled = train_drafter.unrolled(head, tokens[:, 1:], states, STEPS)
        trained = [head.project(x)[0, 0, PREFIX - 1 + i] for i, x in enumerate(unrolled)]

        drafter = Eagle(head, 40) if kind == "eagle" else MultiTokenPrediction([head])
        prompt = Prompt(tokens[:, :PREFIX], jnp.array([PREFIX]))
        seen = tuple(x[:, :, :PREFIX] for x in features)
        given = {"max_new_tokens": 8, "max_draft_tokens": STEPS, "features": seen}
        state = drafter.init(prompt, lanes=1, **given)
        new, one = tokens[:, None, PREFIX:], jnp.ones((1, 1), jnp.int32)
        first, state = drafter.begin(state, Path(prompt, new, one))
        second, state = drafter.next(state, new[:, :, 1], one)
        third, _ = drafter.next(state, new[:, :, 2], one + 1)
        return jnp.stack(trained), jnp.concatenate([first, second, third], 1)[0]

    trained, drafted = run(target, head, tokens)
    np.testing.assert_allclose(trained, drafted, atol=3e-6)


@pytest.mark.release
@pytest.mark.parametrize("kind", tiers.values(exhaustive=["eagle"], release=["mtp"]))
def test_the_quick_form_goes_on_and_writes_a_head(kind, tmp_path, capsys):
    argv = ["--quick", "--head", kind, "--out", str(tmp_path)]
    with jax.numpy_dtype_promotion("standard"):  # As the command has it.
        train_drafter.main([*argv, "--export", str(tmp_path / "head")])
        first = capsys.readouterr().out.splitlines()[-1]
        train_drafter.main(argv)  # from the last step, which is the last of all
    assert capsys.readouterr().out.splitlines()[-1] == first
    model, _ = decoding_jax.load("python-code")
    drafter = decoding_jax.load_drafter(tmp_path / "head", model)
    assert drafter.feature_layers == ((1, 2, 4) if kind == "eagle" else (4,))
    assert drafter.vocab_size == model.vocab_size


@pytest.mark.release
def test_a_head_for_an_encoder_decoder(tmp_path):
    """The head that two steps train drafts for its target, whose texts stay as they are."""
    sentences = held_out.read()[:64]
    lines = (f"{s.english}\t{s.references[0]}\n" for s in sentences)
    with gzip.open(tmp_path / "pairs.tsv.gz", "wt", encoding="utf-8") as file:
        file.writelines(lines)
    name = "translation-en-fr-draft"
    argv = ["--quick", "--target", name, "--data", str(tmp_path / "pairs.tsv.gz")]
    argv += ["--rows", "4", "--held_out", "24", "--out", str(tmp_path)]
    with jax.numpy_dtype_promotion("standard"):
        train_drafter.main([*argv, "--export", str(tmp_path / "head")])
    model, tokenizer = decoding_jax.load(name)
    texts = [s.english for s in sentences[:5]]
    settings = {"max_new_tokens": 8, "batch_size": 2}
    alone = decoding_jax.generate(model, tokenizer, texts, **settings)
    drafted = decoding_jax.generate(
        model,
        tokenizer,
        texts,
        strategy="speculative_sample",
        verifier="greedy",
        drafter=decoding_jax.load_drafter(tmp_path / "head"),
        num_draft_tokens=3,
        num_drafts=2,
        tree="dynamic",
        **settings,
    )
    assert [row[0].tokens for row in drafted] == [row[0].tokens for row in alone]
    assert drafted != alone  # The infos differ.
    assert all(row[0].info.proposed for row in drafted)
