"""The packages and their data. All other metadata is in pyproject.toml, which cannot say this."""

from setuptools import find_namespace_packages, find_packages, setup

# The gin files are at the top of the checkout and inside the package of a wheel; a package called
# gin would shadow the library of that name.
GIN = "decoding_jax.gin_files"
# Folders of data with names that could be imported: setuptools takes them for packages.
DATA = [
    "decoding_jax.models.embedded",
    GIN,
    *(f"{GIN}.{x}" for x in find_namespace_packages("gin")),
]

setup(
    packages=[*find_packages(include=["decoding_jax", "decoding_jax.*"]), *DATA],
    package_dir={GIN: "gin"},
    package_data={
        "decoding_jax": ["py.typed"],
        **{package: ["*"] for package in DATA},
        "decoding_jax.text.show": ["*.css", "*.html"],
        "decoding_jax.models.embedded": ["*", "*/*"],
    },
)
