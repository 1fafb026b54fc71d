"""The layers import one way, and the library pulls in nothing heavy."""

import ast
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "decoding_jax"
LAYERS = [
    "pytrees",
    "base",
    "ops",
    "transforms",
    "codes",
    "loop",
    "strategies",
    "estimators",
    "compiled",
    "models",
    "text",
    "t5x",
    "infer",
    "testing",
]


def imports_of(path):
    """The layers of this package that a file imports, those inside functions included."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "decoding_jax":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("decoding_jax."):
            yield node.module.split(".")[1]
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("decoding_jax."):
                    yield alias.name.split(".")[1]


def test_a_layer_imports_only_from_those_before_it():
    for path in sorted(PACKAGE.rglob("*.py")):
        layer = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if layer in ("__init__", "testing"):
            continue
        allowed = LAYERS[: LAYERS.index(layer) + 1]
        for other in imports_of(path):
            if other in LAYERS:
                assert other in allowed, f"{path.relative_to(PACKAGE)} imports {other}"


def test_a_strategy_imports_no_other_strategy():
    for path in (PACKAGE / "strategies").glob("*.py"):
        if path.name != "__init__.py":
            assert "strategies" not in set(imports_of(path)), path.name


def test_import_pulls_in_nothing_heavy():
    heavy = ["tensorflow", "torch", "seqio", "gin", "transformers", "t5x", "matplotlib"]
    code = f"import sys, decoding_jax; print([m for m in {heavy} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
