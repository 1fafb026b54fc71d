"""The tokenizer of a model directory, from its files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import sentencepiece
import tokenizers
from tokenizers import AddedToken, pre_tokenizers

from decoding_jax.storage import CloudPath, StoragePath, local_copy, model_path
from decoding_jax.text.tokenizer_settings import (
    TEMPLATES,
    TokenizerSettings,
    cleans_up,
    read_object,
)
from decoding_jax.text.tokenizers import (
    ByteTokenizer,
    HuggingFaceTokenizer,
    NumberedPieces,
    SentencePieceTokenizer,
    Tokenizer,
    TokenizerError,
    processor,
)

SENTENCEPIECE_FILES = (
    "spiece.model",
    "tokenizer.model",
    "sentencepiece.bpe.model",
    "sentencepiece.model",
)
BYTE_FAMILY_VOCAB = 384
_T5 = ("t5", "longt5", "mt5", "switch_transformers", "umt5")
# Families whose SentencePiece models, or older files, have other numbers than the networks.
_RENUMBERED = ("bart", "m2m_100", "marian", "mbart", "pegasus")
_WITH_NUMBERS = ("m2m_100", "marian")  # in vocab.json
# Files of other libraries, and the lines of tiktoken's: a token in base64, and its id.
_OTHER_FILES = re.compile(r"tekken\.json|.*\.tiktoken")
_TIKTOKEN = re.compile(rb"[A-Za-z0-9+/=]+ \d+")
_CONVERSION = ", which AutoTokenizer.from_pretrained and save_pretrained of transformers write"


class _Form(NamedTuple):
    """How a class of ``transformers`` reads ``vocab.json`` and ``merges.txt``.

    Attributes:
      pattern: the pattern by which texts are divided into words, or None for GPT-2's.
      special: the special tokens, unless a file names others.
    """

    pattern: str | None
    special: dict[str, str]


_END = "<|endoftext|>"
_BYTE_LEVEL = {
    "GPT2Tokenizer": _Form(None, {"unk_token": _END, "bos_token": _END, "eos_token": _END}),
    "Qwen2Tokenizer": _Form(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
        r"\s*[\r\n]+|\s+(?!\S)|\s+",
        {"unk_token": _END, "eos_token": _END, "pad_token": _END},
    ),
}
_LANGUAGES = (
    "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha"
    " he hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my"
    " ne nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz"
    " vi wo xh yi yo zh zu"
)
M2M_100_LANGUAGES = _LANGUAGES.split()
_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "vocab.json",
    "merges.txt",
    "target_vocab.json",
    "source.spm",
    "target.spm",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    *SENTENCEPIECE_FILES,
)


def load_tokenizer(
    directory: str | StoragePath, *, family: dict[str, Any] | None = None
) -> Tokenizer:
    """The tokenizer of a model directory.

    It is read from the first of these that the directory has: ``tokenizer.json``; the SentencePiece
    model and ``vocab.json`` of a Marian or M2M-100; a SentencePiece model; ``vocab.json`` with
    ``merges.txt``; a ByT5 configuration. The end tokens are those of ``generation_config.json`` or
    ``config.json``. Whether a SentencePiece model's inputs have a start and an end token is said by
    ``add_bos_token`` and ``add_eos_token`` of ``tokenizer_config.json``; those of a T5 have an end
    token, and without these settings all others have neither.

    Args:
      directory: a directory with these files, also as ``hf://organisation/model``; or the path of a
        SentencePiece model.
      family: ``model_type``, ``vocab_size`` and ``add_bos_token``, each used where ``config.json``
        does not have it; and ``end_tokens``, which end texts too where a SentencePiece model has
        them.

    Raises:
      TokenizerError: in one line, if there is no tokenizer or it cannot be read.
      ValueError: for a URL of an unknown scheme.
    """
    path = model_path("tokenizer", directory, weights=False)
    if not isinstance(path, CloudPath):
        return _load(path, family)
    is_file = path.is_file()
    if not is_file and not path.is_dir():
        raise TokenizerError(f"{path}: no such directory")
    names = [path.name]
    if not is_file:
        templates = (path / TEMPLATES).glob("*.jinja")
        names = [*_FILES, *(f"{TEMPLATES}/{template.name}" for template in templates)]
    with local_copy(path.parent if is_file else path, names) as folder:
        copied = folder / path.name if is_file else folder
        try:
            return _load(copied, family)
        except TokenizerError as e:
            raise TokenizerError(str(e).replace(str(copied), str(path))) from e


def _load(path: Path, family: dict[str, Any] | None) -> Tokenizer:
    if path.is_file():
        settings = TokenizerSettings(path.parent, {}, {}, [], {})
        return _sentencepiece(path, family or {}, settings, ())
    if not path.exists():
        raise TokenizerError(f"{path}: no such directory")
    config = read_object(path / "config.json")
    made = _of_directory(path, {**(family or {}), **config})
    made.network_size = config.get("decoder_vocab_size") or config.get("vocab_size")
    return made


def _of_directory(directory: Path, config: dict[str, Any]) -> HuggingFaceTokenizer:
    eos_ids = _eos_ids(directory, config)
    if (directory / "tokenizer.json").exists():
        settings = TokenizerSettings.read(directory)
        tokenizer = _read_json(directory / "tokenizer.json")
        return _of_library(tokenizer, settings, "tokenizer.json", eos_ids)
    kind = config.get("model_type")
    if kind in _WITH_NUMBERS and (directory / "vocab.json").exists():
        return (_marian if kind == "marian" else _m2m_100)(directory, eos_ids)
    if kind in _RENUMBERED:
        raise TokenizerError(
            f"{directory}: no tokenizer; expected tokenizer.json for a {kind}"
            f"{'' if kind in _WITH_NUMBERS else _CONVERSION}"
        )
    for name in SENTENCEPIECE_FILES:
        if (directory / name).exists():
            settings = TokenizerSettings.read(directory)
            return _sentencepiece(directory / name, config, settings, eos_ids)
    if (directory / "vocab.json").exists() and (directory / "merges.txt").exists():
        return _byte_level_bpe(directory, config, eos_ids)
    if kind == "t5" and config.get("vocab_size") == BYTE_FAMILY_VOCAB:
        return _bytes(directory, eos_ids)
    other = sorted(p.name for p in directory.iterdir() if _OTHER_FILES.fullmatch(p.name))
    raise TokenizerError(
        f"{directory}: no tokenizer; expected tokenizer.json, {', '.join(SENTENCEPIECE_FILES)}, "
        f"or vocab.json with merges.txt{', got ' + other[0] + _CONVERSION if other else ''}"
    )


def _of_library(
    tokenizer: tokenizers.Tokenizer,
    settings: TokenizerSettings,
    source: str,
    eos_ids: Sequence[int],
) -> HuggingFaceTokenizer:
    """A tokenizer with the added tokens and the templates of its directory."""
    settings.add_to(tokenizer, source)
    made = HuggingFaceTokenizer(tokenizer, eos_ids=eos_ids)
    made.chat = settings.chat_template()
    is_bpe = isinstance(tokenizer.model, tokenizers.models.BPE)
    made.clean_up = cleans_up(settings.values, is_bpe=is_bpe)
    return made


def _sentencepiece(
    path: Path, config: dict[str, Any], settings: TokenizerSettings, eos_ids: Sequence[int]
) -> SentencePieceTokenizer:
    """A SentencePiece model: an input of a T5 has an end token.

    For others, ``add_bos_token`` and ``add_eos_token`` of ``tokenizer_config.json`` say so.
    """
    pieces, values = _pieces_of(path), settings.values
    family = config.get("model_type")
    is_t5 = family in _T5
    added = _tokens_of_model(pieces, settings, config if is_t5 else None)
    numbers = {pieces.id_to_piece(i): i for i in range(len(pieces))}
    numbers |= {token.content: i for i, token in added.items()}
    special = {"bos_token": pieces.bos_id(), "eos_token": pieces.eos_id()}
    special |= {name: numbers[text] for name in special if (text := settings.text(name))}
    start, end = ([i] if i >= 0 else [] for i in special.values())
    named = [numbers[x] for x in config.get("end_tokens", ()) if x in numbers]
    has_start = bool(values.get("add_bos_token", config.get("add_bos_token"))) and not is_t5
    has_end = bool(values.get("add_eos_token")) or is_t5
    is_llama = settings.token_class(config) == "LlamaTokenizer" and family != "mistral"
    made = SentencePieceTokenizer(
        path,
        prefix=start if has_start else (),
        suffix=end if has_end else (),
        eos_ids=list(dict.fromkeys([*(eos_ids or end), *named])),
        added=added,
        plain=is_llama,
        each=is_t5 or bool(values.get("legacy", not is_llama)),
        decoder=tokenizers.decoders.Metaspace() if is_t5 else None,
    )
    names = {i: text for text, i in numbers.items()}
    special["unk_token"] = pieces.unk_id()
    texts = {name: names[i] for name, i in special.items() if i in names}
    made.chat = settings.chat_template(texts)
    # The scores of a BPE are the numbers of its merges, and those of others logarithms.
    is_bpe = is_llama or all(pieces.get_score(i).is_integer() for i in range(len(pieces)))
    made.clean_up = cleans_up(values, is_bpe=is_bpe and not is_t5)
    return made


def _pieces_of(path: Path) -> sentencepiece.SentencePieceProcessor:
    try:
        return processor(path)
    except TokenizerError as e:
        lines = path.read_bytes().splitlines()[:1]
        if lines and _TIKTOKEN.fullmatch(lines[0]):
            cause = f"{e}, but one of tiktoken; expected tokenizer.json{_CONVERSION}"
            raise TokenizerError(cause) from None
        raise


def _tokens_of_model(
    pieces: sentencepiece.SentencePieceProcessor,
    settings: TokenizerSettings,
    t5: dict[str, Any] | None,
) -> dict[int, AddedToken]:
    """The added tokens of a SentencePiece model, by their ids; with the sentinels of a T5.

    A token without an id is one of the pieces, or comes after all of them.
    """
    known = {pieces.id_to_piece(i): i for i in range(len(pieces))}
    found: dict[int, AddedToken] = {}
    if t5 is not None:
        count = settings.values.get("extra_ids")
        if count is None:  # As many as T5 has, if the network has rows for them.
            count = 100 if len(pieces) + 100 <= t5.get("vocab_size", 0) else 0
        last = len(pieces) + int(count) - 1
        texts = {last - i: f"<extra_id_{i}>" for i in range(int(count))}
        found = {i: AddedToken(text, special=True) for i, text in sorted(texts.items())}
    settings.check_ids(known | {token.content: i for i, token in found.items()}, "its pieces")
    found |= settings.added
    known |= {token.content: i for i, token in found.items()}
    for token in settings.tokens({}):
        number = known.setdefault(token.content, max(known.values()) + 1)
        found[number] = token
    return found


def _marian(directory: Path, eos_ids: Sequence[int]) -> NumberedPieces:
    """The tokenizer of a Marian, whose inputs may begin with a target language, ``>>fra<<``."""
    settings = read_object(directory / "tokenizer_config.json")
    is_separate = bool(settings.get("separate_vocabs"))

    def of_language(pieces: str, table: str) -> NumberedPieces:
        numbers = read_object(directory / table)
        codes = [piece for piece in numbers if piece.startswith(">>") and piece.endswith("<<")]
        special = [*([] if is_separate else codes), "</s>", "<unk>", "<pad>"]
        made = _numbered(directory / pieces, numbers, r">>.*?<<", special, (), eos_ids, table)
        made.clean_up = cleans_up(settings, is_bpe=False)
        return made

    source = of_language("source.spm", "vocab.json")
    if not is_separate:
        return source
    target = of_language("target.spm", "target_vocab.json")
    target.source = source
    return target


def _m2m_100(directory: Path, eos_ids: Sequence[int]) -> NumberedPieces:
    """The tokenizer of an M2M-100, whose language codes are numbered after all pieces."""
    settings, numbers = (
        read_object(directory / f) for f in ("tokenizer_config.json", "vocab.json")
    )
    if settings.get("language_codes", "m2m100") != "m2m100":
        got = settings["language_codes"]
        raise TokenizerError(f"{directory}: language_codes: expected 'm2m100', got {got!r}")
    codes = [f"__{language}__" for language in M2M_100_LANGUAGES]
    numbers |= {code: len(numbers) + i for i, code in enumerate(codes)}
    source = f"__{settings.get('src_lang') or 'en'}__"
    if source not in codes:
        listed = ", ".join(M2M_100_LANGUAGES)
        got = settings["src_lang"]
        raise TokenizerError(f"{directory}: src_lang: expected one of {listed}, got {got!r}")
    special = [*codes, "<s>", "</s>", "<unk>", "<pad>"]
    path = directory / "sentencepiece.bpe.model"
    made = _numbered(path, numbers, "|".join(codes), special, (source,), eos_ids)
    made.clean_up = cleans_up(settings, is_bpe=False)
    return made


def _numbered(
    path: Path,
    numbers: dict[str, int],
    codes: str,
    special: Sequence[str],
    prefix: Sequence[str],
    eos_ids: Sequence[int],
    table: str = "vocab.json",
) -> NumberedPieces:
    """A tokenizer whose inputs end with ``</s>``, with the numbers of the file ``table``."""
    for name in ("</s>", "<unk>"):
        if name not in numbers:
            raise TokenizerError(f"{path.parent / table}: has no {name}")
    return NumberedPieces(
        path,
        numbers,
        codes=codes,
        special=[numbers[name] for name in special if name in numbers],
        prefix=[numbers[name] for name in prefix],
        suffix=[numbers["</s>"]],
        unknown_id=numbers["<unk>"],
        eos_ids=eos_ids or [numbers["</s>"]],
    )


def _byte_level_bpe(
    directory: Path, config: dict[str, Any], eos_ids: Sequence[int]
) -> HuggingFaceTokenizer:
    """The tokenizer of a GPT-2 or a Qwen2 from its two older files."""
    kind = TokenizerSettings.read(directory).token_class(config)
    family = str(config.get("model_type", "gpt2"))
    # transformers takes the class of the family for a Qwen2, whatever the file names.
    if kind in ("", "PreTrainedTokenizer", "TokenizersBackend") or family == "qwen2":
        kind = "Qwen2Tokenizer" if family.startswith(("qwen2", "qwen3")) else "GPT2Tokenizer"
    if kind not in _BYTE_LEVEL:
        raise TokenizerError(
            f"{directory}: expected tokenizer.json{_CONVERSION}; or vocab.json and merges.txt with "
            f"tokenizer_class {' or '.join(_BYTE_LEVEL)}, got {kind!r}"
        )
    form = _BYTE_LEVEL[kind]
    settings = TokenizerSettings.read(directory, form.special)
    files = (str(directory / name) for name in ("vocab.json", "merges.txt"))
    try:
        tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(*files))
    except Exception as e:  # the library raises Exception itself
        raise TokenizerError(f"{directory}: vocab.json and merges.txt: {e}") from e
    spaced = bool(settings.values.get("add_prefix_space"))
    if form.pattern is None:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=spaced)
    else:
        split = pre_tokenizers.Split(tokenizers.Regex(form.pattern), behavior="isolated")
        level = pre_tokenizers.ByteLevel(add_prefix_space=spaced, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, level])
        tokenizer.normalizer = tokenizers.normalizers.NFC()
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    made = _of_library(tokenizer, settings, "vocab.json", eos_ids)
    texts = {
        part: text
        for part, name in (("add_bos_token", "bos_token"), ("add_eos_token", "eos_token"))
        if settings.values.get(part) and (text := settings.text(name))
    }
    if texts:
        around = [texts.get("add_bos_token"), "$A", texts.get("add_eos_token")]
        tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
            single=[part for part in around if part],
            special_tokens=[(text, tokenizer.token_to_id(text)) for text in set(texts.values())],
        )
    return made


def _bytes(directory: Path, eos_ids: Sequence[int]) -> ByteTokenizer:
    """The tokenizer of a ByT5, whose sentinels have the first ids after the bytes."""
    settings = TokenizerSettings.read(directory)
    count = settings.values.get("extra_ids")
    made = ByteTokenizer(
        eos_ids=eos_ids or (1,), extra_ids=BYTE_FAMILY_VOCAB - 259 if count is None else int(count)
    )
    settings.add_to(made.library, "a ByT5")
    made.chat = settings.chat_template()
    made.clean_up = cleans_up(settings.values, is_bpe=False)
    return made


def _read_json(path: Path) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as e:  # the library raises Exception itself
        raise TokenizerError(f"{path}: not a tokenizer file: {e}") from e


def end_ids(directory: StoragePath) -> tuple[int, ...]:
    """The end tokens that the files of a model's directory name; none if they name none.

    Raises:
      TokenizerError: in one line, for anything but ids.
    """
    return _eos_ids(directory, read_object(directory / "config.json"))


def _eos_ids(directory: StoragePath, config: dict[str, Any]) -> tuple[int, ...]:
    name = "generation_config.json"
    for file, settings in ((name, read_object(directory / name)), ("config.json", config)):
        given = settings.get("eos_token_id")
        if given is None:
            continue
        ids = given if isinstance(given, list) else [given]
        if not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
            expected = "a token id, or a list of them"
            raise TokenizerError(
                f"{directory / file}: eos_token_id: expected {expected}, got {given!r}"
            )
        return tuple(ids)
    return ()
