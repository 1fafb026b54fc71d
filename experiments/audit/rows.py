"""All rows of the audit."""

from __future__ import annotations

from experiments.audit import promises_of_languages as languages
from experiments.audit import promises_of_libraries as libraries
from experiments.audit import promises_of_servers as servers
from experiments.audit.row import Row

ROWS: list[Row] = [
    *libraries.DECODING_JAX,
    *languages.DECODING_JAX,
    *libraries.TRANSFORMERS,
    *libraries.T5X,
    *libraries.ARITHMETIC,
    *libraries.KERAS,
    *languages.OUTLINES,
    *languages.XGRAMMAR,
    *languages.GENLM_CONTROL,
    *servers.TUNIX,
    *servers.GEMMA,
    *servers.MAXTEXT,
    *servers.SGLANG_JAX,
    *servers.TPU_INFERENCE,
    *servers.SPECULATIVE_SAMPLING,
]
