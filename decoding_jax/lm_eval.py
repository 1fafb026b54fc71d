"""A model for the Language Model Evaluation Harness; needs the extra ``lm-eval``.

The harness (Gao et al. 2024, https://github.com/EleutherAI/lm-evaluation-harness) knows the model
``decoding_jax`` once this module is imported. ``python -m decoding_jax.lm_eval`` is its own command
with that model.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from lm_eval import utils
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import (
    handle_stop_sequences,
    normalize_gen_kwargs,
    postprocess_generated_text,
)

from decoding_jax import fields
from decoding_jax.models.encoder_decoder import EncoderDecoder
from decoding_jax.text import generate, load, score
from decoding_jax.text.inputs import input_positions

_UNLIMITED = 2048  # The harness' number of positions for a model without a limit.
_MAX_NEW_TOKENS = 256  # The harness' default.
_Request = tuple[Any, list[int], list[int]]


@register_model("decoding_jax")
class DecodingJax(TemplateLM):
    """A model of ``decoding_jax.load``, with the numbers and texts of the harness' model ``hf``.

    Args:
      pretrained: the directory, or another name that ``load`` takes.
      batch_size: the number of texts that are decoded or scored together.
      dtype: as for ``load``.
      mesh: the sizes of the axes of a mesh of devices, a dict or a text such as
        ``"data:2+model:4"``.
      max_length: the number of positions that a text may take, to which longer ones are cut. The
        default is the model's number, or 2,048 for a model without a limit.
      prefix_token_id: the token on which a text without a context is conditioned. The default is
        the beginning-of-sequence token that the directory names, or the end token.
      seed: the seed of samples.
      think_end_token: the text that ends a model's thinking; an answer is what follows it.
      enable_thinking: the variable of that name of a chat template, if it is not None.
      max_batch_size, device: what the harness gives to every model, and nothing here uses: memory
        does not choose the batch size, and ``JAX_PLATFORMS`` chooses the device.
      **settings: further arguments of ``load``, such as ``tokenizer``.

    Raises:
      ValueError: in one line, for a value that is not taken, and as ``load``.
    """

    def __init__(
        self,
        pretrained: str,
        batch_size: int | str = 16,
        dtype: str = "auto",
        mesh: Mapping[str, int] | str | None = None,
        max_length: int | None = None,
        prefix_token_id: int | None = None,
        seed: int = 0,
        think_end_token: str | None = None,
        enable_thinking: bool | None = None,
        max_batch_size: int | None = None,
        device: str | None = None,
        **settings: Any,
    ):
        super().__init__()
        if isinstance(batch_size, str) and batch_size.isdecimal():
            batch_size = int(batch_size)
        self.batch_size = fields.as_count("batch_size", batch_size)
        self.model, tokenizer = load(pretrained, dtype=dtype, mesh=_axes(mesh), **settings)
        self.tokenizer: Any = tokenizer
        self.backend = "seq2seq" if isinstance(self.model, EncoderDecoder) else "causal"
        self.max_length = max_length or input_positions(self.model) or _UNLIMITED
        self._prefix_token_id = prefix_token_id
        self._key = jax.random.key(seed)
        self._think_end_token = think_end_token
        self._thinking = {} if enable_thinking is None else {"enable_thinking": enable_thinking}
        self._name = str(pretrained)

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None
    ) -> DecodingJax:
        """Of two values of an argument, that of ``--model_args`` counts."""
        given = {k: v for k, v in (additional_config or {}).items() if v is not None}
        return cls(**given | arg_dict)

    def _special(self, name: str) -> int | None:
        """The id of a special token that the directory names, or None."""
        text = self.tokenizer.chat.special_tokens.get(name)
        return None if text is None else self.tokenizer.library.token_to_id(text)

    def _text_of(self, token: int) -> str:
        return self.tokenizer.library.decode([token], skip_special_tokens=False)

    @property
    def eot_token_id(self) -> int:
        """The end token that the directory names, or the first one."""
        named = self._special("eos_token")
        return self.tokenizer.eos_ids[0] if named is None else named

    @property
    def prefix_token_id(self) -> int:
        """The token on which a text without a context is conditioned."""
        if self._prefix_token_id is not None:
            return self._prefix_token_id
        named = self._special("bos_token")
        return self.eot_token_id if named is None else named

    @property
    def tokenizer_name(self) -> str:
        """The name by which the harness keeps requests."""
        return self._name.replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The template of that name, or the default one; None without a template."""
        name = chat_template if isinstance(chat_template, str) else "default"
        return self.tokenizer.chat.templates.get(name) if chat_template else None

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """The text of a conversation."""
        return self.tokenizer.apply_chat_template(
            chat_history,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
            tokenize=False,
            **self._thinking,
        )

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **kwargs: Any
    ) -> list[int]:
        """The tokens of a text; a text that has its beginning token gets no special tokens."""
        if add_special_tokens is None:
            add_special_tokens = not string.startswith(self._text_of(self.prefix_token_id))
        return (
            self.tokenizer.encode(string) if add_special_tokens else self.tokenizer.pieces(string)
        )

    def _loglikelihood_tokens(
        self, requests: Sequence[_Request], disable_tqdm: bool = False, **kwargs: Any
    ) -> list[tuple[float, bool]]:
        prompts, continuations = [], []
        for _, context, continuation in requests:
            if self.backend == "causal":
                excess = max(len(context) + len(continuation) - self.max_length - 1, 0)
                prompts.append(context[excess:])
            else:
                prompts.append(context[-self.max_length :])
            if not 0 < len(continuation) <= self.max_length:
                raise ValueError(
                    f"requests: expected continuations of 1 to {self.max_length} tokens, "
                    f"max_length, got {len(continuation)}"
                )
            continuations.append(continuation)
        found = score(
            self.model,
            self.tokenizer,
            prompts,
            continuations,
            batch_size=self.batch_size,
            progress=not disable_tqdm,
        )
        answers = [(one.log_prob, one.is_greedy) for one in found]
        for (texts, *_), answer in zip(requests, answers, strict=True):
            if texts is not None:
                self.cache_hook.add_partial("loglikelihood", texts, answer)
        return answers

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """The log-likelihoods of whole texts, in windows of the model's positions."""
        windows: list[_Request] = []
        counts = []
        for request in requests:
            of_text = utils.get_rolling_token_windows(
                token_list=self.tok_encode(request.args[0]),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
            found = [(None, *utils.make_disjoint_window(window)) for window in of_text]
            windows += found
            counts.append(len(found))
        answers = iter(self._loglikelihood_tokens(windows, disable_tqdm=disable_tqdm))
        sums = [sum(next(answers)[0] for _ in range(count)) for count in counts]
        for request, total in zip(requests, sums, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return sums

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """The texts that follow contexts, up to a stop string or an end token.

        The settings are those of ``transformers``; the strategy is theirs.
        """
        groups: dict[str, list[int]] = {}
        for i, request in enumerate(requests):
            groups.setdefault(repr(sorted(request.args[1].items())), []).append(i)
        texts = [""] * len(requests)
        for number, members in enumerate(groups.values()):
            contexts = [requests[i].args[0] for i in members]
            given = requests[members[0]].args[1]
            made = self._generated(contexts, given, number, disable_tqdm)
            for i, text in zip(members, made, strict=True):
                texts[i] = text
                self.cache_hook.add_partial("generate_until", requests[i].args, text)
        return texts

    def _generated(
        self, contexts: list[str], given: Mapping[str, Any], number: int, disable_tqdm: bool
    ) -> list[str]:
        """The texts of contexts that have the same settings."""
        settings: dict[str, Any] = dict(normalize_gen_kwargs(dict(given), _MAX_NEW_TOKENS))
        until = handle_stop_sequences(settings.pop("until"), None)
        count = settings.pop("max_gen_toks")
        room = self.max_length - (count if self.backend == "causal" else 0)
        if room < 1:
            expected = f"less than the model's {self.max_length} positions"
            raise fields.error("max_gen_toks", expected, count)
        if settings["do_sample"]:
            settings["key"] = jax.random.fold_in(self._key, number)
        else:
            settings.pop("temperature", None)
        stops = [text for text in until if text]
        rows = generate(
            self.model,
            _Encoder(self.tokenizer, lambda text: self.tok_encode(text)[-room:]),
            contexts,
            batch_size=self.batch_size,
            max_new_tokens=count,
            stop_strings=stops or None,
            progress=not disable_tqdm,
            **settings,
        )
        until = [*stops, self._text_of(self.eot_token_id)]
        decode = functools.partial(postprocess_generated_text, stop=until)
        return [
            decode(self.tokenizer.decode(row[0].tokens), think_end_token=self._think_end_token)
            for row in rows
        ]


class _Encoder:
    """A tokenizer that encodes texts as the harness does."""

    def __init__(self, tokenizer: Any, encode: Any):
        self._tokenizer, self.encode = tokenizer, encode

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


def _axes(mesh: Mapping[str, int] | str | None) -> Mapping[str, int] | None:
    """The sizes of the axes of a mesh, which the harness' command gives as a text."""
    if not isinstance(mesh, str):
        return mesh
    axes = [axis.partition(":") for axis in mesh.split("+")]
    if not all(name and size.isdecimal() for name, _, size in axes):
        raise fields.error("mesh", 'axes and sizes such as "data:2+model:4"', mesh)
    return {name: int(size) for name, _, size in axes}


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
