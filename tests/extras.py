"""Whether a test failed only because a package of an extra is not installed; it is skipped then."""

import importlib.util
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
    "optional-dependencies"
]


def extra_of(package: str) -> str | None:
    """The extra that brings a package: one that has its name, or that of a distribution with it.

    A module may have a part of the name of its distribution: ``haiku`` is of ``dm-haiku``.
    """
    for extra, requirements in EXTRAS.items():
        for name in (extra, *(re.split(r"[^\w.-]", text)[0] for text in requirements)):
            if f"_{package}_" in f"_{name.replace('-', '_')}_":
                return extra
    return None


def installed(package: str) -> bool:
    """Whether there is a package of that name, and not only a folder, such as ``tests/t5x``."""
    found = importlib.util.find_spec(package)
    return found is not None and found.origin is not None


def wanting(error: BaseException | None) -> str | None:
    """Says which package is missing if ``error`` was raised for want of one, else None.

    A function of the library that imports a package of an extra has to say how to install it; if it
    does not, the test fails.
    """
    said = ""
    while error is not None:
        said += str(error)
        package = str(getattr(error, "name", "")).split(".")[0]
        if isinstance(error, ImportError) and not installed(package) and extra_of(package):
            trace = error.__traceback__
            while trace and trace.tb_next:
                trace = trace.tb_next
            code = trace and trace.tb_frame.f_code
            library = code and Path(code.co_filename).is_relative_to(ROOT / "decoding_jax")
            if not library or code.co_name == "<module>" or "pip install" in said:
                return f"{package} is not installed (the extra {extra_of(package)})"
        error = error.__cause__ or error.__context__
    return None
