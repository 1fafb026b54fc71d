"""Tokenizers, loading, and the generation of texts from texts, at once or as a stream."""

from decoding_jax.batches import bind_drafter, encode_batch
from decoding_jax.text.chat import ChatTemplate
from decoding_jax.text.completions import Completion, completions, context_of, unique
from decoding_jax.text.corpora import read_corpus
from decoding_jax.text.generate import generate
from decoding_jax.text.generation_config import GenerationConfig
from decoding_jax.text.inputs import encode_texts
from decoding_jax.text.loading import embedded, load
from decoding_jax.text.phrases import constraints
from decoding_jax.text.running_batch import RunningBatch
from decoding_jax.text.score import ContinuationScore, score
from decoding_jax.text.shared_prefix import WithText, share_prefix
from decoding_jax.text.show import Page, show
from decoding_jax.text.stop_strings import default_stop, stop_strings, with_end_tokens
from decoding_jax.text.stream_text import Piece, Streamer, TextStream, TextStreamer, stream_text
from decoding_jax.text.streaming import stream
from decoding_jax.text.token_scores import TokenScores, token_scores
from decoding_jax.text.token_texts import TokenTexts
from decoding_jax.text.tokenizer_files import load_tokenizer
from decoding_jax.text.tokenizers import (
    ByteTokenizer,
    ConcatenatingTokenizer,
    HuggingFaceTokenizer,
    NumberedPieces,
    SentencePieceTokenizer,
    SettlingTokenizer,
    Tokenizer,
    TokenizerError,
    WithSpecialTokens,
)
from decoding_jax.text.warn import CutTextWarning, NanLogitsWarning

__all__ = [
    "ByteTokenizer",
    "ChatTemplate",
    "Completion",
    "ConcatenatingTokenizer",
    "ContinuationScore",
    "CutTextWarning",
    "GenerationConfig",
    "HuggingFaceTokenizer",
    "NanLogitsWarning",
    "NumberedPieces",
    "Page",
    "Piece",
    "RunningBatch",
    "SentencePieceTokenizer",
    "SettlingTokenizer",
    "Streamer",
    "TextStream",
    "TextStreamer",
    "TokenScores",
    "TokenTexts",
    "Tokenizer",
    "TokenizerError",
    "WithSpecialTokens",
    "WithText",
    "bind_drafter",
    "completions",
    "constraints",
    "context_of",
    "default_stop",
    "embedded",
    "encode_batch",
    "encode_texts",
    "generate",
    "load",
    "load_tokenizer",
    "read_corpus",
    "score",
    "share_prefix",
    "show",
    "stop_strings",
    "stream",
    "stream_text",
    "token_scores",
    "unique",
    "with_end_tokens",
]
