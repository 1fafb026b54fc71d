"""The parameter tree of T5 has the names and shapes of T5X's ``examples/t5``."""

import jax
import pytest

from decoding_jax.models import T5, T5Config

D, HEADS, WIDTH, MLP, V = 16, 2, 16, 24, 50


def attention(prefix: str) -> dict[str, tuple[int, ...]]:
    names = {f"{prefix}/{name}/kernel": (D, WIDTH) for name in ("query", "key", "value")}
    return {**names, f"{prefix}/out/kernel": (WIDTH, D)}


def expected(gates: list[str], tied: bool) -> dict[str, tuple[int, ...]]:
    tree: dict[str, tuple[int, ...]] = {"token_embedder/embedding": (V, D)}
    for side, norms, attentions in (
        ("encoder", ["attention"], ["attention"]),
        (
            "decoder",
            ["self_attention", "cross_attention"],
            ["self_attention", "encoder_decoder_attention"],
        ),
    ):
        tree[f"{side}/relpos_bias/rel_embedding"] = (HEADS, 32)
        tree[f"{side}/{side}_norm/scale"] = (D,)
        layer = f"{side}/layers_0"
        for norm in [*norms, "mlp"]:
            tree[f"{layer}/pre_{norm}_layer_norm/scale"] = (D,)
        for name in attentions:
            tree |= attention(f"{layer}/{name}")
        tree |= {f"{layer}/mlp/{gate}/kernel": (D, MLP) for gate in gates}
        tree[f"{layer}/mlp/wo/kernel"] = (MLP, D)
    if not tied:
        tree["decoder/logits_dense/kernel"] = (D, V)
    return tree


@pytest.mark.parametrize(
    ("activations", "gates", "tied"),
    [(("relu",), ["wi"], True), (("gelu", "linear"), ["wi_0", "wi_1"], False)],
)
def test_names_and_shapes(activations: tuple[str, ...], gates: list[str], tied: bool) -> None:
    config = T5Config(V, D, HEADS, 8, MLP, 1, 1, activations, logits_via_embedding=tied)
    params = jax.eval_shape(lambda: T5.init(config, jax.random.key(0)).params)
    found = {
        "/".join(part.key for part in path): leaf.shape
        for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]
    }
    assert found == expected(gates, tied)
