"""The generation of texts from texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from tqdm import tqdm

from decoding_jax.base import Array, DecodeOutput, LanguageModel, Stop
from decoding_jax.ops.jit import compilation_announced
from decoding_jax.ops.mesh import to_host
from decoding_jax.rows import row_arguments, take_rows
from decoding_jax.text.arguments import (
    check_arguments,
    check_tokens,
    check_with_scores,
    draws,
    with_defaults,
)
from decoding_jax.text.batch import (
    Completion,
    completions,
    context_of,
    encode_texts,
)
from decoding_jax.text.calls import DEFAULT_LENGTH, Batch, find_strategy, keys_of, stop_of
from decoding_jax.text.clock import Clock, run_until
from decoding_jax.text.drafting import check_drafter
from decoding_jax.text.generation_config import GenerationConfig
from decoding_jax.text.generation_config.call import chooser_of, chosen_arguments
from decoding_jax.text.loading import Model
from decoding_jax.text.shared_prefix import with_common_prefix
from decoding_jax.text.sizes import round_up
from decoding_jax.text.stop_strings import StopTexts, with_strings
from decoding_jax.text.token_scores import compiled_scores
from decoding_jax.text.tokenizers import Tokenizer

Strategy = Callable[..., DecodeOutput]


def generate(
    model: Model | LanguageModel,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    strategy: str | Strategy | None = None,
    key: Array | None = None,
    drafter: Any = None,
    batch_size: int = 16,
    max_new_tokens: int | None = None,
    stop: Stop | None = None,
    stop_strings: StopTexts | None = None,
    max_time: float | None = None,
    config: GenerationConfig | None = None,
    with_scores: bool | int = False,
    share_prefix: bool = False,
    **settings: Any,
) -> list[list[Completion]]:
    """Generates completions of every text.

    Args:
      model: a model from ``load``. An encoder-decoder decodes an output for each text, such as
        a translation; other models continue the text.
      tokenizer: the tokenizer of the model, from ``load``.
      texts: the inputs, none of them empty.
      strategy: the name of a strategy, such as ``"beam_search"``, or a function with the same
        arguments. By default, the ``generation_config.json`` of the model's directory chooses it;
        without such a file, or if the file sets nothing, it is ``"greedy"``.
      key: a typed key, for strategies that draw. Each text has its own key, folded from ``key`` and
        the index of the text, so its completions depend neither on the batch size nor on the other
        texts.
      drafter: a model from ``load`` with the same tokenizer, or a drafter such as ``PromptLookup``,
        for strategies that take one. It is bound to the texts as the model is.
      batch_size: the number of texts that are decoded together.
      max_new_tokens: the maximum number of new tokens of a text, 64 by default.
      stop: the stop conditions. The end tokens are those of the tokenizer if ``stop`` or its
        ``eos_ids`` is None. ``Stop(eos_ids=())`` has no end tokens.
      stop_strings: strings that end a text, such as ``["\\n\\n", "###"]``, or one list for each
        text; the same as ``strings`` of ``stop``. A text ends with the first token with which it
        contains one, and the string stays in it.
      max_time: the seconds after which no further tokens are decoded. Texts that have not ended are
        returned with the tokens decoded so far, at least one each, and are not ``finished``. The
        time for compilation counts too.
      config: parameters by the names of ``transformers``, which choose the strategy. They are given
        instead of ``strategy``, and replace those of the model's directory.
      with_scores: whether completions have the ``scores`` of their tokens: the log-probability of
        each, the entropy of the distribution that it is from, and the five most probable tokens of
        that distribution. A number asks for so many of these tokens instead of five. All scores are
        under the model, before any transform; they are computed by reading the finished sequences
        once more.
      share_prefix: whether the common first tokens of all texts are run and stored once for all of
        them. Only a multiple of 64 tokens is shared, so that few programs are compiled. This works
        for decoder-only models from ``load``. For a prefix that several calls share, use
        ``decoding_jax.share_prefix``, which runs it once for all calls.
      **settings: the settings of the strategy, such as ``num_samples``, ``beam_size`` and
        ``transform``. Those that a strategy requires are by default those of
        ``decoding_jax.registry.DEFAULTS``, such as four beams. A number in them may be an array
        with one value for each text, such as ``transforms.temperature([0, 0.7])`` (see
        ``decoding_jax.rows``). Without a strategy, the parameters of ``GenerationConfig`` are taken
        too, such as ``num_beams=4``, and override those of ``config``; all others then have the
        defaults of ``transformers``.

    Returns:
      For every text, its completions in the order of the strategy, each with the strategy's
      ``info``.

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
    clock = Clock(max_time, model=model)
    chooser = chooser_of(strategy, config, tokenizer, settings)
    if chooser is not None:
        given = {"max_new_tokens": max_new_tokens, "stop": stop, **settings}
        given |= {"stop_strings": stop_strings, "max_time": max_time}
        chosen = chosen_arguments(model, tokenizer, texts, chooser, key, drafter, given)
        chosen |= {"batch_size": batch_size, "with_scores": with_scores}
        chosen["share_prefix"] = share_prefix
        return generate(model, tokenizer, texts, **chosen)
    stop = with_strings(stop, stop_strings)
    strategy = "greedy" if strategy is None else strategy
    settings = with_defaults(strategy, settings)
    max_new_tokens = DEFAULT_LENGTH if max_new_tokens is None else max_new_tokens
    checked_settings = {"max_new_tokens": max_new_tokens, "stop": stop, **settings}
    check_arguments(model, tokenizer, texts, strategy, key, checked_settings, batch_size=batch_size)
    num_alternatives = check_with_scores(with_scores, model)
    run, registered = find_strategy(strategy)
    arguments = row_arguments(run)
    drafter = check_drafter(run, drafter)
    keys = keys_of(draws(run, settings), key, len(texts))
    ids = encode_texts(tokenizer, texts)
    check_tokens(model, ids)
    model = with_common_prefix(model, ids, share_prefix)
    # The longest texts come first, so that a lack of memory shows at once. Sorting also puts texts
    # of similar length into the same batch.
    order = sorted(range(len(ids)), key=lambda i: -len(ids[i]))
    results: list[list[Completion]] = [[] for _ in ids]
    all_settings = {"stop": stop_of(stop, tokenizer, model, ids), "drafter": drafter, **settings}
    size = min(batch_size, round_up(len(order)))
    starts = range(0, len(order), batch_size)
    for first in tqdm(starts, "decoding", unit="batch", delay=3, disable=len(starts) < 2):
        members = order[first : first + batch_size]
        # A smaller batch is filled up with copies of its first text, to compile fewer shapes.
        rows = members + members[:1] * (size - len(members))
        batch = Batch(model, [ids[i] for i in rows], max_new_tokens)
        batch_settings = take_rows(all_settings, rows, len(ids), arguments)
        batch_keys = None if keys is None else keys[jnp.asarray(rows)]
        args = (batch.prompt,) if batch_keys is None else (batch.prompt, batch_keys)
        if (bound_drafter := batch.bind_drafter(batch_settings.pop("drafter"))) is not None:
            args = (bound_drafter, *args)
        batch_settings = batch.with_length(batch_settings, bound_drafter, registered=registered)
        with compilation_announced():
            if max_time is None:
                output = run(batch.model, *args, **batch_settings)
            else:
                if bound_drafter is not None:
                    batch_settings["drafter"] = bound_drafter
                output = run_until(
                    clock, run, batch.model, batch.prompt, batch_keys, **batch_settings
                )
            scores = None
            if num_alternatives is not None:
                scores = compiled_scores(
                    batch.model,
                    batch.prompt,
                    output.tokens,
                    output.length.max(),
                    num_alternatives=num_alternatives,
                )
        context = context_of(model, [ids[i] for i in members])
        output, scores = to_host((output, scores))
        decoded = completions(tokenizer, output, len(members), context, scores)
        for i, row in zip(members, decoded, strict=True):
            results[i] = row
    return results
