"""What the ledger counts, on small programs whose traffic is known."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiers
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from decoding_jax.models import Llama, LlamaConfig, experts, quantize
from decoding_jax.models.quantized import QuantizedArray
from experiments.tpu_ledger import program, rewrites, topology, traffic
from experiments.tpu_ledger.cases import Case, abstract

needs_libtpu = pytest.mark.skipif(
    not topology.is_installed(), reason="libtpu is not installed (extra tpu)"
)


def compiled(function, *shapes, mesh=(1, 1), specs=()):
    """A program of arrays ``(dtype, sizes)``, all of which stay in HBM."""
    devices = topology.mesh("v5e:2x4", mesh)
    specs = specs or [PartitionSpec()] * len(shapes)
    arrays = [
        jax.ShapeDtypeStruct(sizes, dtype, sharding=NamedSharding(devices, spec))
        for (dtype, sizes), spec in zip(shapes, specs, strict=True)
    ]
    lowered = jax.jit(function).lower(*arrays)
    return program.parse(topology.compile_for(lowered, topology.CHEAP).as_text())


def moved(parsed):
    """The bytes of a step, without those of scalars."""
    return sum(a.total for a in traffic.step(parsed) if a.bytes > 8192)


def repeat(step):
    """A program that runs ``step(i, x, *others) -> x`` a number of times known when it runs."""
    return lambda times, x, *others: lax.fori_loop(0, times, lambda i, x: step(i, x, *others), x)


TIMES = (jnp.int32, ())


@pytest.mark.exhaustive
@needs_libtpu
def test_a_product_reads_its_weights_once():
    size, width = 2**7, 2**11
    product = compiled(
        repeat(lambda i, x, weights: x @ weights),
        TIMES,
        (jnp.bfloat16, (size, width)),
        (jnp.bfloat16, (width, width)),
    )
    x, weights = 2 * size * width, 2 * width * width
    # The loop may copy x, because a product cannot be written over its operand.
    assert weights + 2 * x <= moved(product) <= weights + 4 * x


@needs_libtpu
def test_an_update_in_place_moves_what_is_new_and_a_rewrite_moves_all():
    shape = (64, 8, 512, 128)
    new = (jnp.bfloat16, (64, 8, 1, 128))

    def write(i, cache, new):
        return lax.dynamic_update_slice(cache, new + cache[:, :, :1], (0, 0, i, 0))

    def roll(i, cache, new):
        return jnp.roll(cache, 1, axis=2) + new

    whole = 2 * np.prod(shape)
    key = rewrites.shape_of("bf16", shape)
    in_place, all_of_it = (
        compiled(repeat(f), TIMES, (jnp.bfloat16, shape), new) for f in (write, roll)
    )
    assert moved(in_place) <= whole / 64
    assert rewrites.rewrites(in_place, [key]) == []
    assert moved(all_of_it) >= 2 * whole
    assert rewrites.rewrites(all_of_it, [key]) != []


@needs_libtpu
def test_a_lookup_reads_the_rows_that_it_finds():
    rows, width = 2**15, 2**10
    lookup = compiled(
        repeat(lambda i, ids, table: (ids + jnp.sum(table[ids], -1).astype(jnp.int32)) % rows),
        TIMES,
        (jnp.int32, (64,)),
        (jnp.float32, (rows, width)),
    )
    touched = 4 * 64 * width
    assert touched <= moved(lookup) <= 4 * touched


@needs_libtpu
def test_layers_in_a_loop_count_as_often_as_it_turns():
    layers, size = 5, 2**10

    def step(i, x, weights):
        return lax.scan(lambda x, w: (x @ w, None), x, weights)[0]

    scanned = compiled(
        repeat(step), TIMES, (jnp.bfloat16, (8, size)), (jnp.bfloat16, (layers, size, size))
    )
    weights = 2 * layers * size * size
    assert weights <= moved(scanned) <= 1.1 * weights


@needs_libtpu
def test_pieces_of_one_layer_of_a_stack_count_as_the_layer():
    """Which layer is read changes in the loop over layers, and not in the one over its pieces."""
    layers, size, piece = 5, 3 * 2**10 + 2**9, 2**10

    def step(i, x, stack, limit):
        def pieces(x, layer):
            def add(at, x):
                origin = [layer, jnp.minimum(at * piece, size - piece), jnp.int32(0)]
                part = lax.dynamic_slice(stack, origin, (1, piece, piece))[0]
                return x + x @ part

            return lax.fori_loop(0, limit, add, x), None

        return lax.scan(pieces, x, jnp.arange(layers, dtype=jnp.int32))[0]

    stack = (jnp.bfloat16, (layers, size, piece))
    read = compiled(repeat(step), TIMES, (jnp.bfloat16, (8, piece)), stack, TIMES)
    four_pieces = 2 * layers * 4 * piece * piece  # the last overlaps the one before
    assert four_pieces <= moved(read) <= 1.1 * four_pieces


@pytest.mark.exhaustive
@pytest.mark.parametrize("scan_layers", tiers.values(True, release=[False]))
@needs_libtpu
def test_quantised_weights_are_read_narrow(scan_layers):
    """A step reads what the weights take, and no kernel is written in another form."""

    def network(weights):
        config = LlamaConfig(
            vocab_size=512, emb_dim=2048, num_heads=16, num_kv_heads=8, head_dim=128,
            mlp_dim=16_384, num_layers=3, max_positions=512, dtype="bfloat16",
            scan_layers=scan_layers,
        )  # fmt: skip
        model = abstract(lambda: Llama.init(config, jax.random.key(0)))
        return model if weights is None else jax.eval_shape(lambda m: quantize(m, weights), model)

    def step_bytes(weights):
        case = Case("greedy", network(weights), max_new_tokens=8)
        lowered = case.lower(topology.mesh("v5e:2x4", (1, 1)))
        return moved(program.parse(topology.compile_for(lowered, {}).as_text()))

    wide = step_bytes(None)
    assert step_bytes("int8") < 0.53 * wide
    assert step_bytes("int4") < 0.3 * wide


@pytest.mark.exhaustive
@needs_libtpu
def test_a_step_reads_the_experts_that_are_chosen():
    """Of experts of 8 bits too, and no expert of another chip."""
    config = LlamaConfig(
        vocab_size=8, emb_dim=1024, num_heads=2, num_kv_heads=2, head_dim=2, num_layers=1,
        mlp_dim=512, max_positions=8, num_experts=16, experts_per_token=2, dtype="bfloat16",
    )  # fmt: skip
    layer = experts.Experts(config)
    x = jax.ShapeDtypeStruct((8, 1024), jnp.bfloat16)
    shapes = jax.eval_shape(lambda: layer.init(jax.random.key(0), jnp.zeros((8, 1024))))["params"]

    def step_bytes(bits, chips):
        devices = topology.mesh("v5e:2x4", (1, chips))

        def placed(path, x):
            of_expert = "_experts" in jax.tree_util.keystr(path)
            spec = PartitionSpec("model" if of_expert else None)
            at = functools.partial(jax.ShapeDtypeStruct, sharding=NamedSharding(devices, spec))
            if bits == 16 or not of_expert:
                return at(x.shape, jnp.bfloat16)
            scale = (x.shape[0], 1, x.shape[2])
            return QuantizedArray(at(x.shape, jnp.int8), at(scale, jnp.float32), None, "bfloat16")

        def run(params, times, x):
            body = lambda i, x: x + layer.apply({"params": params}, x)  # noqa: E731
            return lax.fori_loop(0, times, body, x)

        params = jax.tree_util.tree_map_with_path(placed, shapes)
        with jax.set_mesh(devices):
            times = jax.ShapeDtypeStruct((), jnp.int32)
            lowered = jax.jit(run).lower(params, times, x)
        parsed = program.parse(topology.compile_for(lowered, topology.CHEAP).as_text())
        return sum(a.total for a in traffic.step(parsed, 4 / chips))

    wide = 3 * 16 * 1024 * 512 * 2 / 4
    assert 1 <= step_bytes(16, 1) / wide < 1.1
    assert 0.5 <= step_bytes(8, 1) / wide < 0.65
    assert 0.25 <= step_bytes(16, 4) / wide < 0.35


@pytest.mark.exhaustive
@needs_libtpu
def test_a_scan_over_layers_copies_no_experts():
    config = LlamaConfig(
        vocab_size=256, emb_dim=256, num_heads=2, num_kv_heads=2, head_dim=64, num_layers=3,
        mlp_dim=384, max_positions=64, num_experts=16, experts_per_token=2, dtype="bfloat16",
        scan_layers=True,
    )  # fmt: skip
    case = Case("greedy", abstract(lambda: Llama.init(config, jax.random.key(0))), batch=2)
    lowered = case.lower(topology.mesh("v5e:2x4", (1, 1)))
    parsed = program.parse(topology.compile_for(lowered, topology.CHEAP).as_text())
    assert sum("ragged_dot_tiling" in i.text for i in parsed.in_loop()) == 3
    assert rewrites.rewrites(parsed, [rewrites.shape_of("bf16", (16, 256, 384))]) == []


@needs_libtpu
def test_a_sharded_product_is_reduced_over_its_axis():
    """``x @ a @ b``, with columns of a and rows of b over ``model``: one sum of products."""
    size = 2**8
    sharded = compiled(
        repeat(lambda i, x, a, b: (x @ a) @ b),
        TIMES,
        (jnp.bfloat16, (8, size)),
        *[(jnp.bfloat16, (size, size))] * 2,
        mesh=(2, 4),
        specs=[
            PartitionSpec(),
            PartitionSpec("data"),
            PartitionSpec(None, "model"),
            PartitionSpec("model"),
        ],
    )
    found = program.collectives(sharded, {"data": 2, "model": 4})
    (collective,) = found
    assert found[collective] == 1
    assert (collective.kind, collective.axis) == ("all-reduce", "model")
    assert collective.bytes in (2 * 4 * size, 4 * 4 * size)  # in bfloat16 or in float32
    with pytest.raises(ValueError, match="program: expected one with a loop"):
        program.collectives(program.Program({"main": []}, "main"), {})


def test_arrays_are_as_large_as_their_tiles():
    assert traffic.in_hbm("(bf16[2,1,7,32]{3,2,1,0:T(8,128)(2,1)}, f32[5]{0:T(128)S(1)})") == (
        2 * 8 * 128 * 2
    )
    assert traffic.in_hbm("s32[]{:T(128)S(6)}") == 0
    assert program.num_bytes("(bf16[2,1,7,32]{3,2,1,0:T(8,128)(2,1)}, f32[5])") == 916
