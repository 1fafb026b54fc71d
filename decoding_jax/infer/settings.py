"""The settings of a batch job, and the checks of its other arguments before any input is read."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import jax

from decoding_jax import fields, loop
from decoding_jax.base import Stop
from decoding_jax.batches import Call, parse
from decoding_jax.constraints import made, schemas
from decoding_jax.loop import forms
from decoding_jax.loop.inputs import check_model, check_stop
from decoding_jax.sharding.meshes import mesh_of
from decoding_jax.storage import CloudPath, read_text
from decoding_jax.text import Tokenizer
from decoding_jax.text.inputs import check_drafter, check_tokenizer

F = TypeVar("F", bound=Callable[..., Any])

_SOURCE = (
    "TextLines(path), JsonLines(path), CsvRows(path), ParquetRows(path), SeqioTask(name), or an "
    "iterable of Item"
)
_STRATEGY = (
    "a function such as functools.partial(decoding_jax.greedy, max_new_tokens=64), in gin "
    "@decoding_jax.greedy, or an object such as decoding_jax.Greedy(max_new_tokens=64)"
)

_OWN_STOP = (
    "strategy: expected one without a stop of its own, and stop as an argument beside it, got one "
    "with a stop"
)


def _seed(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**32:
        raise fields.error(name, f"a whole number from 0 to {2**32 - 1}", value)
    return value


def _widths(name: str, value: Any) -> Any:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise fields.error(name, "a list of widths", value)
    return value


def _schema(name: str, value: Any) -> Any:
    """A schema as JSON, read from its file where it is given by a path."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        raise fields.error(name, "the path of a file, or a dict", value)
    if isinstance(value, (str, Path, CloudPath)):
        value = read_text(name, value)
    return None if value is None else schemas.as_json(value, name)


def _grammar(name: str, value: Any) -> str:
    """The text of a grammar's file."""
    if not isinstance(value, (str, Path, CloudPath)):
        raise fields.error(name, "the path of a file", value)
    return read_text(name, value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings that ``infer.run`` and ``infer.BatchDecoder`` share.

    Attributes:
      seed: the seed of the job; the key of input i is ``fold_in(key(seed), i)``.
      batch_size: the number of inputs that are decoded together. It is rounded up to a multiple of
        the number of devices.
      max_input_length: the maximum number of tokens of an input, without a shared prefix. A longer
        input is recorded as a fault, or cut.
      truncate: whether longer inputs are cut, as ``decoding_jax.generate`` cuts texts: prompts keep
        their end, and the inputs of an encoder-decoder their beginning. The record has the number
        of tokens that were cut off, ``num_cut``.
      buckets: the widths that inputs are padded to. The default is the powers of two from 16.
      stop: the stop conditions. The default is to stop at the tokenizer's end tokens, which are
        also used if ``stop.eos_ids`` is None. Stop strings hold for all inputs but those with
        ``Item.stop_strings`` of their own.
      json_schema: keeps every text to JSON that is valid by a schema (``constraints.json_schema``):
        the path or URL of a file, a dict, or a class of pydantic. The constraint comes before the
        strategy's transform.
      regex: keeps every text to a regular expression (``constraints.regex``).
      grammar: keeps every text to a grammar (``constraints.grammar``), the path or URL of a file.
      max_depth: how often values or rules may be within themselves, for schemas, of inputs too, and
        a grammar.
      drafter: the drafter, for a strategy such as ``decoding_jax.speculative_sample``: a model, a
        model and its tokenizer, or a drafter, as for ``decoding_jax.generate``.
      refill: whether an input takes the place of one that has ended while the other rows of the
        batch go on. This needs a strategy whose rows can be exchanged (``loop.Strategy``), and a
        model that is ``ragged``; without them, batches last as long as their longest row, and the
        job logs why.
      with_tokens: whether records contain token ids.
      with_num_tokens: whether each output has the number of its tokens, the end token included.
      with_info: whether each output has the ``info`` of the strategy, such as the drafted and
        accepted tokens of ``speculative_sample``, without what is about a whole batch.
      with_token_log_probs: whether records contain the log-probability of each token, which is
        computed by one more pass of the model.
      with_token_entropies: whether records contain the entropy of the distribution that each token
        is from, which is computed by the same pass.
      with_top_tokens: how many of the most probable tokens at the place of each token records
        contain, with their log-probabilities, which are computed by the same pass.

    Raises:
      ValueError: for a setting that is not valid, in one line that names it.
    """

    seed: int = fields.field(_seed, default=0)
    batch_size: int = fields.count(default=32)
    max_input_length: int = fields.count(default=512)
    truncate: bool = fields.switch(default=False)
    buckets: Sequence[int] | None = fields.field(_widths, default=None)
    stop: Stop | None = fields.field(check_stop, default=None)
    json_schema: Any = fields.field(_schema, default=None)
    regex: str | None = None
    grammar: Any = fields.field(_grammar, default=None)
    max_depth: int | None = fields.count(default=None)
    drafter: Any = None
    refill: bool = fields.switch(default=True)
    with_tokens: bool = fields.switch(default=False)
    with_num_tokens: bool = fields.switch(default=False)
    with_info: bool = fields.switch(default=False)
    with_token_log_probs: bool = fields.switch(default=False)
    with_token_entropies: bool = fields.switch(default=False)
    with_top_tokens: int = fields.count(0, default=0)

    def __post_init__(self) -> None:
        fields.check(self)
        made.check_single(vars(self))


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobSettings(Settings):
    """The settings of ``infer.run``.

    Attributes:
      shard_size: the number of inputs of a shard. Where batches are refilled, shards are decoded in
        groups of 32 inputs or more for each row of the batch. A group is decoded again as a whole
        unless all of its shards are finished. Otherwise, shards are decoded one after another.
      name: the prefix of the names of the shards.
    """

    shard_size: int = fields.count(default=1024)
    name: str = "decodes"


def with_fields(settings: type[Settings]) -> Callable[[F], F]:
    """Names the fields of a class in the signature of a function that takes them as ``**options``.

    Gin and ``help`` read the signature.
    """

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        named = [p for p in signature.parameters.values() if p.kind != p.VAR_KEYWORD]
        of_fields = [
            inspect.Parameter(f.name, named[0].KEYWORD_ONLY, default=f.default, annotation=f.type)
            for f in dataclasses.fields(settings)
        ]
        vars(function)["__signature__"] = signature.replace(parameters=[*named, *of_fields])
        return function

    return decorate


def check_model_and_tokenizer(model: Any) -> None:
    """Checks that this is a model and its tokenizer.

    Raises:
      ValueError: if it is anything else; the message is one line.
    """
    if not isinstance(model, tuple) or len(model) != 2:
        expected = "a model and its tokenizer, as decoding_jax.load returns them"
        raise fields.error("model", expected, model)
    if not hasattr(model[0], "bind"):
        check_model(model[0])
    check_tokenizer(model[1], model[0])


def check_own_devices(model: Any) -> None:
    """Checks that a model is on devices of this process only.

    Raises:
      ValueError: if it is on a mesh of several processes.
    """
    mesh = mesh_of(model)
    if mesh is not None and any(d.process_index != jax.process_index() for d in mesh.devices.flat):
        raise ValueError(
            f"model: expected one on a mesh of at most {jax.local_device_count()} devices, or "
            f"infer.run, in which processes share a mesh, got one on {mesh.devices.size} devices "
            "of several processes, each of which decodes batches of its own"
        )


def check_source(source: Any) -> None:
    """Checks that this is an iterable of items.

    Raises:
      ValueError: if it is anything else; the message is one line.
    """
    if isinstance(source, type):
        name = source.__name__
        expected = f"an object of the class, in gin @infer.{name}() with parentheses"
        raise fields.error("source", expected, source)
    if isinstance(source, (str, Path, CloudPath)) or not hasattr(source, "__iter__"):
        raise fields.error("source", _SOURCE, source)
    for item in source if isinstance(source, (list, tuple)) else ():
        if not hasattr(item, "error"):
            raise fields.error("source", f"items that are each an Item, or {_SOURCE}", item)


def call_of(model: tuple[Any, Tokenizer], strategy: Any, settings: Settings) -> Call:
    """The call of a job, without the job's stop conditions and constraints.

    Args:
      model: the model and its tokenizer, which is a setting of a function that takes one.
      strategy: a function whose settings ``functools.partial`` or gin have bound; or an object of
        ``loop.Strategy``.
      settings: the settings of the job.

    Raises:
      ValueError: for anything else, for settings that the function does not have, and for a drafter
        with another tokenizer.
    """
    if not callable(strategy) or isinstance(strategy, type):
        raise fields.error("strategy", _STRATEGY, strategy)
    if settings.drafter is not None and getattr(strategy, "drafter", None) is not None:
        raise fields.error("drafter", "none beside that of the strategy", settings.drafter)
    net, tokenizer = model
    check_drafter(settings.drafter, tokenizer)
    call = parse(
        net,
        strategy,
        {},
        key=jax.random.key(settings.seed, impl="threefry2x32"),
        drafter=settings.drafter,
        offered={"tokenizer": tokenizer, "stop": None, "transform": None},
    )
    made: Any = call.strategy
    own = forms.value_of(made, "stop")
    if own is not None and not forms.is_same(own, Stop()):
        raise ValueError(_OWN_STOP)
    if isinstance(made, loop.Strategy) and made.max_new_tokens is None:
        name = forms.name_of(made)
        raise ValueError(f"max_new_tokens: {name} expected an int of 1 or more, got none")
    return call
