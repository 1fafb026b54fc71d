"""A model of transformers that is a table, for the programs that run ``generate`` on it."""

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from harness import Case, length, settings, vocab_size
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

logging.disable(logging.WARNING)
torch.set_num_threads(1)  # the tables are small
# transformers 5.24 calls the cache by another name than the versions before it.
CACHE = "cache" if "cache" in CausalLMOutputWithPast.__dataclass_fields__ else "past_key_values"


class Config(PretrainedConfig):
    model_type = "table"

    def __init__(self, vocab_size: int = 4, **options: Any) -> None:
        self.vocab_size, self.num_hidden_layers = vocab_size, 1
        self.hidden_size = self.num_attention_heads = 1
        super().__init__(pad_token_id=None, eos_token_id=None, bos_token_id=0, **options)


class Table(PreTrainedModel, GenerationMixin):
    """Its cache holds nothing but a length."""

    config_class = Config
    _supports_cache_class = True

    def __init__(self, rows: np.ndarray) -> None:
        super().__init__(Config(len(rows)))
        self.rows = torch.nn.Parameter(torch.tensor(rows), requires_grad=False)
        self.post_init()

    def _init_weights(self, module: Any) -> None:
        pass

    def forward(
        self, input_ids: Any, cache: Any = None, past_key_values: Any = None, **options: Any
    ) -> CausalLMOutputWithPast:
        held = past_key_values if cache is None else cache
        if held is not None:
            empty = torch.zeros(*input_ids.shape, 1)[:, None]
            held.update(empty, empty, 0)
        return CausalLMOutputWithPast(logits=self.rows[input_ids], **{CACHE: held})


def texts(case: Case, model: Table, samples: int, processor: Callable[[], Any]) -> np.ndarray:
    """The new tokens, of a logits processor that is made for the call."""
    prompt = torch.zeros(samples, 1, dtype=torch.long)
    end = vocab_size(case) - 1
    tokens = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        do_sample=True,
        logits_processor=[processor()],
        pad_token_id=end,
        eos_token_id=end,
        **{"top_k": 0, "max_new_tokens": length(case), **settings(case)},
    )
    return tokens[:, 1:].numpy()
