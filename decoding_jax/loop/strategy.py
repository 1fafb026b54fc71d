"""Strategies: frozen dataclasses of settings, with the parts of a decoding loop as methods.

A strategy is written once, as a subclass of ``Strategy``. ``run`` runs it to its end, ``stream`` a
few steps at a time, and ``refill`` with rows that come and go. ``as_function`` makes it a function
of a model, a prompt and its settings, which ``registry`` compiles.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable
from typing import Any, ClassVar

from decoding_jax import fields
from decoding_jax.base import Array, DecodeOutput, LanguageModel, Prompt, Stop, Transform
from decoding_jax.loop.driver import run
from decoding_jax.loop.values import check_stop, check_transform
from decoding_jax.ops.mesh import in_mesh


@dataclasses.dataclass(frozen=True, kw_only=True)
class Strategy:
    """A way of decoding: its settings are fields, and the parts of its loop are methods.

    A subclass is a frozen dataclass and a pytree (``decoding_jax.pytree``). Its settings are
    declared by ``decoding_jax.fields``, and checked when it is made. It has ``init``, ``step``,
    ``row_done`` and ``finalize``, and may have ``settled``. In ``init`` the model is prefilled, and
    each ``step`` calls it once. An object is called with a model, a prompt and, if it draws, a key.

    If every array of the state begins with the axis of rows, except for counters, which are scalars
    while all rows advance together, then the rows of the strategy can be exchanged one by one
    (``loop.refill``). Its ``step`` and ``finalize`` then also take a state whose counters have one
    value for each row, no row depends on another, and a row that is done no longer changes.

    Attributes:
      max_new_tokens: L, the maximum number of new tokens. ``generate`` and ``stream`` set it where
        it is None; other callers need a number.
      transform: applied to the logits before tokens are chosen; None changes nothing.
      stop: when a sequence ends.
      draws: whether the strategy takes a key.
      needs_key: whether it needs the key that it takes; otherwise some settings draw nothing.

    Raises:
      ValueError: for a setting that is not valid, in one line that names it.
    """

    max_new_tokens: int | None = fields.count(default=None)
    transform: Transform | None = fields.field(
        lambda name, value: check_transform(value), default=None
    )
    stop: Stop = fields.field(lambda name, value: check_stop(value), default=None)

    draws: ClassVar[bool] = False
    needs_key: ClassVar[bool] = True

    def __post_init__(self) -> None:
        fields.check(self)
        if self.stop is None:
            object.__setattr__(self, "stop", Stop())

    @property
    def widens(self) -> bool:
        """Whether the width that prompts, or encoder inputs, are padded to is nothing but padding.

        Zero-padded or cut at the end of each axis, the arrays of a row's state then become those of
        the same row at another width that holds it. ``loop.refill`` relies on this to move rows to
        a batch of another width, if the model has ``widens`` too.
        """
        return True

    def init(self, model: LanguageModel, prompt: Prompt, key: Any) -> Any:
        """Prefills the model, and returns the first state."""
        raise NotImplementedError

    def step(self, model: LanguageModel, prompt: Prompt, state: Any) -> Any:
        """Calls the model once, and returns the next state."""
        raise NotImplementedError

    def row_done(self, state: Any) -> Array:
        """Whether each row has nothing left to do, bool ``[B]``."""
        raise NotImplementedError

    def finalize(self, prompt: Prompt, state: Any) -> DecodeOutput:
        """The result; for an unfinished state, the sequences decoded so far."""
        raise NotImplementedError

    def settled(self, state: Any) -> Array | None:
        """The number of leading tokens of each sequence that no later step changes.

        It is int32 ``[B, N]``, for the sequences of ``finalize``; or None, for a strategy whose
        tokens may change until their row is done. Streams give out the text of settled tokens only.
        """
        return None

    def done(self, state: Any) -> Array:
        """Whether all rows have nothing left to do."""
        return self.row_done(state).all()

    def __call__(
        self, model: LanguageModel, prompt: Prompt, key: Array | None = None
    ) -> DecodeOutput:
        """Runs the strategy to its end."""
        return in_mesh(lambda given: run(self, *given), (model, prompt, key))


def name_of(strategy: type[Strategy]) -> str:
    """The name of a strategy as a function: ``BestKSearch`` is ``best_k_search``."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", strategy.__name__).lower()


def as_function(strategy: type[Strategy]) -> Callable[..., DecodeOutput]:
    """A function of ``(model, prompt, key, *, **settings)`` that makes a strategy and runs it.

    It takes a key only if the strategy draws, and ``drafter`` is its second parameter if the
    strategy has such a setting.

    Example:
      >>> from decoding_jax import strategies
      >>> list(inspect.signature(strategies.greedy).parameters)
      ['model', 'prompt', 'max_new_tokens', 'transform', 'stop']
    """
    settings = {f.name: f for f in dataclasses.fields(strategy) if f.init}
    inputs = [n for n in ("model", "drafter", "prompt", "key") if n in inputs_of(strategy)]
    optional = () if strategy.needs_key else ("key",)
    parameters = [
        inspect.Parameter(
            name,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=None if name in optional else inspect.Parameter.empty,
        )
        for name in inputs
    ]
    for name, setting in settings.items():
        if name not in inputs:
            parameters.append(_parameter(setting))
    signature = inspect.Signature(parameters, return_annotation=DecodeOutput)

    def function(*args: Any, **kwargs: Any) -> DecodeOutput:
        given = signature.bind(*args, **kwargs).arguments
        made = strategy(**{name: given.pop(name) for name in settings if name in given})
        return made(**given)

    function.__name__ = function.__qualname__ = name_of(strategy)
    function.__module__, function.__doc__ = strategy.__module__, strategy.__doc__
    vars(function).update(__signature__=signature, build_steps=strategy)
    return function


def inputs_of(strategy: type[Strategy]) -> tuple[str, ...]:
    """The arguments of a strategy's function that may be given by position."""
    drafter = ("drafter",) if "drafter" in strategy.__dataclass_fields__ else ()
    return ("model", *drafter, "prompt", *(("key",) if strategy.draws else ()))


def _parameter(setting: dataclasses.Field) -> inspect.Parameter:
    """The keyword parameter of a setting. ``max_new_tokens`` is required outside of texts."""
    default = setting.default
    required = default is dataclasses.MISSING or setting.name == "max_new_tokens"
    return inspect.Parameter(
        setting.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if required else default,
        annotation=setting.type,
    )
