"""Tiny random networks of ``transformers``, which tests decode from beside this library's."""

from pathlib import Path
from typing import Any

from decoding_jax.models.checkpoint import load_model

VOCAB = 24


def network(family: str) -> Any:
    """A random network of ``"gpt2"``, ``"llama"`` or ``"t5"`` with one layer and 24 tokens."""
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    torch.manual_seed(0)
    if family == "gpt2":
        config = transformers.GPT2Config(
            vocab_size=VOCAB, n_positions=64, n_embd=16, n_layer=1, n_head=2, initializer_range=0.3
        )
        return transformers.GPT2LMHeadModel(config).eval()
    if family == "llama":
        config = transformers.LlamaConfig(
            vocab_size=VOCAB,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=1,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
            initializer_range=0.25,
        )
        return transformers.LlamaForCausalLM(config).eval()
    config = transformers.T5Config(
        vocab_size=VOCAB,
        d_model=16,
        d_kv=8,
        d_ff=24,
        num_layers=1,
        num_heads=2,
        decoder_start_token_id=0,
    )
    return transformers.T5ForConditionalGeneration(config).eval()


def loaded(model: Any, directory: Path) -> Any:
    """The same network in this library, by way of a directory of ``transformers``."""
    model.save_pretrained(directory)
    return load_model(directory)
