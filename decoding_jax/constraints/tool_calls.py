"""Calls of tools: the constraint that keeps texts to them, and what such a text says.

A model writes calls as its chat template does. Which of a few formats that is, is found by giving
the template an answer with calls.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from decoding_jax import fields
from decoding_jax.constraints import definitions, json_texts, kept, made, patterns
from decoding_jax.constraints.automata import Automaton
from decoding_jax.constraints.encodings import in_utf8
from decoding_jax.constraints.expressions import Compiled, Expression, Net, compiled, text
from decoding_jax.text.response_formats import MAX_DEPTH, ResponseFormat, Tools
from decoding_jax.text.stop_strings import texts_of
from decoding_jax.text.tokenizers import Tokenizer
from decoding_jax.text.warn import warn


class Format(NamedTuple):
    """How calls are written, each as JSON with a name and arguments.

    Attributes:
      mark: what begins them: a text or a special token, or nothing.
      before: what follows it.
      key: the name of the arguments.
      between: what is between two calls, or None where there is one at most.
      after: what follows the last one.
    """

    mark: str
    before: str
    key: str
    between: str | None
    after: str

    def written(self, calls: Sequence[Mapping[str, Any]]) -> str:
        """The text of some calls."""
        each = [{"name": one["name"], self.key: one["arguments"]} for one in calls]
        texts = [json.dumps(one, ensure_ascii=False) for one in each]
        return f"{self.mark}{self.before}{(self.between or '').join(texts)}{self.after}"


_OF_XML = "\n</tool_call>"
FORMATS = {
    "Hermes and Qwen": Format(
        "<tool_call>", "\n", "arguments", f"{_OF_XML}\n<tool_call>\n", _OF_XML
    ),
    "Llama 3": Format("", "", "parameters", None, ""),
    "Mistral": Format("[TOOL_CALLS]", " [", "arguments", ", ", "]"),
    "Mistral Nemo": Format("[TOOL_CALLS]", "[", "arguments", ", ", "]"),
}
"""The formats, by a family of models that has each."""

_ID = "abcdef123"  # Some templates ask for so many characters.
_CHOICES = ("auto", "required", "none")
_NO_ARGUMENTS = {"type": "object", "additionalProperties": False}


def response_format(asked: Tools, tokenizer: Tokenizer, vocab_size: int) -> ResponseFormat:
    """The format of answers that may call tools, as ``ResponseFormat`` says.

    Raises:
      ValueError: in one line, for anything that is no list of tools, for a template that writes no
        calls or in another format, and as ``json_schema``.
    """
    functions = _functions(asked.tools)
    choice = asked.choice
    if isinstance(choice, Mapping):
        function = choice.get("function")
        name = function.get("name") if isinstance(function, Mapping) else None
        if choice.get("type") != "function" or name not in functions:
            expected = f'a function among {", ".join(functions)}, as {{"type": "function", ...}}'
            raise fields.error("tool_choice", expected, choice)
        functions, choice = {name: functions[name]}, "required"
    if choice not in _CHOICES:
        expected = f"{', '.join(_CHOICES)}, or a function"
        raise fields.error("tool_choice", expected, choice)
    format_ = format_of(tokenizer, asked.tools)
    special = texts_of("tools", tokenizer, vocab_size).special or {}
    parts = "".join(filter(None, (format_.mark, format_.between, format_.after)))
    marks = {i: x.decode() for i, x in special.items() if x and x.decode() in parts}
    own = next((i for i, mark in marks.items() if mark == format_.mark), None)
    vocabulary = made.vocabulary_of(tokenizer, vocab_size, tuple(marks))
    schema = _schema(functions, format_.key)

    def make() -> kept.Made:
        style = json_texts.Style(spaces="one")
        [call, *others], places = json_texts.automata_of(schema, "tools", MAX_DEPTH, style)
        encoded = functools.partial(_encoded, marks=tuple(marks.values()))
        assert isinstance(call, Automaton)  # The first one is the schema's.
        whole = _texts(call, format_, encoded, choice, is_token=own is not None)
        network = definitions.network_of([whole, *others], places, MAX_DEPTH, "tools")
        found = made.over_network(network, vocabulary, "tools", asked.tools)
        return found, None if isinstance(network, Automaton) else network.shortened

    constraint, words = kept.kept(
        [schema, format_, choice, sorted(marks.items())], vocabulary, make
    )
    if words is not None:
        warn(words)

    def parsed(answer: str, tokens: Sequence[int] = ()) -> Any:
        if own is not None:
            after = list(tokens)[list(tokens).index(own) + 1 :] if own in tokens else []
            return _calls(format_, tokenizer.decode(after))
        if format_.mark:
            return _calls(format_, answer.partition(format_.mark)[2])
        return _calls(format_, answer if answer.lstrip()[:1] == "{" else "")

    return ResponseFormat(constraint, parsed)


def format_of(tokenizer: Any, tools: Sequence[Mapping[str, Any]]) -> Format:
    """The format in which a tokenizer's template writes calls.

    Raises:
      ValueError: in one line, for a template that takes no tools or writes calls in none of
        ``FORMATS``, and for a tokenizer without a template.
    """
    if not hasattr(tokenizer, "apply_chat_template"):
        expected = "a tokenizer with a chat template, which says how calls are written"
        raise fields.error("tools", expected, tokenizer)
    user = {"role": "user", "content": "A"}
    calls = [{"name": "first", "arguments": {"b": 1}}, {"name": "second", "arguments": {"c": "d"}}]
    prompt = tokenizer.apply_chat_template(
        [user], tools=tools, tokenize=False, add_generation_prompt=True
    )
    for some in (calls, calls[:1]):
        of_model = [{"id": _ID, "type": "function", "function": call} for call in some]
        answer = {"role": "assistant", "content": "", "tool_calls": of_model}
        try:
            whole = tokenizer.apply_chat_template([user, answer], tools=tools, tokenize=False)
        except ValueError:  # A template may refuse several calls.
            continue
        whole = whole.replace(f', "id": "{_ID}"', "")
        for one in FORMATS.values():
            written = one.written(some)
            is_this = written in whole if one.mark else whole.startswith(prompt + written)
            if is_this and (one.between is not None or len(some) == 1):
                return one
    expected = f"a template that writes calls as that of {', '.join(FORMATS)}"
    raise ValueError(f"tools: expected {expected}, got one that does not")


def _functions(tools: Any) -> dict[str, Any]:
    """The schemas of the arguments of functions, by their names."""
    expected = 'a list of {"type": "function", "function": {"name": ..., "parameters": ...}}'
    if isinstance(tools, (str, Mapping)) or not isinstance(tools, Sequence) or not tools:
        raise fields.error("tools", expected, tools)
    found: dict[str, Any] = {}
    for i, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(name, str) or not name or tool.get("type") != "function":
            raise fields.error(f"tools[{i}]", expected, tool)
        if name in found:
            raise fields.error(f"tools[{i}]", "functions of different names", name)
        assert isinstance(function, Mapping)
        parameters = function.get("parameters") or _NO_ARGUMENTS
        if not isinstance(parameters, Mapping):
            place = f"tools[{i}].function.parameters"
            raise fields.error(place, "the schema of an object", parameters)
        found[name] = parameters
    return found


def _schema(functions: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The schema of one call. Arguments are documents of their own, for their references."""
    each = [
        {
            "type": "object",
            "properties": {"name": {"const": name}, key: {"$id": f"tool:{i}", **parameters}},
            "required": ["name", key],
            "additionalProperties": False,
        }
        for i, (name, parameters) in enumerate(functions.items())
    ]
    return {"anyOf": each}


def _encoded(part: str, marks: Sequence[str]) -> Expression:
    """The bytes of a part of a format, with the byte of each mark that is a token of its own."""
    found = part.encode()
    for i, mark in enumerate(marks):
        found = found.replace(mark.encode(), made.byte_of_mark(i))
    return text(found)


def _texts(
    call: Automaton,
    format_: Format,
    encoded: Callable[[str], Expression],
    choice: str,
    *,
    is_token: bool,
) -> Automaton:
    """The texts of calls, and of answers without any where the model may choose.

    A mark may follow an answer. In a format without one, a text that begins with a brace is a call.
    """
    net = Net()
    start, begin, before, after, end = (net.state() for _ in range(5))
    without = r"(?s:\s*([^\s{].*)?)"
    if format_.mark:
        without = "(?s:.*)" if is_token else rf"(?s:(?!.*{re.escape(format_.mark)}).*)"
    answer = Compiled(in_utf8(compiled(patterns.matched(without, "tools"))))
    if choice != "required":
        net.add(answer, start, begin if format_.mark and choice == "auto" else end)
    if choice == "auto" and format_.mark:
        net.skip(begin, end)
    elif choice != "none":
        net.skip(start, begin)
    net.add(encoded(format_.mark + format_.before), begin, before)
    net.add(Compiled(call), before, after)
    if format_.between is not None:
        net.add(encoded(format_.between), after, before)
    net.add(encoded(format_.after), after, end)
    return net.automaton(start, end)


def _calls(format_: Format, written: str) -> list[dict[str, Any]] | None:
    """The calls of what is written after a mark; None where there are none."""
    found: list[dict[str, Any]] = []
    place, decoder = written.find("{"), json.JSONDecoder()
    while place >= 0:
        call, place = decoder.raw_decode(written, place)
        found.append({"name": call["name"], "arguments": call[format_.key]})
        place = written.find("{", place)
    return found or None
