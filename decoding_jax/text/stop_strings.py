"""The stop conditions of texts: end tokens, and stop strings that are compiled for a tokenizer."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from decoding_jax import fields
from decoding_jax.base import Stop
from decoding_jax.batches.widths import round_up
from decoding_jax.loop import forms
from decoding_jax.loop.stopping import BROKEN, EMPTY, StopStrings
from decoding_jax.models.encoder_decoder import EncoderDecoder
from decoding_jax.text.inputs import vocabulary_size
from decoding_jax.text.token_texts import REPLACEMENT, TokenTexts
from decoding_jax.text.tokenizers import Tokenizer
from decoding_jax.transforms import Chain, PrefixAllowedTokens
from decoding_jax.transforms.languages import with_begun
from decoding_jax.transforms.spans import with_token_ids

StopTexts = str | Sequence[str] | Sequence[Sequence[str]]
"""One string or several for all texts, or a list of strings for each."""

_EXPECTED = "a string, a list of non-empty strings, or one such list for each text"
_MAX_STRINGS = 128  # of a job's inputs; the tables grow faster than this number
_CHUNK = 4096
# The texts of the first tokens of a tokenizer, and their digest, by the number of tokens.
_Texts = dict[int, tuple[TokenTexts, str]]
_TEXTS: weakref.WeakKeyDictionary[Any, _Texts] = weakref.WeakKeyDictionary()


def stop_strings(
    tokenizer: Tokenizer,
    strings: StopTexts,
    vocab_size: int,
    *,
    begun: bool | Sequence[bool] = False,
) -> StopStrings:
    """Compiles stop strings, for ``Stop(strings=...)`` of a strategy. ``generate`` does it itself.

    A string is matched against the text that ``generate`` returns, wherever its tokens begin and
    end: a sequence ends with the first token with which its text contains the string. One that is
    complete before ``min_new_tokens`` does not count. A special token has no text, but a string
    that is one ends a sequence with that token.

    Args:
      tokenizer: a tokenizer, from ``load``, or one of your own with a method ``token_texts``.
      strings: one string or several; or, for each row, one or several.
      vocab_size: V, of the model.
      begun: whether the new tokens continue a text, or one such bool for each row. Where they do
        not, tokenizers drop the space before the first word.

    Raises:
      ValueError: for an empty string, a replacement character, anything that is no string, or a
        tokenizer whose text is not the concatenation of its tokens' texts.

    Example:
      >>> from decoding_jax.text import ByteTokenizer
      >>> compiled = stop_strings(ByteTokenizer(), ["###", "end"], 384)
      >>> compiled.window, int((compiled.last_tokens >= 0).sum())
      (4, 2)
    """
    rows, is_shared = _rows_of(strings)
    different = list(dict.fromkeys(string for row in rows for string in row))
    patterns = [string.encode() for string in different]
    texts = texts_of("stop_strings", tokenizer, vocab_size)
    goto, found = _automaton(patterns)
    class_of, transitions, matches = _classes(
        [*texts.begun, *filter(None, texts.first)], goto, found
    )
    token_class = [class_of[text] for text in texts.begun]
    first_class = [-1 if text is None else class_of[text] for text in texts.first]
    ends = np.any(matches, axis=-1)
    last_classes = np.any(ends, axis=0)
    per_state = ends.astype(np.int64) @ np.bincount(token_class, minlength=ends.shape[1])
    of_first = ends[0] @ np.bincount(np.maximum(first_class, 0), minlength=ends.shape[1])
    last = [
        i
        for i, (begun_class, first) in enumerate(zip(token_class, first_class, strict=True))
        if last_classes[begun_class] or (first >= 0 and last_classes[first])
    ]
    names = {text: i for i, text in (texts.special or {}).items()}
    special = {names[p]: number for number, p in enumerate(patterns) if p in names}
    last += special
    chosen = np.zeros((len(rows), matches.shape[2]), bool)
    for chosen_of_row, row in zip(chosen, rows, strict=True):
        chosen_of_row[[different.index(string) for string in row]] = True
    return StopStrings(
        token_class=np.asarray(token_class, np.int32),
        first_class=np.asarray(first_class, np.int32),
        byte=None if texts.byte is None else np.asarray(texts.byte, np.int32),
        transitions=transitions,
        matches=matches,
        last_tokens=np.asarray(last + [-1] * (round_up(len(last)) - len(last)), np.int32),
        chosen=chosen[0] if is_shared else chosen,
        begun=np.asarray(begun, bool),
        special=_at(special, vocab_size) if special else None,
        window=round_up(max((len(pattern) for pattern in patterns), default=1), 4),
        max_ends=round_up(int(max(per_state.max(), of_first, 1)) + len(special)),
    )


def _at(numbers: Mapping[int, int], size: int) -> np.ndarray:
    """int32 ``[size]``, the number of each token, and -1 for those without one."""
    found = np.full(size, -1, np.int32)
    found[list(numbers)] = list(numbers.values())
    return found


def default_stop(tokenizer: Tokenizer) -> Stop:
    """Stop conditions that consist of the tokenizer's end tokens."""
    return with_end_tokens(None, tokenizer)


def with_end_tokens(stop: Stop | None, tokenizer: Tokenizer) -> Stop:
    """The stop conditions, with the tokenizer's end tokens if ``eos_ids`` is None.

    Example:
      >>> from decoding_jax.text import ByteTokenizer
      >>> with_end_tokens(Stop(min_new_tokens=2), ByteTokenizer()).eos_ids
      array([1], dtype=int32)
      >>> with_end_tokens(Stop(eos_ids=()), ByteTokenizer()).eos_ids
      array([], dtype=int32)
    """
    stop = Stop() if stop is None else stop
    if stop.eos_ids is not None:
        return stop
    return dataclasses.replace(stop, eos_ids=tuple(tokenizer.eos_ids))


def stop_of(stop: Stop | None, tokenizer: Tokenizer, model: Any, ids: list[list[int]]) -> Stop:
    """The stop conditions of ``generate``: with end tokens, and with compiled strings.

    Args:
      stop: the conditions, or None.
      tokenizer, model: as for ``generate``.
      ids: the tokens of each text.

    Raises:
      ValueError: as ``stop_strings``, and for strings of another number of texts.
    """
    stop = with_end_tokens(stop, tokenizer)
    if stop.strings is None or isinstance(stop.strings, StopStrings):
        return stop
    rows, is_shared = _rows_of(stop.strings)
    if not is_shared and len(rows) != len(ids):
        raise ValueError(
            f"stop_strings: expected one list for all texts, or one for each of the {len(ids)}, "
            f"got lists for {len(rows)} texts"
        )
    if not any(rows):
        return dataclasses.replace(stop, strings=None)
    begun = are_begun(tokenizer, model, ids)
    strings = stop_strings(tokenizer, stop.strings, vocabulary_size(model), begun=begun)
    return dataclasses.replace(stop, strings=strings)


def are_begun(tokenizer: Tokenizer, model: Any, ids: list[list[int]]) -> list[bool]:
    """Whether the new tokens of each text continue a text.

    Args:
      tokenizer, model: as for ``generate``.
      ids: the tokens of each text.
    """
    continued = not isinstance(model, EncoderDecoder)
    return [continued and bool(tokenizer.decode(row)) for row in ids]


def shared_strings(stop: Stop, tokenizer: Tokenizer, model: Any) -> Stop:
    """The stop conditions of a batch job, whose strings are compiled for all inputs.

    Raises:
      ValueError: for strings of each input.
    """
    if stop.strings is None or isinstance(stop.strings, StopStrings):
        return stop
    begun = not isinstance(model, EncoderDecoder)
    strings = stop_strings(tokenizer, stop.strings, vocabulary_size(model), begun=begun)
    if strings.chosen.ndim == 2:
        raise ValueError(
            "stop.strings: expected one list for all inputs, beside the strings of single inputs "
            "that infer.JsonLines.stop_strings names, got a list of lists"
        )
    return dataclasses.replace(stop, strings=strings)


def strings_of_inputs(
    stop: Stop,
    input_strings: Sequence[Sequence[str] | None],
    tokenizer: Tokenizer,
    model: Any,
) -> Stop | None:
    """The stop conditions of a batch job with the strings of its inputs, compiled.

    Args:
      stop: the conditions of the job, before ``shared_strings``.
      input_strings: the strings of each input, or None for those of the job.
      tokenizer: the tokenizer of the model.
      model: the model.

    Returns:
      The conditions; None if no input has strings.

    Raises:
      ValueError: for too many different strings, strings of the job that are compiled already, and
        as ``stop_strings``.
    """
    if all(strings is None for strings in input_strings):
        return None
    if isinstance(stop.strings, StopStrings):
        raise ValueError(
            "stop.strings: expected strings beside inputs with strings of their own, got compiled "
            "ones"
        )
    of_job = [stop.strings] if isinstance(stop.strings, str) else list(stop.strings or ())
    rows = [of_job if strings is None else list(strings) for strings in input_strings]
    number = len({string for row in rows for string in row})
    if number > _MAX_STRINGS:
        raise ValueError(
            f"stop_strings: expected at most {_MAX_STRINGS} different ones of all inputs, got "
            f"{number}"
        )
    begun = not isinstance(model, EncoderDecoder)
    strings = stop_strings(tokenizer, rows, vocabulary_size(model), begun=begun)
    return dataclasses.replace(stop, strings=strings)


def with_strings(stop: Stop | None, strings: Any) -> Stop | None:
    """The stop conditions with the argument ``stop_strings`` of ``generate``.

    Raises:
      ValueError: if both have strings, or for anything that is no string.
    """
    if strings is None:
        return stop
    _rows_of(strings)
    stop = Stop() if stop is None else stop
    if not isinstance(stop, Stop):
        return stop  # The check of arguments refuses it.
    if stop.strings is not None:
        raise ValueError("stop_strings: expected none beside stop.strings, got some")
    return dataclasses.replace(stop, strings=strings)


def is_stop_string(string: Any) -> bool:
    """Whether a value is a string that can end a text: one with characters, all of them text."""
    return isinstance(string, str) and string != "" and REPLACEMENT not in string


def _rows_of(strings: Any) -> tuple[list[list[str]], bool]:
    """The strings of each row, or one row for all and True."""
    if isinstance(strings, str):
        strings = [strings]
    if not isinstance(strings, Sequence):
        raise fields.error("stop_strings", _EXPECTED, strings)
    is_shared = not any(isinstance(row, (list, tuple)) for row in strings)
    rows = (
        [[*strings]] if is_shared else [r if isinstance(r, (list, tuple)) else [r] for r in strings]
    )
    for row in rows:
        for string in row:
            if not is_stop_string(string):
                raise fields.error("stop_strings", _EXPECTED, string)
    return [list(row) for row in rows], is_shared


def texts_of(name: str, tokenizer: Tokenizer, size: int) -> TokenTexts:
    """The texts of the first ``size`` tokens, kept for the next call.

    Args:
      name: what needs them, for errors.
      tokenizer: the tokenizer.
      size: the number of tokens.

    Raises:
      ValueError: for a tokenizer whose text is not the concatenation of its tokens' texts, and for
        one without ``token_texts``.
    """
    return _texts_and_digest(name, tokenizer, size)[0]


def check_constraint(name: str, transform: Any, tokenizer: Tokenizer, vocab_size: int) -> None:
    """Checks that the constraints of a transform were made for the tokenizer of a call.

    Those of ``decoding_jax.constraints`` have a digest of the texts of their tokens, which may be
    fewer than the model's. Where the tokenizer does not say what its tokens add, the numbers of
    tokens are compared.

    Args:
      name: the name of the argument, for errors.
      transform: any transform, or None.
      tokenizer: the tokenizer.
      vocab_size: V, of the model.

    Raises:
      ValueError: for a constraint that was made for another tokenizer.
    """
    if isinstance(transform, Chain):
        for part in transform.transforms:
            check_constraint(name, part, tokenizer, vocab_size)
    if not isinstance(transform, PrefixAllowedTokens) or transform.digest is None:
        return
    size = transform.language.token_class.shape[-1]
    try:
        is_same = _texts_and_digest(name, tokenizer, size)[1] == transform.digest
    except ValueError:
        is_same = size in (vocab_size, getattr(tokenizer, "vocab_size", None))
    if not is_same:
        expected = "a constraint that was made for the tokenizer of the call"
        raise ValueError(f"{name}: expected {expected}, got one for other texts of {size} tokens")


def bound_languages(
    strategy: Any, tokenizer: Tokenizer, vocab_size: int, begun: Callable[[], Any]
) -> Any:
    """A strategy whose transform and language know the texts: their strings are ids, and begun.

    Args:
      strategy: the strategy.
      tokenizer: the tokenizer, with ``pieces`` if there are strings.
      vocab_size: V, of the model.
      begun: as for ``transforms.languages.with_begun``.

    Raises:
      ValueError: for a constraint that was made for another tokenizer, for strings and a tokenizer
        without ``pieces``, and as ``with_token_ids``.
    """

    def pieces(text: str) -> Sequence[int]:
        if not hasattr(tokenizer, "pieces"):
            expected = f"token ids, with a {type(tokenizer).__name__} without pieces(text)"
            raise fields.error("transform", expected, text)
        return tokenizer.pieces(text)

    bound = {}
    for name in ("transform", "language"):
        if (own := forms.value_of(strategy, name)) is not None:
            check_constraint(name, own, tokenizer, vocab_size)
            bound[name] = with_begun(with_token_ids(own, pieces), begun)
    return forms.with_values(strategy, **bound) if bound else strategy


def _texts_and_digest(name: str, tokenizer: Tokenizer, size: int) -> tuple[TokenTexts, str]:
    """``texts_of`` and the digest of the texts, kept for the next call."""
    if not hasattr(tokenizer, "token_texts"):
        raise ValueError(
            f"{name}: expected a tokenizer that says what text each token adds, such as those of "
            f"load, got a {type(tokenizer).__name__} without token_texts(vocab_size)"
        )
    try:
        kept = _TEXTS.setdefault(tokenizer, {})
    except TypeError:  # The tokenizer has no hash, or no weak references.
        kept = {}
    if size not in kept:
        try:
            texts = tokenizer.token_texts(size)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        kept[size] = texts, texts.digest()
    return kept[size]


def _automaton(patterns: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """The automaton of Aho and Corasick.

    Returns:
      int32 ``[S, 256]``, the state after each state and byte; and bool ``[S, Q]``, the patterns
      that end at each state.
    """
    children: list[dict[int, int]] = [{}]
    ends: list[set[int]] = [set()]
    for number, pattern in enumerate(patterns):
        state = 0
        for byte in pattern:
            if byte not in children[state]:
                children[state][byte] = len(children)
                children.append({})
                ends.append(set())
            state = children[state][byte]
        ends[state].add(number)
    goto = np.zeros((len(children), 256), np.int32)
    found = np.zeros((len(children), len(patterns)), bool)
    level = [(0, 0)]  # Each state with the state of its longest proper suffix, level by level.
    while level:
        following = []
        for state, suffix in level:
            found[state] = found[suffix]
            found[state, list(ends[state])] = True
            goto[state] = goto[suffix]  # All zero for the root.
            for byte, child in children[state].items():
                following.append((child, int(goto[suffix, byte]) if state else 0))
                goto[state, byte] = child
        level = following
    return goto, found


def _classes(
    texts: Sequence[bytes], goto: np.ndarray, found: np.ndarray
) -> tuple[dict[bytes, int], np.ndarray, np.ndarray]:
    """Classes of texts with the same transitions, and tables that are padded to a few sizes.

    Returns:
      The class of each text; the transitions, int32 ``[S, C]``; the matches, bool ``[S, C, Q]``.
    """
    states, patterns = found.shape
    bits = np.packbits(found, axis=1)
    same, none = np.arange(states, dtype=np.int32), np.zeros_like(bits)
    columns = [(same, none), (np.zeros_like(same), none)]
    class_of = dict.fromkeys(texts, BROKEN) | {b"": EMPTY}
    numbers = {none.tobytes() + np.zeros_like(same).tobytes(): BROKEN}
    alphabet = frozenset(np.flatnonzero(goto.any(0)).tolist())
    # Most texts have no byte of a string, and lead to the first state.
    active = sorted((text for text in class_of if not alphabet.isdisjoint(text)), key=len)[::-1]
    for first in range(0, len(active), _CHUNK):
        chunk = active[first : first + _CHUNK]
        lengths = np.asarray([len(text) for text in chunk])
        flat = np.frombuffer(b"".join(chunk), np.uint8)
        starts = np.cumsum(lengths) - lengths
        state = np.tile(same, (len(chunk), 1))
        passed = np.zeros((len(chunk), *bits.shape), np.uint8)
        for position in range(lengths[0]):
            longer = int((lengths > position).sum())  # The longest texts come first.
            byte = flat[starts[:longer] + position]
            state[:longer] = goto[state[:longer], byte[:, None]]
            passed[:longer] |= bits[state[:longer]]
        keys = np.concatenate([passed.reshape(len(chunk), -1), state.view(np.uint8)], axis=1)
        for row, key in enumerate(map(bytes, keys)):
            if key not in numbers:
                numbers[key] = len(columns)
                columns.append((state[row], passed[row]))
            class_of[chunk[row]] = numbers[key]
    sizes = round_up(states, 8), round_up(len(columns), 8), round_up(patterns)
    transitions, matches = np.zeros(sizes[:2], np.int32), np.zeros(sizes, bool)
    for number, (state, passed) in enumerate(columns):
        transitions[:states, number] = state
        matches[:states, number, :patterns] = np.unpackbits(passed, axis=1, count=patterns)
    return class_of, transitions, matches
