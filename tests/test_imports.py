"""The layers import one way, functions are short, and the library pulls in nothing heavy."""

import ast
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "decoding_jax"
LAYERS = [
    "pytrees",
    "fields",
    "rows",
    "base",
    "sharding",
    "ops",
    "transforms",
    "codes",
    "suggestions",
    "loop",
    "strategies",
    "estimators",
    "registry",
    "storage",
    "models",
    "adapters",
    "batches",
    "text",
    "constraints",
    "gin_path",
    "gin_config",
    "t5x",
    "infer",
    "shell",
    "lm_eval",
    "inspect_ai",
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
        if layer in ("__init__", "__main__", "testing"):
            continue
        allowed = LAYERS[: LAYERS.index(layer) + 1]
        for other in imports_of(path):
            if other in LAYERS:
                assert other in allowed, f"{path.relative_to(PACKAGE)} imports {other}"


def test_a_family_of_strategies_imports_no_other():
    """Files of one folder use each other; what all of them share is ``token_by_token``."""
    root = PACKAGE / "strategies"
    for path in sorted(root.rglob("*.py")):
        family = path.relative_to(root).parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(path.read_text())):
            module = getattr(node, "module", None) or ""
            if family != "__init__" and module.startswith("decoding_jax.strategies"):
                other = module.split(".")[2] if module.count(".") > 1 else node.names[0].name
                assert other in (family, "token_by_token"), f"{path.name} imports {module}"


def test_no_function_has_a_body_of_more_than_80_lines():
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                body = node.body[1:] if ast.get_docstring(node) else node.body
                size = body[-1].end_lineno - body[0].lineno + 1 if body else 0
                assert size <= 80, f"{path.name}: {node.name}"


def test_import_pulls_in_nothing_heavy():
    heavy = ["tensorflow", "torch", "seqio", "gin", "transformers", "t5x", "matplotlib", "scipy"]
    code = f"import sys, decoding_jax; print([m for m in {heavy} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
