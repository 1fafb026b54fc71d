"""A head of EAGLE-3 for a T5, written as SpecForge writes one."""

import json

import jax
import numpy as np

from decoding_jax.models import EagleConfig, EagleHead
from decoding_jax.models.checkpoint import eagle
from decoding_jax.models.checkpoint.directory import CONFIG, WEIGHTS
from decoding_jax.models.checkpoint.families import FAMILIES
from decoding_jax.models.checkpoint.params import Weight, write_params


def write_head(directory, vocab_size, width):
    """A random head that drafts all tokens but one, and reads the last layer alone three times."""
    config = EagleConfig(
        vocab_size=vocab_size - 1,
        emb_dim=width,
        num_heads=2,
        num_kv_heads=1,
        head_dim=4,
        mlp_dim=12,
        num_layers=1,
        max_positions=64,
        feature_layers=(2, 2, 2),
        feature_dim=width,
    )
    head = EagleHead.init(config, jax.random.key(3))
    table = {**eagle.head_table(config, "midlayer"), "d2t": Weight("d2t")}
    params = {**head.params, "d2t": np.ones(vocab_size - 1, np.int64)}
    write_params(directory / WEIGHTS, table, params, None)
    values = FAMILIES["llama"].settings_of(config) | {
        "vocab_size": vocab_size,
        "draft_vocab_size": vocab_size - 1,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 1, 1]},
    }
    (directory / CONFIG).write_text(json.dumps(values))
