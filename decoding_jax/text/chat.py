"""Conversations as prompts, by the template that comes with a tokenizer."""

from __future__ import annotations

import dataclasses
import datetime
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
        plain |= {"add_generation_prompt": add_generation_prompt}
        template = _compiled(source)
        try:
            return template.render({**self.special_tokens, **plain})
        except Exception as error:  # Whatever the operations of a template raise.
            cause = " ".join(str(error).split()) or type(error).__name__
            raise ValueError(f"chat_template: {cause}") from error

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
      chat: the templates, which ``load`` reads from ``tokenizer_config.json``,
        ``chat_template.jinja`` or ``chat_template.json``.
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
          tokenize: whether to return token ids, rather than the text.
          **variables: further variables of the template, such as ``enable_thinking=False``.

        Returns:
          The token ids, a list, or the text. The special tokens of a text are in it already: to
          encode it adds others, which ``generate`` with the messages themselves does not.

        Raises:
          ValueError: in one line, for a tokenizer without a template, for what the template
            refuses, and for values that are not plain data.
        """
        text = self.chat.render(
            messages,
            tools=tools,
            documents=documents,
            chat_template=chat_template,
            add_generation_prompt=add_generation_prompt,
            **variables,
        )
        return self.chat_pieces(text) if tokenize else text


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
def _compiled(source: str) -> Any:
    """A template in a sandbox, with the settings and functions that ``transformers`` gives it."""
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
    try:
        return environment.from_string(source)
    except TemplateError as error:
        raise ValueError(f"chat_template: not a template in Jinja: {error}") from error
