"""Conversations as prompts, by the template that comes with a tokenizer."""

from __future__ import annotations

import dataclasses
import datetime
import difflib
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from decoding_jax import fields

Conversation = Sequence[Mapping[str, Any]]
"""Messages, each with a ``role``, such as ``user``, and a ``content``."""


@dataclasses.dataclass(frozen=True)
class ChatTemplate:
    """The templates of a tokenizer, in Jinja, as ``transformers`` renders them.

    Attributes:
      templates: the templates by name. One alone is the ``default``.
      special_tokens: the variables of all templates, such as ``bos_token``.
    """

    templates: Mapping[str, str]
    special_tokens: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def render(
        self,
        messages: Conversation,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool | str = False,
        **variables: Any,
    ) -> str:
        """The text of a conversation; see ``SupportsChat.apply_chat_template``."""
        source = self._source(chat_template, has_tools=tools is not None)
        given = {"messages": check_conversation("messages", messages), "tools": tools}
        given |= {"documents": documents, **variables}
        try:
            # Plain data alone: a template is a program of others, and calls no method of an object.
            plain = json.loads(json.dumps(given))
        except (TypeError, ValueError) as error:
            raise ValueError(f"messages: expected plain data, got {error}") from None
        template = _compiled(source)
        _check_variables(_variables(source), {k: v for k, v in plain.items() if k != "messages"})
        # Many templates would write a key whose value is None.
        plain["messages"] = [
            {key: value for key, value in message.items() if value is not None}
            for message in plain["messages"]
        ]
        if continue_final_message:
            if add_generation_prompt:
                raise ValueError(
                    "continue_final_message: expected False beside add_generation_prompt, got "
                    f"{continue_final_message!r}"
                )
            key = "content" if continue_final_message is True else continue_final_message
            final = _open_ended(plain["messages"], key)
        plain |= {"add_generation_prompt": add_generation_prompt}
        try:
            text = template.render({**self.special_tokens, **plain})
        except Exception as error:  # Whatever the operations of a template raise.
            cause = " ".join(str(error).split()) or type(error).__name__
            raise ValueError(f"chat_template: {cause}") from error
        return _continued(text, final) if continue_final_message else text

    def _source(self, chosen: str | None, *, has_tools: bool) -> str:
        """The template of that name, or the text itself; by default the tokenizer's."""
        if chosen is not None:
            return self.templates.get(chosen, chosen)
        for name in ("tool_use", "default") if has_tools else ("default",):
            if name in self.templates:
                return self.templates[name]
        if self.templates:
            raise fields.error("chat_template", f"one of {', '.join(self.templates)}", None)
        raise ValueError(
            "chat_template: expected a template in Jinja, or a model that was trained on "
            "conversations, got None, and the tokenizer has none"
        )


NO_TEMPLATE = ChatTemplate({})


class SupportsChat:
    """A tokenizer with a template for conversations.

    Attributes:
      chat: the templates, which ``load`` reads from ``chat_template.jinja``, the folder
        ``additional_chat_templates``, ``chat_template.json`` or ``tokenizer_config.json``.
    """

    chat: ChatTemplate = NO_TEMPLATE

    def chat_pieces(self, text: str) -> list[int]:
        """The token ids of a rendered conversation, whose special tokens are in its text."""
        raise NotImplementedError

    def apply_chat_template(
        self,
        messages: Conversation,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool | str = False,
        tokenize: bool = True,
        **variables: Any,
    ) -> Any:
        """Renders a conversation by the tokenizer's template.

        Args:
          messages: the messages, such as ``[{"role": "user", "content": "Hello!"}]``.
          tools: JSON schemas of functions that the model may call.
          documents: texts that the model may use.
          chat_template: the name of one of the tokenizer's templates, or a template in Jinja. By
            default, it is the one named ``tool_use`` for a call with tools, if there is one, and
            otherwise the one named ``default``.
          add_generation_prompt: whether the beginning of an answer follows, as ``generate`` needs.
          continue_final_message: whether the text ends with the last message, which a model then
            continues; or the key of the part of that message that it continues.
          tokenize: whether to return token ids, rather than the text.
          **variables: further variables of the template, such as ``enable_thinking=False``.

        Returns:
          The token ids, a list, or the text. The special tokens of a text are in it already: to
          encode it adds others, which ``generate`` with the messages themselves does not.

        Raises:
          ValueError: in one line, for a tokenizer without a template, for what the template
            refuses, for values that are not plain data, and for a name, tools or documents that
            the template does not use.
        """
        for name in _RESULTS.keys() & variables.keys():
            value = variables.pop(name)
            if value not in (None, False):
                raise ValueError(f"{name}: expected False or None, got {value!r}; {_RESULTS[name]}")
        text = self.chat.render(
            messages,
            tools=tools,
            documents=documents,
            chat_template=chat_template,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            **variables,
        )
        return self.chat_pieces(text) if tokenize else text


_CUT = "truncate=True of generate cuts a conversation"
_RESULTS = {
    "max_length": _CUT,
    "padding": "generate pads conversations itself",
    "return_assistant_tokens_mask": "the result is a list of token ids",
    "return_dict": "the result is a list of token ids",
    "return_tensors": "Prompt([ids], [len(ids)]) makes arrays of the token ids",
    "sanitize_control_tokens": "special tokens in messages are tokens",
    "tokenizer_kwargs": "the template writes all special tokens",
    "truncation": _CUT,
}
"""The arguments of the method of ``transformers`` that are for other results, and what leads on."""

_OWN = (
    *("messages", "tools", "documents", "chat_template", "add_generation_prompt"),
    *("continue_final_message", "tokenize"),
)
_TAG = "CONTINUED_HERE "


def _check_variables(known: frozenset[str], given: Mapping[str, Any]) -> None:
    """Refuses what a template does not use, such as a misspelt name.

    Args:
      known: the variables that the template reads.
      given: the values of variables. Those of ``tools`` and ``documents`` may be empty.
    """
    for name, value in given.items():
        if name in known or (name in ("tools", "documents") and not value):
            continue
        if name in ("tools", "documents"):
            raise fields.error(name, "None for a template that does not use them", value)
        near = difflib.get_close_matches(name, [*known, *_OWN], 1)
        others = ", ".join(sorted(known - {"messages", "tools", "documents"})) or "none"
        raise ValueError(
            f"{name}: expected an argument of apply_chat_template or a variable of the template, "
            f"{others}{'; did you mean ' + near[0] + '?' if near else ''}"
        )


def _open_ended(messages: list[dict[str, Any]], key: str) -> str:
    """Marks the end of the last message's text, and returns the text without the mark."""
    last = messages[-1]
    found = last.get(key)
    texts = [part for part in found if "text" in part] if isinstance(found, list) else []
    holder, name = (texts[-1], "text") if texts else (last, key)
    text = holder.get(name)
    if not isinstance(text, str):
        raise ValueError(
            f"continue_final_message: expected a last message with a text as its {key!r}, got "
            f"{fields.describe(last)}"
        )
    holder[name] = text + _TAG
    return text


def _continued(text: str, final: str) -> str:
    """A rendered text up to the mark at the end of the last message."""
    place = text.rfind(_TAG.strip())
    if place < 0 or final.strip() not in text:
        raise ValueError(
            "continue_final_message: expected a template that writes the last message as it is, "
            f"got one without {fields.describe(final)}"
        )
    kept = text[:place]
    return kept if text[place:].startswith(_TAG) else kept.rstrip()


def check_conversation(name: str, messages: Any) -> Conversation:
    """Checks that a value is a list of messages, and returns it.

    Raises:
      ValueError: in one line, for anything else.
    """
    expected = 'a list of messages such as {"role": "user", "content": "Hello!"}'
    if isinstance(messages, (str, Mapping)) or not isinstance(messages, Sequence) or not messages:
        raise fields.error(name, expected, messages)
    for message in messages:
        if not isinstance(message, Mapping) or "role" not in message:
            raise ValueError(f"{name}: expected {expected}, got {fields.describe(message)} as one")
    return messages


@functools.lru_cache(32)
def _variables(source: str) -> frozenset[str]:
    """The names of the variables that a template reads."""
    from jinja2 import meta

    environment = _environment()
    found = meta.find_undeclared_variables(environment.parse(source))
    return frozenset(found - environment.globals.keys())


@functools.lru_cache(32)
def _compiled(source: str) -> Any:
    """A template in a sandbox.

    Raises:
      ValueError: in one line, for a text that is no template.
    """
    from jinja2 import TemplateError

    try:
        return _environment().from_string(source)
    except TemplateError as error:
        raise ValueError(f"chat_template: not a template in Jinja: {error}") from error


@functools.cache
def _environment() -> Any:
    """A sandbox with the settings and functions that ``transformers`` gives a template."""
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """``{% generation %}`` marks an answer, for training; it is rendered as it is."""

        tags = {"generation"}  # noqa: RUF012 (as Jinja declares it)

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    def to_json(value: Any, ensure_ascii: bool = False, **settings: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **settings)

    def strftime_now(form: str) -> str:
        return datetime.datetime.now().strftime(form)

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = to_json
    environment.globals |= {"raise_exception": raise_exception, "strftime_now": strftime_now}
    return environment
