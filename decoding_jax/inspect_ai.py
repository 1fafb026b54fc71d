"""A model provider for Inspect; needs the extra ``inspect-ai``.

Inspect (https://inspect.aisi.org.uk) finds the provider ``decoding_jax`` by the package's entry
point: ``inspect eval TASK --model decoding_jax/DIRECTORY``.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from typing import Any

import anyio
import jax
from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessage,
    ChatMessageAssistant,
    ContentText,
    GenerateConfig,
    ModelAPI,
    ModelOutput,
    ModelUsage,
    modelapi,
)
from inspect_ai.tool import ToolChoice, ToolInfo

from decoding_jax import fields, transforms
from decoding_jax.text import RunningBatch, load
from decoding_jax.text.chat import Conversation
from decoding_jax.text.inputs import input_positions, shared_positions

_MAX_NEW_TOKENS = 2048  # Inspect's default for models that run on the same machine.
# The settings of a request that the provider follows, and those that Inspect itself does.
_READ = {"max_tokens", "num_choices", "seed", "stop_seqs", "temperature", "top_k", "top_p"}
_OF_INSPECT = {"adaptive_connections", "attempt_timeout", "cache", "fail_on_refusal"} | {
    *("max_connections", "max_retries", "max_tool_output", "reasoning_history", "system_message"),
    *("stream_idle_timeout", "timeout"),
}


@modelapi(name="decoding_jax")
class DecodingJax(ModelAPI):
    """A model of ``decoding_jax.load``, whose requests join and leave a ``RunningBatch``.

    Each request draws independent samples from the model, with its own temperature, top-p, top-k
    and seed; temperature 0 is greedy decoding. Requests of other stop strings, numbers of choices
    or tokens have a batch of their own, which lasts until the model is closed or decoding fails.

    Args:
      model_name: the directory, or another name that ``load`` takes.
      base_url, api_key: what Inspect gives to every provider; nothing here uses them.
      config: the settings of all requests.
      batch_size: the number of requests that are decoded together.
      max_input_length: the largest number of tokens of a request. It is lower where the model has
        no positions for more.
      **settings: further arguments of ``load``, such as ``dtype``.

    Raises:
      ValueError: in one line, for a value that is not taken, and as ``load``. A request raises one
        for a setting, a tool or a content that is not taken.
    """

    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        config: GenerateConfig = GenerateConfig(),  # noqa: B008  # Inspect's own default.
        batch_size: int = 16,
        max_input_length: int = 2048,
        **settings: Any,
    ):
        super().__init__(model_name, base_url, api_key, config=config)
        self.batch_size = fields.as_count("batch_size", batch_size)
        self._max_input_length = fields.as_count("max_input_length", max_input_length)
        self.model, tokenizer = load(model_name, **{"dtype": "auto", **settings})
        self.tokenizer: Any = tokenizer
        self._batches: dict[Any, RunningBatch] = {}
        self._seeds = itertools.count()

    def max_connections(self) -> int:
        """As many requests as are decoded together; Inspect asks without adaptive connections."""
        return self.batch_size

    def max_tokens(self) -> int:
        """The limit of a request that names none: at most half of the model's positions."""
        positions = shared_positions(self.model)
        return _MAX_NEW_TOKENS if positions is None else min(_MAX_NEW_TOKENS, positions // 2)

    def close(self) -> None:
        """Ends all batches."""
        while self._batches:
            self._batches.popitem()[1].close()

    async def generate(
        self,
        input: list[ChatMessage],
        tools: list[ToolInfo],
        tool_choice: ToolChoice,
        config: GenerateConfig,
    ) -> ModelOutput:
        """Decodes one request."""
        _check(tools, config)
        text = self._text(input)
        count = fields.as_count("num_choices", _or(config.num_choices, 1))
        limit = fields.as_count("max_tokens", _or(config.max_tokens, self.max_tokens()))
        chain = transforms.chain(
            transforms.temperature(_or(config.temperature, 1.0)),
            transforms.top_k(fields.as_count("top_k", _or(config.top_k, self.model.vocab_size))),
            transforms.top_p(_or(config.top_p, 1.0)),
        )
        stops = config.stop_seqs or []
        batch = self._batch(limit, count, tuple(stops))
        key = jax.random.key(next(self._seeds) if config.seed is None else config.seed)
        submit = functools.partial(batch.submit, text, key=key, transform=chain)
        # The default limiter has 40 threads for all requests, whose number Inspect limits.
        thread = functools.partial(anyio.to_thread.run_sync, limiter=anyio.CapacityLimiter(1))
        stream = await thread(submit)
        with contextlib.closing(stream):  # Its row is free where Inspect gives the request up.
            await thread(list, stream, abandon_on_cancel=True)
        assert stream.output is not None
        completions = stream.output[0]
        choices = [
            ChatCompletionChoice(
                message=ChatMessageAssistant(
                    content=_before(completion.text, stops),
                    model=self.model_name,
                    source="generate",
                ),
                stop_reason="stop" if completion.finished else "max_tokens",
            )
            for completion in completions
        ]
        read = stream.input_lengths[0]
        new = sum(len(completion.tokens) for completion in completions)
        usage = ModelUsage(input_tokens=read, output_tokens=new, total_tokens=read + new)
        return ModelOutput(model=self.model_name, choices=choices, usage=usage)

    def _batch(self, max_new_tokens: int, num_samples: int, stops: tuple[str, ...]) -> RunningBatch:
        """The batch of requests of one form: a new one after one whose decoding has failed."""
        form = max_new_tokens, num_samples, stops
        if form not in self._batches or self._batches[form].has_ended:
            shared, own = shared_positions(self.model), input_positions(self.model)
            rooms = [None if shared is None else shared - max_new_tokens, own]
            room = min(x for x in (*rooms, self._max_input_length) if x is not None)
            if room < 1:
                expected = f"less than the model's {shared} positions"
                raise fields.error("max_tokens", expected, max_new_tokens)
            self._batches[form] = RunningBatch(
                self.model,
                self.tokenizer,
                strategy="sample",
                num_samples=num_samples,
                stop_strings=list(stops) or None,
                batch_size=self.batch_size,
                max_input_length=room,
                max_new_tokens=max_new_tokens,
            )
        return self._batches[form]

    def _text(self, messages: list[ChatMessage]) -> str | Conversation:
        """The conversation; for a tokenizer without a template, the text of its one message."""
        for message in messages:
            content = [] if isinstance(message.content, str) else message.content
            if message.role == "tool" or getattr(message, "tool_calls", None):
                raise ValueError("input: expected messages without calls of tools, got some")
            for part in content:
                if not isinstance(part, ContentText):
                    raise ValueError(f"input: expected messages of text, got one of {part.type}")
        if self.tokenizer.chat.templates:
            return [{"role": message.role, "content": message.text} for message in messages]
        if [message.role for message in messages] != ["user"]:
            expected = "one message of the user for a tokenizer without a chat template"
            raise ValueError(f"input: expected {expected}, got {len(messages)} messages")
        return messages[0].text


def _check(tools: list[ToolInfo], config: GenerateConfig) -> None:
    if tools:
        raise ValueError(f"tools: expected none, got {len(tools)}")
    given = config.model_dump(exclude_none=True)
    if unknown := sorted(given.keys() - _READ - _OF_INSPECT):
        raise fields.error(unknown[0], "None", given[unknown[0]])


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


def _before(text: str, stops: list[str]) -> str:
    """The text before the first of the stop strings."""
    return text[: min((text.index(stop) for stop in stops if stop in text), default=len(text))]
