"""Assisted decoding drafts as many tokens as ``transformers`` does, block by block."""

import copy
import dataclasses

import numpy as np
import pytest
import tiers
import tiny_transformers
import torch
import transformers

from decoding_jax import loop
from decoding_jax.strategies.speculative import Heuristic
from decoding_jax.text import encode_batch
from decoding_jax.text.generation_config import GenerationConfig, choose

# transformers and PyTorch emit warnings that do not concern this project.
pytestmark = pytest.mark.filterwarnings("ignore")

NEW = 30
SCHEDULE, THRESHOLD = "num_assistant_tokens_schedule", "assistant_confidence_threshold"
PROMPTS = ([5, 9, 11, 2], [8, 4, 9], [6, 12, 20, 20, 3])


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """A random GPT-2 and a draft near it, in ``transformers`` and loaded."""
    target = tiny_transformers.network("gpt2")
    draft = copy.deepcopy(target)
    with torch.no_grad():
        for weights in draft.parameters():
            weights += 0.03 * torch.randn_like(weights)
    found = []
    for name, model in (("target", target), ("draft", draft)):
        found.append((model, tiny_transformers.loaded(model, tmp_path_factory.mktemp(name))))
        model.generation_config = transformers.GenerationConfig(pad_token_id=0)
    return found


def theirs(pairs, prompt, first, flags, monkeypatch):
    """The tokens after a first one, and the number of candidates of every block.

    ``transformers`` drafts before the first token, which this library takes from the prompt.
    """
    (target, _), (draft, _) = pairs
    generator = transformers.generation.candidate_generator.AssistedCandidateGenerator
    lengths, original = [], generator.get_candidates

    def counted(self, input_ids, **kwargs):
        ids, logits = original(self, input_ids, **kwargs)
        lengths.append(ids.shape[1] - input_ids.shape[1])
        return ids, logits

    monkeypatch.setattr(generator, "get_candidates", counted)
    for name, value in flags.items():
        setattr(draft.generation_config, name, value)
    ids = torch.tensor([[*prompt, first]])
    with torch.no_grad():
        output = target.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            assistant_model=draft,
            max_new_tokens=NEW - 1,
            do_sample=False,
        )
    monkeypatch.undo()
    return output[0, len(prompt) :].tolist(), lengths


def by_the_rule(pairs, prompt, first, flags):
    """As ``theirs``, by the networks of ``transformers`` without caches, and the rule in Python."""
    (target, _), (draft, _) = pairs
    text, end, lengths = [*prompt, first], len(prompt) + NEW, []
    count, grows = flags["num_assistant_tokens"], "heuristic" in flags[SCHEDULE]
    # Reached only where drafts end early.
    largest = Heuristic(None, count).bounded(NEW).max_draft_tokens
    with torch.no_grad():
        while len(text) < end:
            drafted, prob = [], 1.0
            while len(drafted) < min(count, end - len(text) - 1) and prob >= flags[THRESHOLD]:
                probs = draft(torch.tensor([text + drafted])).logits[0, -1].softmax(-1)
                prob = float(probs.max())
                drafted.append(int(probs.argmax()))
            best = target(torch.tensor([text + drafted])).logits[0].argmax(-1).tolist()
            best = best[len(text) - 1 :]
            accepted = 0
            while accepted < len(drafted) and drafted[accepted] == best[accepted]:
                accepted += 1
            text = [*text, *best[: accepted + 1]]
            lengths.append(len(drafted))
            if grows:
                count = min(count + 2, largest) if accepted == len(drafted) else max(1, count - 1)
    return text[len(prompt) :], lengths


def ours(pairs, flags):
    """The tokens of each prompt, and the number of drafted tokens of every block."""
    (_, target), (_, draft) = pairs
    config = GenerationConfig(max_new_tokens=NEW, **flags)
    lengths = [len(prompt) for prompt in PROMPTS]
    choice = choose(config, target, (), lengths, drafter=draft)
    model, prompt = encode_batch(target, PROMPTS, max(lengths))
    proposed = []
    progress = loop.stream_progress(
        dataclasses.replace(choice.strategy, drafter=choice.drafter),
        model,
        prompt,
        choice.key,
        chunk=1,
    )
    for so_far in progress:
        proposed.append(np.asarray(so_far.output.info.proposed)[:, 0])
        blocks = np.asarray(so_far.output.info.blocks)[:, 0]
        if so_far.last:
            break
    drafted = np.diff(np.stack(proposed), axis=0)
    tokens = np.asarray(so_far.output.tokens)[:, 0].tolist()
    return [
        (row, drafted[:n, b].tolist())
        for b, (row, n) in enumerate(zip(tokens, blocks, strict=True))
    ]


CASES = {
    "rising": {SCHEDULE: "heuristic_transient", "num_assistant_tokens": 2, THRESHOLD: 0.0},
    "confident": {SCHEDULE: "heuristic", "num_assistant_tokens": 3, THRESHOLD: 0.25},
    "constant": {SCHEDULE: "constant", "num_assistant_tokens": 6, THRESHOLD: 0.25},
}


@pytest.mark.release
@pytest.mark.parametrize(
    "name", tiers.values(exhaustive=["rising", "confident"], release=["constant"])
)
def test_every_block_drafts_as_many_tokens(name, pairs, monkeypatch):
    """Three rows at once against one at a time; the numbers rise, fall, and end with the text."""
    flags, several = CASES[name], set()
    for prompt, (tokens, drafted) in zip(PROMPTS, ours(pairs, flags), strict=True):
        assert (tokens, drafted) == by_the_rule(pairs, prompt, tokens[0], flags)
        if name == "rising":
            # With a threshold, a draft of ``transformers`` may go on from an earlier one.
            assert (tokens, drafted) == theirs(pairs, prompt, tokens[0], flags, monkeypatch)
        several |= set(drafted)
    assert len(several) > 3
    assert max(several) > 5
