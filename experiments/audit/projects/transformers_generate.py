"""transformers: ``generate`` on a model that is a table."""

import functools
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from harness import Case, draft_table, main, settings, table
from table_model import Config, Table
from transformers import GenerationConfig
from transformers.generation.candidate_generator import (
    DFlashTokenCandidateGenerator,
    MTPCandidateGenerator,
    SinglePositionMultiTokenCandidateGenerator,
)
from transformers.generation.logits_process import (
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopPLogitsWarper,
)
from transformers.generation.utils import _speculative_sampling
from transformers.modeling_layers import MtpModel


def generate(case: Case, model: Table, rows: int, **options: Any) -> np.ndarray:
    given = {"top_k": 0, "max_new_tokens": 2 if case["kind"] == "sequence" else 1}
    prompt = torch.zeros(rows, 1, dtype=torch.long)
    tokens = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        do_sample=True,
        pad_token_id=0,
        **{**given, **settings(case), **options},
    )
    return tokens[:, 1:].numpy()


def sampling(case: Case, samples: int) -> np.ndarray:
    torch.manual_seed(case["seed"])
    both = generate(case, Table(table(case)), samples, num_return_sequences=2)
    return both.reshape(samples, -1)


def alone(case: Case, samples: int) -> np.ndarray:
    torch.manual_seed(case["seed"])
    return generate(case, Table(table(case)), samples)


def beams(case: Case, samples: int) -> np.ndarray:
    torch.manual_seed(case["seed"])
    width, plain = settings(case)["width"], {**case, "settings": {}}
    options = {"num_beams": width, "num_return_sequences": width}
    return generate(plain, Table(table(case)), samples, **options).reshape(samples, -1)


def assisted(case: Case, samples: int) -> np.ndarray:
    """The first tokens of four, because the last token is never drafted."""
    torch.manual_seed(case["seed"])
    model, assistant = Table(table(case)), Table(draft_table(case))
    assistant.generation_config.num_assistant_tokens = 2
    assistant.generation_config.num_assistant_tokens_schedule = "constant"
    assistant.generation_config.assistant_confidence_threshold = 0.0
    options = {"assistant_model": assistant, "max_new_tokens": 4}
    tokens = [generate(case, model, 1, **options) for _ in range(samples)]
    return np.concatenate(tokens)[:, : 2 if case["kind"] == "sequence" else 1]


class Gemma4AssistantTable:
    """In the place of an assistant of Gemma 4: the generator asks for the name of its class."""

    device = torch.device("cpu")
    generation_config = GenerationConfig(num_assistant_tokens=1)

    def __init__(self, logits: np.ndarray) -> None:
        self.logits = torch.tensor(logits)[None, None]

    def __call__(self, **options: Any) -> SimpleNamespace:
        return SimpleNamespace(logits=self.logits, last_hidden_state=torch.zeros(1, 1, 1))


def gemma_4(case: Case, samples: int) -> np.ndarray:
    """The first token of drafts of one token."""
    torch.manual_seed(case["seed"])
    draft, target = draft_table(case)[0], torch.tensor(table(case)[:2])[None]
    generator = SinglePositionMultiTokenCandidateGenerator(
        Gemma4AssistantTable(draft),
        torch.nn.Embedding(len(draft), 1),
        GenerationConfig(max_length=8),
    )
    prompt = torch.zeros(1, 1, dtype=torch.long)
    outputs = SimpleNamespace(hidden_states=[torch.zeros(1, 1, 1)], shared_kv_states={})
    tokens = []
    for _ in range(samples):
        ids, logits = generator.get_candidates(prompt, {}, outputs, False, 0)
        tokens.append(_speculative_sampling(ids, logits, 1, target)[0][:, 0])
    return torch.cat(tokens).numpy()


def multi_token(case: Case, samples: int) -> np.ndarray:
    """The first token of drafts of one token, with a table in the place of the block."""
    torch.manual_seed(case["seed"])
    draft = torch.tensor(draft_table(case)[0])[None, None]
    target = torch.tensor(table(case)[:2])[None]
    state, prompt = torch.zeros(1, 1, 1), torch.zeros(1, 2, dtype=torch.long)
    block = SimpleNamespace(
        layers=[None],
        forward_layer=lambda *inputs, **options: state,
        _project_to_logits=lambda states: draft,
    )
    # What makes a generator reads the block from the model's directory.
    generator = MTPCandidateGenerator.__new__(MTPCandidateGenerator)
    generator.mtp_model = functools.partial(MtpModel.forward, block)
    generator.mtp_cache, generator.num_mtp_layers = None, 1
    generator.do_sample, generator.logits_processor = True, None
    generator.device, generator.is_main_model_prefill = prompt.device, True
    given = {"position_ids": torch.arange(2)[None]}, SimpleNamespace(hidden_states=[state])
    tokens = []
    for _ in range(samples):
        ids, logits = generator.get_candidates(prompt, *given, False, 0)
        tokens.append(_speculative_sampling(ids, logits, 1, target)[0][:, 0])
    return torch.cat(tokens).numpy()


class DFlashTable:
    """In the place of an assistant of DFlash; the projection is the identity."""

    device = torch.device("cpu")

    def __init__(self, logits: np.ndarray) -> None:
        self.config = Config(len(logits), target_layer_ids=[0], block_size=2, mask_token_id=0)
        states = torch.tensor(logits)[None, None].expand(1, 2, -1)
        self.output = SimpleNamespace(last_hidden_state=states)

    def __call__(self, **options: Any) -> SimpleNamespace:
        return self.output


def dflash(case: Case, samples: int) -> np.ndarray:
    """The first token of drafts of one token, processed as ``generate`` does."""
    torch.manual_seed(case["seed"])
    draft, target = draft_table(case)[0], torch.tensor(table(case)[:2])[None]
    options = settings(case)
    chosen = {"temperature": TemperatureLogitsWarper, "top_p": TopPLogitsWarper}
    processors = [make(options[name]) for name, make in chosen.items() if name in options]
    processor = LogitsProcessorList(processors) if processors else None
    size, prompt = len(draft), torch.zeros(1, 2, dtype=torch.long)
    if processor is not None:
        target = torch.stack([processor(prompt, target[:, i]) for i in range(2)], 1)
    projection = torch.nn.Linear(size, size, bias=False)
    projection.weight = torch.nn.Parameter(torch.eye(size), requires_grad=False)
    generator = DFlashTokenCandidateGenerator(
        DFlashTable(draft),
        torch.nn.Embedding(size, size),
        projection,
        GenerationConfig(max_length=8, do_sample=True),
        processor,
    )
    outputs = SimpleNamespace(hidden_states=[None, torch.zeros(1, 1, 1)])
    given = {"position_ids": torch.arange(2)[None], "attention_mask": None}
    tokens = []
    for _ in range(samples):
        generator.is_main_model_prefill = True
        ids, logits = generator.get_candidates(prompt, given, outputs, False, 0)
        tokens.append(_speculative_sampling(ids, logits, 1, target)[0][:, 0])
    return torch.cat(tokens).numpy()


main(
    {
        "generate": alone,
        "num_return_sequences": sampling,
        "num_beams": beams,
        "assistant_model": assisted,
        "SinglePositionMultiTokenCandidateGenerator": gemma_4,
        "MTPCandidateGenerator": multi_token,
        "DFlashTokenCandidateGenerator": dflash,
    }
)
