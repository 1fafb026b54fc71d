"""The entry point of ``python -m decoding_jax``."""

import sys

from decoding_jax.shell.command import main

sys.exit(main())
