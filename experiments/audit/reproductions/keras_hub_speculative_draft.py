"""KerasHub 0.32.0: SpeculativeSampler drafts by argmax, and accepts as if the draft were sampled.

KERAS_BACKEND=jax python keras_hub_speculative_draft.py
"""

import keras_hub
import numpy as np
from keras import ops

# Neither model looks at the tokens, so a text is many draws from one distribution.
target = ops.convert_to_tensor(np.log([[0.5, 0.3, 0.2]]), "float32")
draft = ops.convert_to_tensor(np.log([[0.6, 0.3, 0.1]]), "float32")
sampler = keras_hub.samplers.SpeculativeSampler(
    num_speculative_tokens=1, base_sampler=keras_hub.samplers.RandomSampler(), seed=0
)
tokens = sampler(
    lambda prompt, cache, index: (target, None, cache),
    ops.zeros((1, 5001), "int32"),
    index=1,
    draft_next=lambda prompt, cache, index: (draft, None, cache),
)
print(np.bincount(np.asarray(tokens)[0, 1:], minlength=3) / 5000)
# The target has [0.5 0.3 0.2]. What comes out is [0.68 0.14 0.18]. The drafted token is always 0.
# It is accepted with probability 0.5 / 0.6, and otherwise max(0, target - draft) gives token 2, so
# the first token of each block comes out with [0.83 0. 0.17].
