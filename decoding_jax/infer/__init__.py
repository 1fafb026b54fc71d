"""Batch decoding: reads inputs from files or SeqIO tasks, and writes JSON lines.

Output is written in shards, so a job that is killed can be continued. ``python -m
decoding_jax.infer --gin_file=...`` runs a job that gin files configure, and ``run`` is the same job
as a function.
"""

from decoding_jax.infer.batch_decoder import BatchDecoder
from decoding_jax.infer.job import run
from decoding_jax.infer.parquet import ParquetRows
from decoding_jax.infer.phrases import BeamSearchWithPhrases, beam_search_with_phrases
from decoding_jax.infer.records import Printer
from decoding_jax.infer.settings import JobSettings, Settings
from decoding_jax.infer.sources import CsvRows, Item, JsonLines, SeqioTask, TextLines
from decoding_jax.infer.summaries import Summary

__all__ = [
    "BatchDecoder",
    "BeamSearchWithPhrases",
    "CsvRows",
    "Item",
    "JobSettings",
    "JsonLines",
    "ParquetRows",
    "Printer",
    "SeqioTask",
    "Settings",
    "Summary",
    "TextLines",
    "beam_search_with_phrases",
    "run",
]
