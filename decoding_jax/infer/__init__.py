"""The batch job: files or tasks in, JSON lines out, in shards that survive being killed.

``python -m decoding_jax.infer --gin_file=...`` runs it as gin files say; ``run`` is the same as a
function.
"""

from decoding_jax.infer.job import Summary, run
from decoding_jax.infer.phrases import beam_search_with_phrases
from decoding_jax.infer.printing import Printer
from decoding_jax.infer.sources import Item, JsonLines, SeqioTask, TextLines

__all__ = [
    "Item",
    "JsonLines",
    "Printer",
    "SeqioTask",
    "Summary",
    "TextLines",
    "beam_search_with_phrases",
    "run",
]
