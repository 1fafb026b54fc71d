"""The settings of a tokenizer, merged from the files beside its vocabulary.

``tokenizer_config.json``, ``special_tokens_map.json`` and ``added_tokens.json`` say which tokens a
tokenizer has besides its vocabulary, and which of them are special. They are merged as
``transformers`` 5.24 merges them: the two older files count where ``tokenizer_config.json`` has no
``added_tokens_decoder``, and come first there.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from decoding_jax.fields import describe
from decoding_jax.storage import StoragePath
from decoding_jax.text.chat import ChatTemplate
from decoding_jax.text.tokenizers import TokenizerError

TEMPLATES = "additional_chat_templates"
"""The folder of further templates, each in a file of its own."""

CONFIG, TOKENS_MAP, ADDED = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


@dataclasses.dataclass(frozen=True)
class TokenizerSettings:
    """What the files of a directory say about its tokenizer.

    Attributes:
      directory: the directory.
      values: the merged settings.
      named: the special tokens that have names, such as ``eos_token``.
      more: the special tokens without names.
      added: the added tokens that have ids, by these ids.
    """

    directory: Path
    values: Mapping[str, Any]
    named: Mapping[str, AddedToken]
    more: Sequence[AddedToken]
    added: Mapping[int, AddedToken]

    @classmethod
    def read(cls, directory: Path, defaults: Mapping[str, Any] | None = None) -> TokenizerSettings:
        """Reads the settings of a directory.

        Args:
          directory: the directory.
          defaults: the settings that the files may replace.

        Raises:
          TokenizerError: in one line, for a file or a token that cannot be read.
        """
        values = {**(defaults or {}), **read_object(directory / CONFIG)}
        is_old = "added_tokens_decoder" not in values
        if is_old:
            values |= read_object(directory / TOKENS_MAP)
        named, more = _special_tokens(directory, values)
        if is_old:
            special = {token.content for token in (*named.values(), *more)}
            numbers = read_object(directory / ADDED)
            added = {
                _id(directory / ADDED, content, number): _token(content, content in special)
                for content, number in numbers.items()
            }
        else:
            path = directory / CONFIG
            entries = values["added_tokens_decoder"] or {}
            if not isinstance(entries, dict):
                raise _error(path, "added_tokens_decoder", "an object", entries)
            added = {
                _id(path, "added_tokens_decoder", number): _read_token(
                    path, f"added_tokens_decoder[{number}]", entry, special=False
                )
                for number, entry in entries.items()
            }
        by_content = {token.content: token for token in added.values()}
        named = {name: by_content.get(token.content, token) for name, token in named.items()}
        return cls(directory, values, named, more, dict(sorted(added.items())))

    def token_class(self, config: Mapping[str, Any]) -> str:
        """The name of the tokenizer's class in ``transformers``, or an empty one."""
        found = self.values.get("tokenizer_class") or config.get("tokenizer_class")
        return found.removesuffix("Fast") if isinstance(found, str) else ""

    def text(self, name: str) -> str | None:
        """The text of a special token with a name, such as ``eos_token``."""
        return self.named[name].content if name in self.named else None

    def tokens(self, known: Mapping[str, AddedToken]) -> list[AddedToken]:
        """The tokens that a tokenizer lacks, or has with other properties.

        A token with a name is special. Those without an id come last.

        Args:
          known: the added tokens of the tokenizer, by their texts.
        """
        names = {token.content for token in self.named.values()}
        found = {}
        for token in self.added.values():
            if repr(token) != repr(known.get(token.content)):
                found[token.content] = _special(token) if token.content in names else token
        for token in (*self.named.values(), *self.more):
            if token.content not in known and token.content not in found:
                found[token.content] = _special(token)
        return list(found.values())

    def add_to(self, tokenizer: tokenizers.Tokenizer, source: str) -> None:
        """Adds the tokens to a tokenizer that lacks them.

        Args:
          tokenizer: the tokenizer.
          source: the name of its file, for errors.

        Raises:
          TokenizerError: if a file gives a token another id than the tokenizer does.
        """
        known = {token.content: token for token in tokenizer.get_added_tokens_decoder().values()}
        tokenizer.add_tokens(self.tokens(known))
        self.check_ids(tokenizer.get_vocab(with_added_tokens=True), source)

    def check_ids(self, known: Mapping[str, int], source: str) -> None:
        """Checks that no file gives a known token another id.

        Raises:
          TokenizerError: in one line, if one does.
        """
        for number, token in self.added.items():
            got = known.get(token.content, number)
            if got != number:
                name = CONFIG if "added_tokens_decoder" in self.values else ADDED
                raise TokenizerError(
                    f"{self.directory / name}: expected id {got} for the token {token.content!r}, "
                    f"as by {source}, got {number}"
                )

    def chat_template(self, special: Mapping[str, str] | None = None) -> ChatTemplate:
        """The templates of the directory, with the special tokens that they name.

        ``chat_template.jinja`` and ``chat_template.json`` come before ``tokenizer_config.json``,
        and the files of ``additional_chat_templates`` before others of their names.

        Args:
          special: special tokens of the tokenizer itself, unless a file names others.
        """
        found = self.values.get("chat_template")
        path = self.directory / "chat_template.json"
        found = read_object(path).get("chat_template", found)
        templates = _named_templates(self.directory, found)
        files = {"default": self.directory / "chat_template.jinja"}
        files |= {p.stem: p for p in sorted((self.directory / TEMPLATES).glob("*.jinja"))}
        texts = {name: p.read_text(encoding="utf-8") for name, p in files.items() if p.is_file()}
        if "default" in texts:
            templates = {}
        names = {name: token.content for name, token in self.named.items()}
        return ChatTemplate(templates | texts, {**(special or {}), **names})


def cleans_up(values: Mapping[str, Any], *, is_bpe: bool) -> bool:
    """Whether texts have no spaces before punctuation; those of BPE only where this is forced."""
    name = "clean_up_tokenization_spaces"
    forced = values.get(f"{name}_for_bpe_even_though_it_will_corrupt_output")
    return bool(values.get(name)) and (not is_bpe or bool(forced))


def read_object(path: StoragePath) -> dict[str, Any]:
    """The object in a JSON file; an empty one if there is no such file.

    Raises:
      TokenizerError: in one line, for anything else.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as e:
        raise TokenizerError(f"{path}: broken JSON: {e}") from e
    if not isinstance(found, dict):
        got = type(found).__name__
        raise TokenizerError(f"{path}: expected a JSON object, got a {got}")
    return found


def _error(path: Path, name: str, expected: str, got: Any) -> TokenizerError:
    return TokenizerError(f"{path}: {name}: expected {expected}, got {describe(got)}")


def _id(path: Path, name: str, number: Any) -> int:
    try:
        return int(number)
    except (TypeError, ValueError):
        raise _error(path, name, "a token id", number) from None


def _token(content: str, special: bool) -> AddedToken:
    return AddedToken(content, special=special, normalized=not special)


def _special(token: AddedToken) -> AddedToken:
    flags = {flag: getattr(token, flag) for flag in _FLAGS}
    return AddedToken(token.content, **{**flags, "special": True})


def _read_token(path: Path, name: str, entry: Any, *, special: bool = True) -> AddedToken:
    """A token, which a file gives as its text or as an object.

    Raises:
      TokenizerError: in one line, for anything else.
    """
    if isinstance(entry, str):
        return _token(entry, special=True)
    flags = entry if isinstance(entry, dict) else {}
    if not isinstance(flags.get("content"), str):
        raise _error(path, name, "a token, a string or an object with content", entry)
    given = {flag: bool(flags[flag]) for flag in _FLAGS if flag in flags}
    return AddedToken(flags["content"], **{"special": special, **given})


def _special_tokens(
    directory: Path, values: Mapping[str, Any]
) -> tuple[dict[str, AddedToken], list[AddedToken]]:
    """The special tokens with names, and those without."""
    path = directory / CONFIG
    found = {
        name: value
        for name, value in values.items()
        if name.endswith("_token") and isinstance(value, (str, dict, list))
    }
    more = values.get("extra_special_tokens") or values.get("additional_special_tokens") or []
    if isinstance(more, dict):
        found, more = {**found, **more}, []
    if not isinstance(more, list):
        raise _error(path, "additional_special_tokens", "a list of tokens", more)
    named = {name: _read_token(path, name, entry) for name, entry in found.items()}
    name = "additional_special_tokens"
    return named, [_read_token(path, f"{name}[{i}]", entry) for i, entry in enumerate(more)]


def _named_templates(directory: Path, found: Any) -> dict[str, str]:
    """The templates by name: one text alone is the default."""
    if found is None:
        return {}
    if isinstance(found, str):
        return {"default": found}
    try:
        return {entry["name"]: entry["template"] for entry in found}
    except (TypeError, KeyError):
        expected = "a template, or a list of objects with name and template"
        raise _error(directory / CONFIG, "chat_template", expected, found) from None
