"""The attention kernel for GPUs, interpreted, is ``attention.attend_in_blocks``.

Where the package ``triton`` is installed, the kernel is also compiled for two GPUs, with the number
of registers and the shared memory that they have.
"""

import contextlib
import dataclasses
import functools
import importlib.util
import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiers
from jax.interpreters.mlir import ir, make_ir_context
from jax.sharding import AxisType

import decoding_jax
from decoding_jax import Prompt, models
from decoding_jax.models import attention_choice, attention_kernel
from decoding_jax.models.attention import Part, Scale
from decoding_jax.models.decoder import with_attention
from decoding_jax.models.llama import LlamaAttention


def step_of_decoding(
    rows, lanes, heads, groups, tokens, depth, prompt, slots, *, dtype=jnp.float32, tree=False,
    window=None, bias=False, layers=0, prefix=0,
):  # fmt: skip
    """Queries of new tokens, a ragged prompt that lanes share, slots of each, and a prefix."""
    draw = np.random.default_rng(0)
    normal = lambda *shape: draw.standard_normal(shape, np.float32).astype(dtype)  # noqa: E731
    query = normal(rows, lanes, heads, groups, tokens, depth)
    length = draw.integers(1, prompt + 1, rows, np.int32)
    start = draw.integers(0, slots - tokens + 1, (rows, lanes), np.int32)
    index = start[..., None] + np.arange(tokens, dtype=np.int32)
    seen = np.arange(slots) <= index[..., None]
    if tree:
        seen &= draw.random(seen.shape) < 0.5
    real = (np.arange(prompt) < length[:, None])[:, None, None]
    stack = (layers,) if layers else ()
    position = length[:, None, None] + index
    parts = [
        Part(
            normal(rows, heads, prompt, depth), normal(rows, heads, prompt, depth), real,
            position=position, window=window,
        ),
        Part(
            normal(rows, lanes, *stack, heads, slots, depth),
            normal(rows, lanes, *stack, heads, slots, depth),
            seen, used=index.max() + 1, layer=np.int32(layers - 1) if layers else None,
            bias=normal(1, 1, heads, groups, tokens, slots).astype(np.float32) if bias else None,
        ),
    ]  # fmt: skip
    if prefix:
        mask = np.ones((1, 1, 1, prefix), bool)
        parts.append(Part(normal(heads, prefix, depth), normal(heads, prefix, depth), mask))
    return on_device((query, parts))


def on_device(given):
    """Arrays of JAX, without a program for each shape; the settings of parts stay ints."""
    is_array = lambda x: isinstance(x, (np.ndarray, np.generic))  # noqa: E731
    return jax.tree.map(lambda x: jax.device_put(x) if is_array(x) else x, given)


def whole_prompt(rows, heads, groups, size, depth, *, dtype=jnp.float32, **rule):
    """Queries and keys of prompts of several lengths, with a mask by a rule on distances."""
    draw = np.random.default_rng(1)
    normal = lambda *shape: draw.standard_normal(shape, np.float32).astype(dtype)  # noqa: E731
    query = normal(rows, 1, heads, groups, size, depth)
    key, value = normal(2, rows, heads, size, depth)
    length = draw.integers(1, size + 1, rows, np.int32)
    real = (np.arange(size) < length[:, None])[:, None, None]
    position = np.arange(size, dtype=np.int32)[None, None]
    return on_device((query, [Part(key, value, real, position=position, **rule)]))


# JAX 0.12 announces it at each lowering for GPUs; see the docstring of ``attention_kernel``.
pytestmark = pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated")

CASES = {
    "one row": lambda: step_of_decoding(1, 1, 2, 4, 1, 16, 300, 40),
    "ragged rows": lambda: step_of_decoding(5, 1, 2, 4, 1, 16, 37, 20),
    "many rows": lambda: step_of_decoding(64, 1, 8, 1, 1, 16, 9, 5),
    "lanes": lambda: step_of_decoding(2, 3, 2, 2, 2, 32, 70, 150),
    "64 lanes": lambda: step_of_decoding(1, 64, 1, 4, 1, 16, 30, 70),
    "a tree": lambda: step_of_decoding(3, 1, 2, 2, 5, 16, 20, 90, tree=True),
    "a window": lambda: step_of_decoding(3, 2, 2, 2, 2, 16, 200, 20, window=30),
    "biases": lambda: step_of_decoding(2, 2, 4, 1, 3, 16, 1, 70, bias=True),
    "stacked layers": lambda: step_of_decoding(2, 3, 2, 2, 2, 16, 20, 80, layers=3),
    "a shared prefix": lambda: step_of_decoding(2, 3, 2, 2, 1, 16, 20, 80, prefix=65),
    "a causal prompt": lambda: whole_prompt(2, 2, 2, 150, 16, least_distance=0),
    "a prompt with windows": lambda: whole_prompt(2, 1, 3, 200, 16, least_distance=0, window=40),
    "an encoder": lambda: whole_prompt(3, 2, 1, 90, 16),
    "an encoder with windows": lambda: whole_prompt(2, 2, 1, 150, 16, least_distance=-9, window=10),
}


def both(query, parts, scale):
    """The attention by the kernel, interpreted, and by the definition."""
    run = functools.partial(_run, parts=parts, scale=scale)
    return [jax.jit(functools.partial(run, way=way))(query) for way in ("pallas", "xla")]


def _run(query, *, parts, scale, way):
    return attention_choice.attend(query, parts, *scale, implementation=way)


SHOWN = ("ragged rows", "lanes", "a tree", "a window", "a shared prefix", "a causal prompt")
every = pytest.mark.parametrize(
    "case", tiers.of_table(CASES, exhaustive=[case for case in CASES if case not in SHOWN])
)


@pytest.mark.exhaustive
@every
def test_it_is_the_attention_of_the_definition(case):
    query, parts = CASES[case]()
    cap = 3.0 if case in ("lanes", "a causal prompt") else None
    got, want = both(query, parts, Scale(query.shape[-1] ** -0.5, cap))
    np.testing.assert_allclose(got, want, atol=2e-6)


@pytest.mark.exhaustive
def test_bfloat16_is_rounded_alone():
    query, parts = step_of_decoding(3, 2, 2, 4, 1, 64, 100, 90, dtype=jnp.bfloat16)
    got, _ = both(query, parts, Scale(0.125))
    wide = [p._replace(key=p.key.astype("float32"), value=p.value.astype("float32")) for p in parts]
    want = attention_choice.attend(query.astype(jnp.float32), wide, 0.125)
    assert got.dtype == jnp.bfloat16
    np.testing.assert_allclose(got.astype(jnp.float32), want, atol=0.02)


def test_a_query_that_sees_no_key_gets_zeros():
    query, parts = step_of_decoding(2, 1, 2, 2, 1, 16, 20, 20)
    parts = [p._replace(mask=p.mask & (jnp.arange(2) == 1).reshape(2, 1, 1, 1)) for p in parts]
    got, want = both(query, parts, Scale(1.0))
    np.testing.assert_allclose(got, want, atol=2e-6)
    assert (got[0] == 0).all()


def test_keys_that_no_query_sees_may_be_nan():
    query, parts = step_of_decoding(2, 1, 2, 2, 1, 16, 20, 20)
    parts[0] = parts[0]._replace(
        key=jnp.where(parts[0].mask[:, :, 0, :, None], parts[0].key, jnp.nan)
    )
    got, want = both(query, parts, Scale(1.0))
    assert np.isfinite(got).all()
    np.testing.assert_allclose(got, want, atol=2e-6)


@pytest.mark.release
def test_its_gradient_is_that_of_the_definition():
    query, parts = step_of_decoding(2, 2, 2, 1, 2, 16, 9, 12, bias=True)

    def loss(way, query, key, bias):
        changed = [parts[0]._replace(key=key), parts[1]._replace(bias=bias)]
        return (attention_choice.attend(query, changed, 0.5, implementation=way) ** 2).sum()

    at = (query, parts[0].key, parts[1].bias)
    got, want = (
        jax.grad(functools.partial(loss, way), argnums=(0, 1, 2))(*at) for way in ("pallas", "xla")
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), got, want)


@pytest.mark.release
@pytest.mark.parametrize("axes", [(8, 1), (2, 4), (1, 8)])
def test_each_device_has_its_own_rows_and_heads(axes):
    query, parts = step_of_decoding(8, 2, 4, 2, 1, 16, 20, 30)
    want = attention_choice.attend(query, parts, 0.25)
    mesh = jax.make_mesh(axes, ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    with jax.set_mesh(mesh):
        run = jax.jit(functools.partial(_run, parts=parts, scale=Scale(0.25), way="pallas"))
        np.testing.assert_allclose(run(query), want, atol=2e-6)
        assert "all-gather" not in run.lower(query).compile().as_text()


CONFIGS = {
    "llama": (models.Llama, models.LlamaConfig(
        vocab_size=17, emb_dim=32, num_heads=4, num_kv_heads=2, head_dim=16, mlp_dim=32,
        num_layers=2, max_positions=64, window=7, window_pattern=(True, False))),
    "gemma": (models.Gemma, models.GemmaConfig(
        vocab_size=17, emb_dim=32, num_heads=2, num_kv_heads=1, head_dim=16, mlp_dim=32,
        num_layers=2, max_positions=64, attention_soft_cap=5.0, scan_layers=True)),
    "gpt2": (models.GPT2, models.GPT2Config(
        vocab_size=17, emb_dim=32, num_heads=2, mlp_dim=32, num_layers=2, max_positions=64)),
}  # fmt: skip


@pytest.mark.release
@pytest.mark.parametrize("family", tiers.of_table(CONFIGS, exhaustive=["llama"]))
def test_a_network_decodes_the_same(family):
    cls, config = CONFIGS[family]
    model = cls.init(config, jax.random.key(3))
    prompt = Prompt(jnp.array([[3, 4, 5, 6], [7, 8, 0, 0]]), jnp.array([4, 2]))
    run = functools.partial(decoding_jax.beam_search, prompt=prompt, max_new_tokens=6, beam_size=2)
    want, got = run(model), run(with_attention(model, "pallas"))
    np.testing.assert_array_equal(got.tokens, want.tokens)
    np.testing.assert_allclose(got.log_prob, want.log_prob, atol=1e-5)


@pytest.mark.exhaustive
def test_what_it_cannot_run_is_left_to_xla_or_refused():
    query, parts = step_of_decoding(1, 1, 1, 1, 1, 24, 5, 5)
    with pytest.raises(
        ValueError, match=r"attention: expected heads of 16, .* for 'pallas', got 24"
    ):
        attention_choice.attend(query, parts, 1.0, implementation="pallas")
    np.testing.assert_array_equal(
        attention_choice.attend(query, parts, 1.0),
        attention_choice.attend(query, parts, 1.0, implementation="xla"),
    )
    with pytest.raises(ValueError, match="attention: expected 'auto', 'xla' or 'pallas', got 'x'"):
        dataclasses.replace(CONFIGS["llama"][1], attention="x")


def for_gpus(run, *args):
    """A function lowered for CUDA; JAX 0.12 asks for which GPU, and others have no name for it."""
    context = contextlib.nullcontext()
    if hasattr(jax.sharding, "AbstractDevice"):
        device = jax.sharding.AbstractDevice(
            device_kind="NVIDIA H100 80GB HBM3", num_cores=132, platform="gpu"
        )
        context = jax.sharding.use_abstract_mesh(
            jax.sharding.AbstractMesh((), (), (), abstract_device=device)
        )
    with context:
        return run.trace(*args).lower(lowering_platforms=("cuda",))


@pytest.mark.release
def test_gpus_get_the_kernel_and_products_of_eight_rows(monkeypatch):
    cls, config = CONFIGS["llama"]
    config = dataclasses.replace(config, dtype="bfloat16")
    model = jax.eval_shape(lambda key: cls.init(config, key), jax.random.key(0))
    tokens, length = jnp.ones((1, 4), jnp.int32), jnp.ones(1, jnp.int32)

    def decode(model):
        _, cache = model.prefill(tokens, length, lanes=1, slots=8)
        return model.extend(cache, tokens[:, None, :1], 0)[0].logits

    def program():
        jax.clear_caches()
        return for_gpus(jax.jit(decode), model)

    assert not kernels(program())
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(attention_choice, "_has_kernels", lambda: True)
    assert len(kernels(program())) >= 2  # of the prompts, and of the steps
    products = [line for line in program().as_text().splitlines() if "dot_general" in line]
    assert any("(tensor<8x32xbf16>" in line for line in products)
    assert not any("(tensor<1x1x1x32xbf16>" in line for line in products)
    jax.clear_caches()


@pytest.mark.parametrize("dtypes", [("bfloat16", "float32"), ("float32", "bfloat16")])
def test_queries_of_another_dtype_than_the_keys_get_the_kernel(dtypes):
    """Those of an assistant and of its target."""
    own, held = dtypes
    config = dataclasses.replace(CONFIGS["llama"][1], dtype=own, attention="pallas")
    layer = LlamaAttention(config)
    shape = (1, 1, config.num_kv_heads, 8, config.head_dim)
    keys = jnp.ones(shape, held)
    part = Part(keys, keys, jnp.ones((1, 1, 1, 8), bool))

    def attended(x):
        return layer.init_with_output(jax.random.key(0), x, [part], method="read")[0]

    x = jnp.ones((1, 1, 2, config.emb_dim), own)
    assert kernels(for_gpus(jax.jit(attended), x))
    assert jax.eval_shape(attended, x).dtype == own


SHAPES = {
    "greedy": lambda dtype: step_of_decoding(64, 1, 8, 4, 1, 64, 128, 256, dtype=dtype),
    "long": lambda dtype: step_of_decoding(1, 1, 2, 4, 1, 128, 4096, 64, dtype=dtype),
    "tree": lambda dtype: step_of_decoding(2, 1, 8, 4, 4, 128, 128, 512, dtype=dtype, tree=True),
    "lanes": lambda dtype: step_of_decoding(1, 64, 2, 4, 1, 64, 128, 64, dtype=dtype),
    "gemma": lambda dtype: step_of_decoding(2, 1, 4, 2, 1, 256, 64, 64, dtype=dtype, window=32),
    "t5": lambda dtype: step_of_decoding(4, 1, 8, 1, 1, 64, 1, 64, dtype=dtype, bias=True),
    "prompt": lambda dtype: whole_prompt(1, 2, 4, 1024, 128, dtype=dtype, least_distance=0),
}


def lowered(query, parts):
    """The program of the kernel for CUDA."""
    scale = Scale(0.125, 30.0)
    return for_gpus(jax.jit(lambda query: attention_kernel.attend(query, parts, scale)), query)


def kernels(lowered):
    """The kernels of a program: the bytes of their Triton code, and how it is to be compiled."""
    found, names = [], ("num_warps", "num_stages")

    def visit(operation):
        if "triton" in str(operation.attributes.get("call_target_name", "")):
            settings = operation.attributes["mhlo.backend_config"]
            found.append((settings["ir"].value_bytes, {n: settings[n].value for n in names}))
        return ir.WalkResult.ADVANCE

    lowered.compiler_ir("stablehlo").operation.walk(visit)
    return found


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=lambda x: x.__name__)
@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_lowered_for_gpus(shape, dtype):
    program = lowered(*SHAPES[shape](dtype))
    assert len(kernels(program)) == (2 if shape == "lanes" else 1)


COMPILE = """
import json, sys, triton
from triton.backends.compiler import GPUTarget
for path, options in json.load(open(sys.argv[1])):
    for capability in (80, 90):
        built = triton.compile(path, target=GPUTarget("cuda", capability, 32), options=options)
        print(built.metadata.shared)
"""


@pytest.mark.release
def test_it_compiles_for_gpus(tmp_path):
    """Shared memory is at most what a block has on a GPU of the RTX 30 series."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("the compiler of Triton is not installed")
    from jaxlib.triton import dialect

    programs = [
        kernel
        for shape in SHAPES.values()
        for dtype in (jnp.float32, jnp.bfloat16)
        for kernel in kernels(lowered(*shape(dtype)))
    ]
    listed = []
    for index, (code, options) in enumerate(programs):
        path = tmp_path / f"{index}.ttir"
        context = make_ir_context()
        dialect.register_dialect(context)
        context.load_all_available_dialects()
        with context, ir.Location.unknown(context):
            path.write_text(str(ir.Module.parse(code)))
        listed.append([str(path), options])
    (tmp_path / "listed.json").write_text(json.dumps(listed))
    # Another process, since the compilers of JAX and of Triton cannot share one.
    command = [sys.executable, "-c", COMPILE, str(tmp_path / "listed.json")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    shared = [int(line) for line in done.stdout.split()]
    assert len(shared) == 2 * len(programs)
    assert max(shared) <= 99 * 2**10
