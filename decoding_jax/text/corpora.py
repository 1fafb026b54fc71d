"""Corpora of text, from which ``SuffixDrafter`` copies drafts."""

from __future__ import annotations

from decoding_jax import fields
from decoding_jax.storage import StoragePath, read_text
from decoding_jax.strategies.speculative import Corpus
from decoding_jax.text.loading import embedded
from decoding_jax.text.tokenizer_files import load_tokenizer
from decoding_jax.text.tokenizers import Tokenizer


def read_corpus(
    path: str | StoragePath,
    tokenizer: Tokenizer | str | StoragePath,
    *,
    lines: bool = True,
    padded_size: int | None = None,
) -> Corpus:
    """Reads a text file as a corpus.

    Args:
      path: a UTF-8 file; local, or in a bucket.
      tokenizer: the model's tokenizer, or its directory or name.
      lines: whether each line is a text; otherwise, the whole file is one.
      padded_size: see ``Corpus.of``.

    Raises:
      ValueError: for a file without text, or that cannot be read.

    Example:
      >>> import pathlib, tempfile
      >>> path = pathlib.Path(tempfile.mkdtemp()) / "texts.txt"
      >>> _ = path.write_text("Good morning!\\nGood night!\\n")
      >>> read_corpus(path, "translation-en-fr").tokens.shape
      (16,)
    """
    if isinstance(tokenizer, (str, StoragePath)):
        tokenizer = load_tokenizer(embedded().get(str(tokenizer), tokenizer))
    text = read_text("path", path)
    texts = [line for line in text.splitlines() if line] if lines else [text]
    if not text.strip():
        raise fields.error("path", "a file with text", str(path))
    return Corpus.of([tokenizer.encode(t) for t in texts], padded_size)
