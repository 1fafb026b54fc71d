"""The entry point of ``python -m decoding_jax.infer``."""

import sys

from decoding_jax.infer.command import main

sys.exit(main())
