"""The parameters of ``transformers``' ``GenerationConfig`` (5.x), and their effect here.

``docs/generation_config.md`` shows this table, and a test compares the two.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Parameter(NamedTuple):
    """One parameter.

    Attributes:
      use: ``"used"``, ``"no effect"`` if it changes no token here, or ``"refused"``.
      note: its effect, or the reason why it is refused.
      default: the value that it has unless it is set.
      harmless: of a refused parameter, the values that ask for nothing.
    """

    use: str
    note: str
    default: Any = None
    harmless: tuple[Any, ...] = ()


def _used(note: str, default: Any = None) -> Parameter:
    return Parameter("used", note, default)


def _no_effect(note: str, default: Any = None) -> Parameter:
    return Parameter("no effect", note, default)


def _refused(note: str, default: Any = None, *harmless: Any) -> Parameter:
    return Parameter("refused", note, default, harmless)


_CACHE = "the cache always has a slot for each new token, see design.md"
_OUTPUT = "a `Completion` has log-probability and score, and scores of tokens by `with_scores`"

PARAMETERS: dict[str, Parameter] = {
    # Length
    "max_length": _used("limits prompt and new tokens together, by each text's own length"),
    "max_new_tokens": _used("limits the new tokens; without both, 20 new tokens"),
    "min_length": _used("bans end tokens below this length, the prompt included", 0),
    "min_new_tokens": _used("bans end tokens below this number of new tokens"),
    "early_stopping": _used("`early_stopping` of beam searches", False),
    "max_time": _used("`max_time`: the seconds after which no further tokens are decoded"),
    "stop_strings": _used("`stop_strings`: a text ends with the token that completes one"),
    # Strategy
    "do_sample": _used("draws instead of taking the best; needs a key", False),
    "num_beams": _used("`beam_size` of beam searches; 1 is none", 1),
    "num_beam_groups": _used("`diverse_beam_search` if above 1", 1),
    "diversity_penalty": _used("`diversity_penalty` of `diverse_beam_search`", 0.0),
    "num_return_sequences": _used("`num_samples`, or `num_return` of a beam search", 1),
    "length_penalty": _used("scores of beams are divided by length to this power", 1.0),
    "force_words_ids": _used("`constrained_beam_search`: phrases, and lists of alternatives"),
    "constraints": _used("a `Constraints`, for `constrained_beam_search`"),
    "penalty_alpha": _used("`contrastive_search` with `top_k`, without sampling and beams"),
    "dola_layers": _refused("there is no decoding by contrasting layers"),
    "low_memory": _no_effect("the candidates of contrastive search share one cache"),
    # Logits
    "temperature": _used("`transforms.temperature` where `do_sample`", 1.0),
    "top_k": _used("`transforms.top_k` where `do_sample`; 0 keeps all; see `penalty_alpha`", 50),
    "top_p": _used("`transforms.top_p` where `do_sample`", 1.0),
    "min_p": _used("`transforms.min_p` where `do_sample`"),
    "top_h": _refused("there is no such transform"),
    "typical_p": _used("`transforms.typical` where `do_sample`; refused with beams", 1.0),
    "epsilon_cutoff": _used("`transforms.epsilon` where `do_sample`", 0.0),
    "eta_cutoff": _used("`transforms.eta` where `do_sample`", 0.0),
    "repetition_penalty": _used("`transforms.repetition_penalty`, the prompt included", 1.0),
    "encoder_repetition_penalty": _refused("there is no such transform", 1.0, 1),
    "no_repeat_ngram_size": _used("`transforms.no_repeat_ngram`, the prompt included", 0),
    "encoder_no_repeat_ngram_size": _refused("there is no such transform", 0),
    "bad_words_ids": _used("`transforms.banned_sequences`, but not of an end token alone"),
    "renormalize_logits": _used("a softmax after all transforms, which beams' scores show", False),
    "forced_bos_token_id": _used("the first new token, where the prompt is one token"),
    "forced_eos_token_id": _used("the last token of a text of full length"),
    "remove_invalid_values": _refused("NaN is never chosen; infinities are not hidden", False),
    "exponential_decay_length_penalty": _refused("there is no such transform"),
    "suppress_tokens": _used("`transforms.banned_sequences`, of single tokens"),
    "begin_suppress_tokens": _refused("there is no such transform"),
    "sequence_bias": _used("`transforms.logit_bias`; sequences of several tokens are refused"),
    "guidance_scale": _refused("there is no guidance by a second prompt", None, 1),
    "token_healing": _refused("prompts are decoded from as they are", None, False),
    "watermarking_config": _refused("there is no watermark"),
    # Assisted decoding
    "num_assistant_tokens": _used("`num_draft_tokens`, with a `drafter`", 20),
    "num_assistant_tokens_schedule": _used(
        "`constant`, or `Heuristic` without a largest K", "constant"
    ),
    "prompt_lookup_num_tokens": _used("`speculative_sample` with `PromptLookup`"),
    "max_matching_ngram_size": _used("`size` of `PromptLookup`, by default 2"),
    "assistant_early_exit": _used("`speculative_sample` with the model's first layers"),
    "assistant_confidence_threshold": _used("`min_confidence` of `ModelDrafter`", 0.4),
    "assistant_ensemble_weight": _refused("speculation is exact"),
    "assistant_lookbehind": _refused("target and draft have one tokenizer"),
    "target_lookbehind": _refused("target and draft have one tokenizer"),
    "speculation_type": _refused("`verifier` of `speculative_sample` chooses"),
    "use_mtp": _refused("there are no models that predict several tokens", None, False),
    "is_assistant": _no_effect("a drafter is passed as `drafter`"),
    # Tokens
    "eos_token_id": _used("the end tokens, one or a list; by default the tokenizer's"),
    "pad_token_id": _no_effect("lengths are carried, and no token means padding"),
    "bos_token_id": _no_effect("every text has a token, which the tokenizer gives"),
    "decoder_start_token_id": _no_effect("a property of the model, from `config.json`"),
    # Cache and compilation
    "use_cache": _no_effect(_CACHE, True),
    "cache_implementation": _no_effect(_CACHE),
    "cache_config": _no_effect(_CACHE),
    "max_cache_len": _no_effect(_CACHE),
    "prefill_chunk_size": _no_effect("`prefill_chunk` in a model's config does this"),
    "compile_config": _no_effect("every strategy is compiled, see compilation.md"),
    "disable_compile": _no_effect("every strategy is compiled, see compilation.md"),
    "continuous_batching_config": _no_effect("texts are decoded in batches of `batch_size`"),
    # Output
    "output_attentions": _refused(_OUTPUT, None, False),
    "output_hidden_states": _refused(_OUTPUT, None, False),
    "output_scores": _refused(_OUTPUT, False),
    "output_logits": _refused(_OUTPUT, None, False),
    "return_dict_in_generate": _no_effect(_OUTPUT, False),
    # Files
    "transformers_version": _no_effect("the version that wrote the file"),
    "_from_model_config": _no_effect("says where the file comes from"),
}
