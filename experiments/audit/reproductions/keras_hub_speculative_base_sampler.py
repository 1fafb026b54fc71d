"""KerasHub 0.32.0: SpeculativeSampler ignores the temperature and the top-k of ``base_sampler``.

KERAS_BACKEND=jax python keras_hub_speculative_base_sampler.py
"""

import keras_hub
import numpy as np
from keras import ops
from keras_hub.samplers import RandomSampler, TopKSampler

target = ops.convert_to_tensor(np.log([[0.5, 0.3, 0.2]]), "float32")
draft = ops.convert_to_tensor([[0.0, -60.0, -60.0]])
for base in (RandomSampler(temperature=0.01), TopKSampler(k=1)):
    sampler = keras_hub.samplers.SpeculativeSampler(
        num_speculative_tokens=1, base_sampler=base, seed=0
    )
    tokens = sampler(
        lambda prompt, cache, index: (target, None, cache),
        ops.zeros((1, 5001), "int32"),
        index=1,
        draft_next=lambda prompt, cache, index: (draft, None, cache),
    )
    print(type(base).__name__, np.bincount(np.asarray(tokens)[0, 1:], minlength=3) / 5000)
# Either setting leaves token 0 alone, [1. 0. 0.]. What comes out is [0.5 0.3 0.2].
