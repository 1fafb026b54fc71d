"""transformers 5.24.0: assistants of Gemma 4 draft by argmax, and are accepted as if they drew.

python transformers_gemma_4_assistant.py
"""

from types import SimpleNamespace

import torch
import transformers
from transformers.generation import candidate_generator, utils

# Neither class of assistants can be constructed: every layer is to share the target's cache, and
# the configuration refuses this.
for family in ("Gemma4", "Gemma4Unified"):
    text = getattr(transformers, f"{family}TextConfig")(
        hidden_size_per_layer_input=0,
        vocab_size_per_layer_input=0,
        num_hidden_layers=2,
        num_kv_shared_layers=2,
        layer_types=["sliding_attention", "full_attention"],
    )
    config = getattr(transformers, f"{family}AssistantConfig")(text_config=text)
    try:
        getattr(transformers, f"{family}AssistantForCausalLM")(config)
    except ValueError as error:
        print(f"{family}AssistantForCausalLM: {error}")


class Gemma4AssistantTable:
    """Gives the same logits after every token; the generator asks for the name of its class."""

    device = torch.device("cpu")
    generation_config = transformers.GenerationConfig(num_assistant_tokens=1)

    def __call__(self, **options: object) -> SimpleNamespace:
        draft = torch.tensor([[[0.6, 0.3, 0.1]]]).log()
        return SimpleNamespace(logits=draft, last_hidden_state=torch.zeros(1, 1, 1))


torch.manual_seed(0)
generator = candidate_generator.SinglePositionMultiTokenCandidateGenerator(
    Gemma4AssistantTable(), torch.nn.Embedding(3, 1), transformers.GenerationConfig(max_length=8)
)
target = torch.tensor([[[0.5, 0.3, 0.2]] * 2]).log()
outputs = SimpleNamespace(hidden_states=[torch.zeros(1, 1, 1)], shared_kv_states={})
prompt = torch.zeros(1, 1, dtype=torch.long)
drawn = []
for _ in range(20_000):
    ids, logits = generator.get_candidates(prompt, {}, outputs, False, 0)
    drawn.append(utils._speculative_sampling(ids, logits, 1, target)[0][0, 0])
print(torch.bincount(torch.stack(drawn), minlength=3) / len(drawn))
# The target has [0.5 0.3 0.2]. What comes out is [0.83 0. 0.17]. The drafted token is always 0
# (candidate_generator.py, line 1348). It is accepted with probability 0.5 / 0.6, and otherwise
# max(0, target - draft) gives token 2.
