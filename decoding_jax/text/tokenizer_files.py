"""The tokenizer of a model directory, from its files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers

from decoding_jax.storage import CloudPath, StoragePath, local_copy, model_path
from decoding_jax.text.chat import ChatTemplate
from decoding_jax.text.tokenizers import (
    ByteTokenizer,
    HuggingFaceTokenizer,
    NumberedPieces,
    SentencePieceTokenizer,
    Tokenizer,
    TokenizerError,
)

SENTENCEPIECE_FILES = (
    "spiece.model",
    "tokenizer.model",
    "sentencepiece.bpe.model",
    "sentencepiece.model",
)
BYTE_FAMILY_VOCAB = 384
# Families whose SentencePiece models, or older files, have other numbers than the networks.
_RENUMBERED = ("bart", "m2m_100", "marian", "mbart", "pegasus")
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
    "source.spm",
    "tokenizer_config.json",
    "special_tokens_map.json",
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
    ``add_bos_token`` and ``add_eos_token`` of ``tokenizer_config.json``; without them, those of a
    T5 have an end token, and all others a start token.

    Args:
      directory: a directory with these files, also as ``hf://organisation/model``; or the path of a
        SentencePiece model.
      family: ``model_type`` and ``vocab_size``, used if there is no ``config.json``.

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
    names = [path.name] if is_file else _FILES
    with local_copy(path.parent if is_file else path, names) as folder:
        copied = folder / path.name if is_file else folder
        try:
            return _load(copied, family)
        except TokenizerError as e:
            raise TokenizerError(str(e).replace(str(copied), str(path))) from e


def _load(directory: Path, family: dict[str, Any] | None) -> Tokenizer:
    if directory.is_file():
        return _sentencepiece(directory, family or {}, ())
    if not directory.exists():
        raise TokenizerError(f"{directory}: no such directory")
    config = _json(directory / "config.json") or family or {}
    eos_ids = _eos_ids(directory, config)
    if (directory / "tokenizer.json").exists():
        made = HuggingFaceTokenizer(_read_json(directory / "tokenizer.json"), eos_ids=eos_ids)
        made.chat = _chat_template(directory)
        return made
    kind = config.get("model_type")
    if kind in ("marian", "m2m_100") and (directory / "vocab.json").exists():
        return (_marian if kind == "marian" else _m2m_100)(directory, eos_ids)
    if kind in _RENUMBERED:
        raise TokenizerError(f"{directory}: no tokenizer; expected tokenizer.json for a {kind}")
    for name in SENTENCEPIECE_FILES:
        if (directory / name).exists():
            return _sentencepiece(directory / name, config, eos_ids)
    if (directory / "vocab.json").exists() and (directory / "merges.txt").exists():
        made = HuggingFaceTokenizer(_byte_level_bpe(directory), eos_ids=eos_ids)
        made.chat = _chat_template(directory)
        return made
    if config.get("model_type") == "t5" and config.get("vocab_size") == BYTE_FAMILY_VOCAB:
        return ByteTokenizer()
    raise TokenizerError(
        f"{directory}: no tokenizer; expected tokenizer.json, {', '.join(SENTENCEPIECE_FILES)}, "
        "or vocab.json with merges.txt"
    )


def _sentencepiece(path: Path, config: dict[str, Any], eos_ids: Sequence[int]) -> Tokenizer:
    """A SentencePiece model: an input of a T5 has an end token, any other one a start token.

    For others, ``add_bos_token`` and ``add_eos_token`` of ``tokenizer_config.json`` come first.
    """
    settings = _json(path.parent / "tokenizer_config.json")
    pieces = SentencePieceTokenizer(path)._pieces
    special = _special_pieces(pieces, settings)
    start = _special_id(special, settings, "bos_token", pieces.bos_id())
    end = _special_id(special, settings, "eos_token", pieces.eos_id())
    is_t5 = config.get("model_type") in ("t5", "mt5", "umt5")
    has_start, has_end = (
        default if is_t5 or settings.get(name) is None else bool(settings[name])
        for name, default in (("add_bos_token", not is_t5), ("add_eos_token", is_t5))
    )
    made = SentencePieceTokenizer(
        path,
        prefix=start if has_start else (),
        suffix=end if has_end else (),
        eos_ids=eos_ids or end,
        special=special,
    )
    ids = {"bos_token": start, "eos_token": end, "unk_token": [pieces.unk_id()]}
    names = {i: text for text, i in special.items()}
    made.chat = _chat_template(
        path.parent, **{k: names[i] for k, v in ids.items() for i in v if i in names}
    )
    return made


def _special_pieces(pieces: Any, settings: dict[str, Any]) -> dict[str, int]:
    """The ids of special tokens by their text: those of the model, and those added after it."""
    of_model = [i for i in range(len(pieces)) if pieces.is_control(i) or pieces.is_unknown(i)]
    added = settings.get("added_tokens_decoder") or {}
    found = {pieces.id_to_piece(i): i for i in of_model}
    return found | {entry["content"]: int(i) for i, entry in added.items()}


def _special_id(
    special: dict[str, int], settings: dict[str, Any], name: str, default: int
) -> list[int]:
    """The id of a special token that the settings name, or the default if there is one."""
    return [i for i in (special.get(_token_text(settings.get(name)) or "", default),) if i >= 0]


def _token_text(token: Any) -> Any:
    """The text of a special token, which a file gives as it is, or among its properties."""
    return token.get("content") if isinstance(token, dict) else token


def _marian(directory: Path, eos_ids: Sequence[int]) -> NumberedPieces:
    """The tokenizer of a Marian, whose inputs may begin with a target language, ``>>fra<<``."""
    settings, numbers = (_json(directory / f) for f in ("tokenizer_config.json", "vocab.json"))
    if settings.get("separate_vocabs"):
        raise TokenizerError(f"{directory}: separate_vocabs: expected False, got True")
    codes = [piece for piece in numbers if piece.startswith(">>") and piece.endswith("<<")]
    special = [*codes, "</s>", "<unk>", "<pad>"]
    return _numbered(directory / "source.spm", numbers, r">>.*?<<", special, (), eos_ids)


def _m2m_100(directory: Path, eos_ids: Sequence[int]) -> NumberedPieces:
    """The tokenizer of an M2M-100, whose language codes are numbered after all pieces."""
    settings, numbers = (_json(directory / f) for f in ("tokenizer_config.json", "vocab.json"))
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
    return _numbered(path, numbers, "|".join(codes), special, (source,), eos_ids)


def _numbered(
    path: Path,
    numbers: dict[str, int],
    codes: str,
    special: Sequence[str],
    prefix: Sequence[str],
    eos_ids: Sequence[int],
) -> NumberedPieces:
    """A tokenizer whose inputs end with ``</s>``."""
    for name in ("</s>", "<unk>"):
        if name not in numbers:
            raise TokenizerError(f"{path.parent / 'vocab.json'}: has no {name}")
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


def _byte_level_bpe(directory: Path) -> tokenizers.Tokenizer:
    """The tokenizer of GPT-2 from its two older files."""
    model = tokenizers.models.BPE.from_file(
        str(directory / "vocab.json"), str(directory / "merges.txt")
    )
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    return tokenizer


def _read_json(path: Path) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as e:  # the library raises Exception itself
        raise TokenizerError(f"{path}: not a tokenizer file: {e}") from e


def _chat_template(directory: Path, **special: str) -> ChatTemplate:
    """The templates of a directory, with the special tokens that they name.

    ``chat_template.jinja`` and ``chat_template.json`` come before ``tokenizer_config.json``.

    Args:
      directory: the directory.
      **special: special tokens of the tokenizer itself, unless a file names others.
    """
    settings = _json(directory / "tokenizer_config.json")
    for name, token in (_json(directory / "special_tokens_map.json") | settings).items():
        text = _token_text(token)
        if name.endswith("_token") and isinstance(text, str):
            special[name] = text
    found = settings.get("chat_template")
    found = _json(directory / "chat_template.json").get("chat_template", found)
    if (directory / "chat_template.jinja").is_file():
        found = (directory / "chat_template.jinja").read_text(encoding="utf-8")
    if isinstance(found, list):
        return ChatTemplate({entry["name"]: entry["template"] for entry in found}, special)
    return ChatTemplate({} if found is None else {"default": found}, special)


def _json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as e:
        raise TokenizerError(f"{path}: broken JSON: {e}") from e
    if not isinstance(values, dict):
        got = type(values).__name__
        raise TokenizerError(f"{path}: expected a JSON object, got a {got}")
    return values


def _eos_ids(directory: Path, config: dict[str, Any]) -> tuple[int, ...]:
    name = "generation_config.json"
    for file, settings in ((name, _json(directory / name)), ("config.json", config)):
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
