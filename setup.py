"""The gin files of the package. All other metadata is in pyproject.toml, which cannot say this."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["decoding_jax", "decoding_jax.*"]), "decoding_jax.gin_files"],
    # The gin files are at the top of the checkout and inside the package of a wheel; a package
    # called gin would shadow the library of that name.
    package_dir={"decoding_jax.gin_files": "gin"},
    package_data={
        "decoding_jax": ["py.typed", "models/embedded/*", "models/embedded/*/*"],
        "decoding_jax.gin_files": ["*", "*/*"],
    },
)
