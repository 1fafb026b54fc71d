"""Packaging. Tool settings are in pyproject.toml."""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
VERSION = re.search(
    r'^__version__ = "(.+)"$', (HERE / "decoding_jax/__init__.py").read_text("utf-8"), re.MULTILINE
)
README = HERE / "README.md"

EXTRAS = {
    "seqio": ["seqio>=0.0.20", "tensorflow>=2.16"],
    "experiments": ["matplotlib>=3.8", "rouge-score>=0.1.2", "sacrebleu>=2.4"],
    "t5x": ["tensorstore>=0.1.71"],
    # Unpinned, torch brings the whole CUDA stack along.
    "parity": ["torch==2.13.0", "transformers>=5.0"],
    "test": ["mypy>=1.15", "pytest>=8.0", "pytest-xdist>=3.6", "ruff>=0.9"],
}

setup(
    name="decoding_jax",
    version=VERSION[1],
    description="Text decoding in JAX: sampling, search and speculation as pure functions",
    long_description=README.read_text("utf-8") if README.exists() else "",
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=[*find_packages(include=["decoding_jax", "decoding_jax.*"]), "decoding_jax.gin_files"],
    # The gin files stand at the top of the checkout and inside the package of a wheel; a package
    # called gin would shadow the library of that name.
    package_dir={"decoding_jax.gin_files": "gin"},
    package_data={
        "decoding_jax": ["py.typed", "models/embedded/*", "models/embedded/*/*"],
        "decoding_jax.gin_files": ["*", "*/*"],
    },
    install_requires=[
        "absl-py>=2.1",
        "flax>=0.12",
        "gin-config>=0.5",
        "jax>=0.9",
        "numpy>=2.0.2",
        "optax>=0.2.4",
        "safetensors>=0.5",
        "sentencepiece>=0.2",
        "tokenizers>=0.21",
        "tqdm>=4.66.5",
    ],
    extras_require=EXTRAS,
    classifiers=[
        "Intended Audience :: Science/Research",
        "Operating System :: OS Independent",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.11",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
