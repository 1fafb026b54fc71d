"""Small tokenizers of every kind that ``load_tokenizer`` makes, to test texts as they grow."""

import functools
import tempfile

import sentencepiece
import tokenizers
from tokenizers import decoders, models

from decoding_jax.text import ByteTokenizer, HuggingFaceTokenizer, SentencePieceTokenizer, embedded

LINES = ["the cat sat on the mat", "un chat, deux chats", "café noir ### the dog ate"]
BYTES = [f"<0x{b:02X}>" for b in range(256)]
WORDS = ["the", "cat", "##s", "n't", "do", "not", "'", "s", ".", ",", "##", "#", "\n\n", "é"]
PIECES = ["▁", "▁▁", "▁the", "▁cat", "s", "é", "#", "##", "▁#", "日本", " ", ".", "▁."]


def level(tokens, decoder, special=()):
    """Tokens of a word-level model, decoded by ``decoder``."""
    vocab = {token: i for i, token in enumerate(["<end>", "<unk>", *tokens])}
    tokenizer = tokenizers.Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.decoder = decoder
    tokenizer.add_special_tokens(["<end>", *special])
    return HuggingFaceTokenizer(tokenizer, eos_ids=(0,))


def byte_level():
    """Bytes, and a few merged tokens of them that begin and end inside characters."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    encode = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    merged = [encode.pre_tokenize_str(text)[0][0] for text in (" the", "é", "日", "##", "\n\n")]
    return level([*alphabet, *merged, merged[2][:2], merged[2][1:]], decoders.ByteLevel())


def trained(**settings):
    with tempfile.TemporaryDirectory() as folder:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(LINES * 20),
            model_prefix=f"{folder}/m",
            hard_vocab_limit=False,
            pad_id=0,
            eos_id=1,
            unk_id=2,
            bos_id=3,
            minloglevel=2,
            **settings,
        )
        return SentencePieceTokenizer(f"{folder}/m.model", eos_ids=(1,))


LLAMA = decoders.Sequence(
    [
        decoders.Replace("▁", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ]
)
ZOO = {
    "bytes": ByteTokenizer,
    "pieces": lambda: SentencePieceTokenizer(embedded()["translation-en-fr"] / "spiece.model"),
    "pieces_and_bytes": lambda: trained(vocab_size=320, byte_fallback=True),
    "pieces_without_prefix": lambda: trained(
        vocab_size=60, add_dummy_prefix=False, remove_extra_whitespaces=False
    ),
    "byte_level": byte_level,
    "llama": lambda: level([*PIECES, *BYTES], LLAMA),
    "metaspace": lambda: level(PIECES, decoders.Metaspace()),
    "word_pieces": lambda: level(WORDS, decoders.WordPiece()),
    "end_of_word": lambda: level(["the</w>", "cat</w>", "ca", "s</w>", "é"], decoders.BPEDecoder()),
    "words": lambda: level(WORDS, None),
}


@functools.cache
def zoo(name):
    """The tokenizer of a name, and the size of a vocabulary that it is used with."""
    tokenizer = ZOO[name]()
    if isinstance(tokenizer, ByteTokenizer):
        return tokenizer, 384
    return tokenizer, tokenizer.vocab_size + 2
