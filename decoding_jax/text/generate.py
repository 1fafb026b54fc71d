"""The generation of texts from texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tqdm import tqdm

from decoding_jax import fields, loop, suggestions
from decoding_jax.base import Array, DecodeOutput, LanguageModel, Stop
from decoding_jax.batches.widths import round_up
from decoding_jax.loop import forms
from decoding_jax.ops.jit import compilation_announced
from decoding_jax.sharding.meshes import to_host
from decoding_jax.text.call import TextCall
from decoding_jax.text.chat import Conversation
from decoding_jax.text.completions import Completion
from decoding_jax.text.generation_config import GenerationConfig
from decoding_jax.text.limits import groups, warn_of_cut
from decoding_jax.text.loading import Model
from decoding_jax.text.stop_strings import StopTexts
from decoding_jax.text.streaming import Clock, run_until
from decoding_jax.text.token_scores import compiled_scores
from decoding_jax.text.tokenizers import Tokenizer
from decoding_jax.text.warn import warn_of_nan_logits, warn_of_no_text


@suggestions.in_one_line
def generate(
    model: Model | LanguageModel,
    tokenizer: Tokenizer,
    texts: Sequence[str | Conversation],
    *,
    strategy: str | loop.Strategy | Callable[..., DecodeOutput] | None = None,
    key: Array | None = None,
    drafter: Any = None,
    batch_size: int = 16,
    max_new_tokens: int | None = None,
    stop: Stop | None = None,
    stop_strings: StopTexts | None = None,
    max_time: float | None = None,
    config: GenerationConfig | None = None,
    response_format: Any = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    tool_choice: str | Mapping[str, Any] | None = None,
    with_scores: bool | int = False,
    share_prefix: bool = False,
    truncate: bool = False,
    progress: bool = True,
    **settings: Any,
) -> list[list[Completion]]:
    """Generates completions of every text.

    Args:
      model: a model from ``load``. An encoder-decoder decodes an output for each text, such as
        a translation; other models continue the text.
      tokenizer: the tokenizer of the model, from ``load``.
      texts: the inputs: strings; or conversations, each a list of messages such as
        ``{"role": "user", "content": "Hello!"}``, which the tokenizer's chat template puts into one
        prompt, with the beginning of an answer (see ``apply_chat_template``). An empty string is a
        prompt for a decoder-only model whose tokenizer adds a first token, and an error otherwise.
      strategy: the name of a strategy, such as ``"beam_search"``; or an object with its settings,
        such as ``decoding_jax.BeamSearch(beam_size=4)``; or a function with the same arguments.
        Settings beside an object or a ``functools.partial`` fill those that it leaves out; two
        values of one setting are an error. By default, the ``generation_config.json`` of the
        model's directory chooses it; without such a file, or if the file sets nothing, it is
        ``"greedy"``.
      key: a typed key, for strategies that draw. Each text has its own key, folded from ``key`` and
        the index of the text, so its completions depend neither on the batch size nor on the other
        texts.
      drafter: a model from ``load`` with the same tokenizer, or a drafter such as ``PromptLookup``,
        for strategies that take one. The pair that ``load`` gives may have a table of another size,
        as those of Qwen2.5 are padded; its tokenizer has to be the same, besides added tokens. It
        is bound to the texts as the model is.
      batch_size: the number of texts that are decoded together. With four times as many texts or
        more, and eight rows or more, other texts take the places of those that have ended, as in
        the batch job; otherwise, and with ``with_scores`` or ``max_time``, a batch lasts as long as
        its longest text.
      max_new_tokens: the maximum number of new tokens of a text. The default is the limit that
        ``stop`` has, or else 64 (20 with parameters of ``transformers``), or as many as fit into
        the model after the text. A ``CutTextWarning`` says how many texts a default has cut.
      stop: the stop conditions, and with ``Stop(max_new_tokens=[3, 5])`` a limit for each text.
        The end tokens are those of the tokenizer if ``stop`` or its ``eos_ids`` is None.
        ``Stop(eos_ids=())`` has no end tokens.
      stop_strings: strings that end a text, such as ``["\\n\\n", "###"]``, or one list for each
        text; the same as ``strings`` of ``stop``. A text ends with the first token with which it
        contains one, and the string stays in it.
      max_time: the seconds after which no further tokens are decoded. Texts that have not ended are
        returned with the tokens decoded so far, at least one each, and are not ``finished``. The
        time for compilation counts too.
      config: parameters by the names of ``transformers``, which choose the strategy. They are given
        instead of ``strategy``, and replace those of the model's directory.
      response_format: what every text is: a class of pydantic, a JSON Schema, a constraint, or as
        clients of chat services write it, ``{"type": "json_schema", "json_schema": {"schema":
        ...}}`` or ``{"type": "json_object"}``. Texts are kept to it by ``constraints.json_schema``,
        with values of at most 8 levels, before ``transform``. Completions have the value as
        ``parsed``: an object of the class, or what ``json.loads`` gives.
      tools: functions that an answer may call, each ``{"type": "function", "function": {"name":
        ..., "parameters": SCHEMA}}``. Conversations have them by the chat template, and texts that
        begin a call in its format are calls of these functions, whose arguments follow their
        schemas. ``parsed`` is then a list of ``{"name": ..., "arguments": ...}``, or None for an
        answer without calls.
      tool_choice: ``"auto"``, the default, where the model chooses whether it calls; ``"required"``
        for calls alone; ``"none"``; or one function, ``{"type": "function", "function": {"name":
        ...}}``.
      with_scores: whether completions have the ``scores`` of their tokens: the log-probability of
        each, the entropy of the distribution that it is from, and the five most probable tokens of
        that distribution. A number asks for so many of these tokens instead of five. All scores are
        under the model, before any transform; with one, such as a constraint, ``kept`` is the
        probability of the tokens that it allows. They are computed by reading the finished
        sequences once more.
      share_prefix: whether the common first tokens of all texts are run and stored once for all of
        them. Only a multiple of 64 tokens is shared, so that few programs are compiled. This works
        for decoder-only models from ``load``. For a prefix that several calls share, use
        ``decoding_jax.share_prefix``, which runs it once for all calls.
      truncate: whether texts that are too long for the model are cut, instead of being an error:
        prompts to their last tokens, with room for ``max_new_tokens``, and the inputs of an
        encoder-decoder to their first. Tokens that the tokenizer adds to every text are kept.
      progress: whether a progress bar is printed, if standard error is a terminal.
      **settings: the settings of the strategy, such as ``num_samples``, ``beam_size`` and
        ``transform``. Those that a strategy requires are by default those of
        ``decoding_jax.registry.DEFAULTS``, such as four beams. A number in them may be an array
        with one value for each text, such as ``transforms.temperature([0, 0.7])`` (see
        ``decoding_jax.rows``). Without a strategy, the parameters of ``GenerationConfig`` are taken
        too, such as ``num_beams=4``, and override those of ``config``; all others then have the
        defaults of ``transformers``.

    Returns:
      For every text, its completions in the order of the strategy, each with the strategy's
      ``info``. Where the model's logits are NaN, a completion has ``nan_logits`` and a
      ``NanLogitsWarning`` names its text. A text has fewer completions, or none, where fewer
      samples reached the ``language`` of a strategy that has one.

    Raises:
      ValueError: for an unknown strategy or setting, a missing key, an empty text, or a text that
        is too long for the model.

    Example:
      >>> from decoding_jax import load
      >>> model, tokenizer = load("translation-en-fr")
      >>> [[best]] = generate(model, tokenizer, ["Where is the station?"])
      >>> best.text
      'Où est la gare ?'
    """
    fields.as_switch("progress", progress)
    call = TextCall(
        "generate",
        {"batch_size": batch_size},
        model,
        tokenizer,
        texts,
        strategy=strategy,
        key=key,
        drafter=drafter,
        max_new_tokens=max_new_tokens,
        stop=stop,
        stop_strings=stop_strings,
        max_time=max_time,
        config=config,
        response_format=response_format,
        tools=tools,
        tool_choice=tool_choice,
        with_scores=with_scores,
        share_prefix=share_prefix,
        truncate=truncate,
        **settings,
    )
    clock = None if call.max_time is None else Clock(call.max_time, model=model)
    # The longest texts come first, so that a lack of memory shows at once. Sorting also puts texts
    # of similar length into the same batch.
    lengths = [len(row) for row in call.ids]
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    outputs = call.refilled(order, batch_size)
    decoded: Iterator[_Decoded]
    if outputs is not None:
        decoded = ((members, call.completions(output, members)) for members, output in outputs)
    else:
        batches = groups(order, lengths, call.limits, batch_size)
        size = min(batch_size, round_up(len(texts)))
        decoded = ((members, _decoded(call, clock, members, size)) for members in batches)
    results: list[list[Completion]] = [[] for _ in texts]
    disable = None if progress and len(texts) > batch_size else True
    with tqdm(None, "decoding", len(texts), unit="text", delay=3, disable=disable) as bar:
        for members, completions in _announced(decoded):
            for i, row in zip(members, completions, strict=True):
                results[i] = row
            bar.update(len(members))
    warn_of_cut(results, call.limits)
    warn_of_nan_logits(results)
    if call.has_language:
        warn_of_no_text(results)
    return results


_Decoded = tuple[Sequence[int], list[list[Completion]]]
"""Some texts, by number, and their completions."""


def _announced(decoded: Iterator[_Decoded]) -> Iterator[_Decoded]:
    """The same items; compilation that takes long is announced."""
    while True:
        with compilation_announced():
            found = next(decoded, None)
        if found is None:
            return
        yield found


def _decoded(
    call: TextCall, clock: Clock | None, members: Sequence[int], size: int
) -> list[list[Completion]]:
    """The completions of some texts, by number, which are decoded together as ``size`` rows."""
    rows = call.rows(members, size)
    output = rows.run() if clock is None else run_until(clock, rows)
    scores = None
    if call.num_alternatives is not None:
        scores = compiled_scores(
            rows.model,
            rows.prompt,
            output.tokens,
            output.length.max(),
            num_alternatives=call.num_alternatives,
            transform=forms.value_of(rows.strategy, "transform"),
        )
    output, scores = to_host((output, scores))
    return call.completions(output, members, scores)
