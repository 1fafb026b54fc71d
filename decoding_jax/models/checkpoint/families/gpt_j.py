"""GPT-J. Wang & Komatsuzaki 2021, "GPT-J-6B: A 6 Billion Parameter Autoregressive Model"."""

from decoding_jax.models.checkpoint.family import Family, Key

GPT_J = Family(
    "gptj",
    "GPTJForCausalLM",
    {
        "vocab_size": Key("vocab_size"),
        "n_embd": Key("emb_dim"),
        "n_head": Key("num_heads num_kv_heads"),
        "n_layer": Key("num_layers"),
        "n_inner": Key("mlp_dim", lambda settings: 4 * settings.size("n_embd")),
        "n_positions": Key("max_positions"),
        "rotary_dim": Key("rotary_dim"),
        "activation_function": Key("activation", "gelu_new"),
        "layer_norm_epsilon": Key("norm_epsilon", 1e-5),
        "tie_word_embeddings": Key("logits_via_embedding", False),
    },
    {
        "norm": "layer",
        "parallel": "one_norm",
        "gated": False,
        "rotary_interleaved": True,
        "mlp_bias": True,
        "logits_bias": True,
    },
    {
        "token_embedder": "transformer.wte",
        "final_norm": "transformer.ln_f",
        "logits_dense": "lm_head",
        "layers": "transformer.h",
        "pre_attention_norm": "ln_1",
        "attention/query": "attn.q_proj",
        "attention/key": "attn.k_proj",
        "attention/value": "attn.v_proj",
        "attention/out": "attn.out_proj",
        "mlp/up": "mlp.fc_in",
        "mlp/down": "mlp.fc_out",
    },
    # Older files contain the causal mask.
    ignored=r"transformer\.h\.\d+\.attn\.(masked_)?bias",
)
