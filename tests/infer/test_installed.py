"""An installed copy of the package finds its gin files."""

import os
import subprocess
import sys

import pytest
from infer_fakes import HERE

ROOT = HERE.parent.parent
SHIPPED = sorted(str(p.relative_to(ROOT / "gin")) for p in (ROOT / "gin").glob("**/*.gin"))


@pytest.mark.exhaustive
def test_an_installed_copy_finds_the_gin_files_by_name(tmp_path):
    """Builds the package as a wheel holds it, and asks it from another folder for every file.

    Setuptools warns of nothing, such as a folder of data that could be a package.
    """
    pytest.importorskip("setuptools", "77", reason="needs the test extra: setuptools 77")
    build = subprocess.run(
        [sys.executable, "setup.py", "-q", "build", "--build-base", tmp_path / "build"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    assert "Warning" not in build.stderr
    library = tmp_path / "build" / "lib"
    shipped = library / "decoding_jax" / "gin_files"
    assert sorted(str(p.relative_to(shipped)) for p in shipped.glob("**/*.gin")) == SHIPPED
    ask = (
        "import gin, sys; from decoding_jax import gin_path;"
        "assert gin.parse_config and gin_path.folder().name == 'gin_files';"
        "print([str(gin_path.find(name)) for name in sys.argv[1:]])"
    )
    (tmp_path / "elsewhere" / "gin").mkdir(parents=True)  # python -c looks here first
    answer = subprocess.run(
        [sys.executable, "-c", ask, *SHIPPED, "runs/demo_sentences.txt"],
        cwd=tmp_path / "elsewhere",
        env={**os.environ, "PYTHONPATH": str(library)},
        check=True,
        capture_output=True,
        text=True,
    )
    assert answer.stdout.count(str(shipped)) == len(SHIPPED) + 1
