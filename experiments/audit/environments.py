"""The environment of each project, with pinned versions.

An environment is a folder with a virtual environment (``environment``) and, for a project that is
not on the package index, or whose release is old, the needed files of its repository at one
commit (``source``). Nothing is built: the files are imported where they lie.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

_TORCH = ("torch==2.13.0", "numpy==2.4.6")
_TRANSFORMERS = ("transformers==5.23.0", *_TORCH)
_JAX = ("jax==0.10.2", "flax==0.12.8", "numpy==2.4.6")


@dataclasses.dataclass(frozen=True)
class Checkout:
    """Files and folders of a public repository at a commit."""

    url: str
    commit: str
    paths: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Environment:
    """How a project's environment is made.

    Attributes:
      program: its file in ``projects``.
      version: what the report calls the version.
      packages: installed with their dependencies.
      alone: installed without, because the samplers do not need them.
      checkouts: of repositories, first that of the samplers.
      release: the address of the release's files, for a project without checkouts.
    """

    program: str
    version: str
    packages: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()
    checkouts: tuple[Checkout, ...] = ()
    release: str = ""

    def link(self, at: str) -> str:
        """The permanent address of a line, given as ``path#L12``."""
        if not self.checkouts:
            return f"{self.release}/{at}"
        return f"{self.checkouts[0].url}/blob/{self.checkouts[0].commit}/{at}"


_T5X = Checkout(
    "https://github.com/google-research/t5x",
    "cc342d419ec3e3e9c4bf1df33c82330cafdc1e16",
    ("t5x/binary_search.py", "t5x/decoding.py"),
)
_ARITHMETIC = Checkout(
    "https://github.com/google-research/google-research",
    "5b09c22d73a9d35eb6c5d2a99b95677a45053466",
    ("arithmetic_sampling/t5x",),
)
_MAXTEXT = Checkout(
    "https://github.com/AI-Hypercomputer/maxtext",
    "e591f30cbbf217ed67ef71263ec0538239f9c3b8",
    ("src/maxtext/inference",),
)
_SGLANG = Checkout(
    "https://github.com/sgl-project/sglang-jax",
    "cddbf6f1cc33cbdd453bd8f36ff7051cf46ca176",
    ("python/sgl_jax/srt",),
)
_SPECULATIVE = Checkout(
    "https://github.com/jaymody/speculative-sampling",
    "03b4759da6e894bacdc2f396dc4fd88c913bf94d",
    (".",),
)
ENVIRONMENTS: dict[str, Environment] = {
    "decoding_jax": Environment(
        "decoding_jax_strategies.py", "this repository", packages=(".",), release="../.."
    ),
    "transformers": Environment(
        "transformers_generate.py",
        "5.24.0",
        packages=("transformers==5.24.0", *_TORCH),
        release="https://github.com/huggingface/transformers/blob/v5.24.0",
    ),
    "xgrammar": Environment(
        "xgrammar_generate.py",
        "0.2.8, in transformers 5.23.0",
        packages=("xgrammar==0.2.8", *_TRANSFORMERS),
        release="https://github.com/mlc-ai/xgrammar/blob/53da3ff8c0db359ecb6d4b41f154308c82a89aaf",
    ),
    "outlines": Environment(
        "outlines_generator.py",
        "1.3.3, on transformers 5.23.0",
        packages=("outlines==1.3.3", *_TRANSFORMERS),
        release="https://github.com/dottxt-ai/outlines/blob/be2cd151855c64a81262c4daace2428400b109ff",
    ),
    "genlm_control": Environment(
        "genlm_control_sampler.py",
        "0.4.1",
        packages=("genlm-control==0.4.1", "frozendict==2.5.1", *_TRANSFORMERS),
        release="https://github.com/genlm/genlm-control/blob/v0.4.1",
    ),
    "t5x": Environment("t5x_decoding.py", "cc342d4", packages=_JAX, checkouts=(_T5X,)),
    "arithmetic_sampling": Environment(
        "arithmetic_sampling_decoding.py",
        "5b09c22, on T5X cc342d4",
        packages=_JAX,
        checkouts=(_ARITHMETIC, _T5X),
    ),
    "keras_hub": Environment(
        "keras_hub_samplers.py",
        "0.32.0",
        packages=(
            *(
                "jax==0.10.2",
                "keras==3.15.1",
                "numpy==2.4.6",
                "regex==2026.11.15",
                "absl-py==2.5.1",
            ),
            *("rich==15.0.0", "packaging==26.3", "tokenizers==0.23.3", "sentencepiece==0.2.3"),
            "kagglehub==1.0.0",
        ),
        alone=("keras-hub==0.32.0",),
        release="https://github.com/keras-team/keras-hub/blob/v0.32.0",
    ),
    "tunix": Environment(
        "tunix_sampler.py",
        "0.1.7",
        packages=(*_JAX, "jaxtyping==0.3.11", "absl-py==2.5.1"),
        alone=("google-tunix==0.1.7",),
        release="https://github.com/google/tunix/blob/ce63a9fd65f02c4c398e74f000f98371c1575eb6",
    ),
    "gemma": Environment(
        "gemma_sampling.py",
        "3.3.0",
        packages=(
            *(*_JAX, "etils[edc,enp,epath,epy,etree]==1.15.0", "einops==0.8.2", "lark==1.3.1"),
            *("jaxtyping==0.3.11", "typeguard==4.6.0", "clu==0.0.12", "tensorflow-cpu==2.21.0"),
        ),
        alone=("gemma==3.3.0", "kauldron==1.4.2"),
        release="https://github.com/google-deepmind/gemma/blob/b38d84803b7336aed68a3e1c2c930c20df62a4e2",
    ),
    "maxtext": Environment("maxtext_inference.py", "e591f30", packages=_JAX, checkouts=(_MAXTEXT,)),
    "sglang_jax": Environment(
        "sglang_jax_sampler.py", "cddbf6f", packages=_JAX, checkouts=(_SGLANG,)
    ),
    "tpu_inference": Environment(
        "tpu_inference_sampler.py",
        "0.32.0",
        packages=_JAX,
        alone=("tpu-inference==0.32.0",),
        release="https://github.com/vllm-project/tpu-inference/blob/v0.32.0",
    ),
    "speculative_sampling": Environment(
        "speculative_sampling_main.py",
        "03b4759",
        packages=("numpy==2.4.6", "tqdm==4.70.1"),
        checkouts=(_SPECULATIVE,),
    ),
}


def python(name: str, directory: Path) -> Path:
    """The interpreter of a project, which need not exist."""
    if name == "decoding_jax":
        return Path(sys.executable)
    return directory / name / "environment" / "bin" / "python"


def commands(name: str, directory: Path) -> list[list[str]]:
    """The commands that make an environment, each a list of arguments."""
    made, root = ENVIRONMENTS[name], directory / name
    made_python = str(python(name, directory))
    lines = [[sys.executable, "-m", "venv", str(root / "environment")]]
    if made.alone:
        lines.append([made_python, "-m", "pip", "install", "--no-deps", *made.alone])
    if made.packages:
        lines.append([made_python, "-m", "pip", "install", *made.packages])
    for i, checkout in enumerate(made.checkouts):
        git = ["git", "-C", str(root / f"repository{i}")]
        lines += [
            ["git", "init", "--quiet", str(root / f"repository{i}")],
            # Unlike `git remote add`, this may be repeated after a failure.
            [*git, "config", "remote.origin.url", checkout.url],
            [*git, "fetch", "--depth=1", "--filter=blob:none", "origin", checkout.commit],
            ["mkdir", "-p", str(root / "source")],
            [
                *[*git, "--work-tree", str(root / "source")],
                *["checkout", checkout.commit, "--", *checkout.paths],
            ],
        ]
    return lines


def prepare(name: str, directory: Path) -> None:
    """Makes the environment of a project in ``directory / name``.

    Raises:
      KeyError: for a name that is not in ``ENVIRONMENTS``.
      subprocess.CalledProcessError: if a command fails.
    """
    for line in commands(name, directory):
        print("+", " ".join(line), flush=True)
        subprocess.run(line, check=True)
