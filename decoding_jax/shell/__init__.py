"""``python -m decoding_jax``: texts decoded from the shell, for a first look."""

from decoding_jax.shell.command import main

__all__ = ["main"]
