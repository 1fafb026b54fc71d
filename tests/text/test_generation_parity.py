"""``generate`` with parameters of ``transformers`` decodes what ``transformers`` decodes.

Deterministic modes give the same tokens on random networks. For sampling, the transformed logits
are compared at given texts: equal ones give equal distributions.
"""

import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiers
import tiny_transformers
import torch
import transformers
from tiny_transformers import VOCAB
from words import Words

import decoding_jax
from decoding_jax import models
from decoding_jax.base import Prefix
from decoding_jax.text.generation_config import DirectoryConfig, GenerationConfig, choose

# transformers and PyTorch emit warnings that do not concern this project.
pytestmark = pytest.mark.filterwarnings("ignore")

TEXTS = ("5 9 11 2", "8 4", "6 12 20")
EOS = (3, 17)
FAMILIES = ("gpt2", "t5")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Random networks in ``transformers``, and the same networks loaded."""
    found = {}
    for name in FAMILIES:
        model = tiny_transformers.network(name)
        found[name] = model, tiny_transformers.loaded(model, tmp_path_factory.mktemp(name))
        model.generation_config = transformers.GenerationConfig(
            eos_token_id=list(EOS), pad_token_id=0, decoder_start_token_id=0
        )
    return found


def theirs(model, flags, eos_ids=EOS):
    """New tokens of every sequence of every text, each up to its end token; a text at a time."""
    found = []
    for text in TEXTS:
        ids = torch.tensor([[int(word) for word in text.split()]])
        with torch.no_grad():
            output = model.generate(ids, attention_mask=torch.ones_like(ids), **flags)
        start = 1 if model.config.is_encoder_decoder else ids.shape[1]
        found.append([until_end(row[start:], eos_ids) for row in output.tolist()])
    return found


def until_end(tokens, eos_ids=EOS):
    ends = [i for i, token in enumerate(tokens) if token in eos_ids]
    return tokens[: ends[0] + 1] if ends else tokens


def ours(model, flags):
    rows = decoding_jax.generate(model, Words(*EOS), TEXTS, **flags)
    return [[completion.tokens for completion in row] for row in rows]


# The files of a directory that say how to generate, by name.
FILE, NETWORK = "generation_config.json", "config.json"
FILES = {
    "start": {FILE: {"decoder_start_token_id": 7, "max_new_tokens": 6}},
    "start by bos": {FILE: {"decoder_start_token_id": None, "bos_token_id": 9, "max_length": 9}},
    "old": {NETWORK: {"num_beams": 3, "max_length": 9, "forced_bos_token_id": 5}},
    "first": {
        NETWORK: {"force_bos_token_to_be_generated": True, "bos_token_id": 11, "max_length": 8}
    },
    "old and new": {NETWORK: {"num_beams": 3}, FILE: {"max_length": 12}},
    "lists": {
        FILE: {
            **{"forced_bos_token_id": [5], "forced_eos_token_id": [6], "max_new_tokens": 6},
            **{"suppress_tokens": [], "begin_suppress_tokens": []},
        }
    },
    "no ends": {FILE: {"eos_token_id": [], "max_new_tokens": 9}},
    "unknown": {FILE: {"lang_to_id": {"a": 1}, "max_new_tokens": 5}},
}


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("files", "family"),
    tiers.combinations(itertools.product(FILES, FAMILIES), [("start", "t5"), ("old", "t5")]),
)
def test_files_of_a_directory(family, files, tmp_path):
    network = tiny_transformers.network(family)
    network.save_pretrained(tmp_path)
    common = {"eos_token_id": list(EOS), "pad_token_id": 0}
    before = {
        NETWORK: json.loads((tmp_path / NETWORK).read_text()),
        FILE: {"decoder_start_token_id": 0},
    }
    (tmp_path / FILE).unlink()
    for name, values in FILES[files].items():
        (tmp_path / name).write_text(json.dumps({**before[name], **common, **values}))
    ends = () if files == "no ends" else EOS
    want = theirs(type(network).from_pretrained(tmp_path), {}, ends)
    words = Words(*EOS)
    words.generation_config = DirectoryConfig.read(tmp_path)
    rows = decoding_jax.generate(models.load_model(tmp_path), words, TEXTS)
    assert [[until_end(c.tokens, ends) for c in row] for row in rows] == want


MODES = {
    "greedy": {"do_sample": False},
    "beams": {"num_beams": 3, "num_return_sequences": 2},
    "beams, early": {"num_beams": 4, "early_stopping": True, "length_penalty": 2.0},
    "beams, never": {"num_beams": 2, "early_stopping": "never", "length_penalty": -0.5},
    "lookup": {"prompt_lookup_num_tokens": 3, "max_matching_ngram_size": 2},
}
LENGTHS = {
    "default": {},
    "new": {"max_new_tokens": 7},
    "total": {"max_length": 11},
    "least": {"max_new_tokens": 8, "min_new_tokens": 5},
    "least in all": {"max_length": 14, "min_length": 10},
}
LOGITS = {
    "plain": {},
    "penalty": {"repetition_penalty": 1.7},
    "n-grams": {"no_repeat_ngram_size": 2},
    "bans": {"bad_words_ids": [[5], [9, 2], [EOS[0]]], "suppress_tokens": [11, 4]},
    "forced": {"forced_bos_token_id": 7, "forced_eos_token_id": EOS[1]},
    "biases": {"sequence_bias": [[[6], 2.0], [[2], -3.0]], "renormalize_logits": True},
    "all": {
        "repetition_penalty": 0.8,
        "no_repeat_ngram_size": 3,
        "bad_words_ids": [[12]],
        "forced_eos_token_id": EOS[0],
        "sequence_bias": [[[20], 1.0]],
    },
}
REPRESENTATIVE = {
    ("gpt2", "greedy", "total", "all"),
    ("t5", "beams", "least", "forced"),
}


def grid():
    """Every mode with all lengths, and with all transforms, each beside one of the lengths."""
    for family, (i, mode) in itertools.product(FAMILIES, enumerate(MODES)):
        yield from ((family, mode, length, "plain") for length in LENGTHS)
        for j, logits in enumerate(LOGITS):
            if logits != "plain":
                yield family, mode, list(LENGTHS)[(i + j) % len(LENGTHS)], logits


GRID = sorted({*grid(), *REPRESENTATIVE})


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("family", "mode", "length", "logits"),
    tiers.combinations(GRID, REPRESENTATIVE),
)
def test_deterministic_modes_decode_the_same_tokens(family, mode, length, logits, pairs):
    model, loaded = pairs[family]
    flags = {**MODES[mode], **LENGTHS[length], **LOGITS[logits]}
    assert ours(loaded, flags) == theirs(model, flags)


GUIDED = {"guidance_scale": 1.8, "do_sample": False, "max_new_tokens": 7}


@pytest.mark.release
@pytest.mark.parametrize("negative", [None, [7, 5, 2]])
def test_guidance_has_the_scores_of_transformers(negative, pairs):
    model, loaded = pairs["gpt2"]
    guided = models.guided(loaded, GUIDED["guidance_scale"], negative)
    if negative is None:
        flags = GUIDED | {"repetition_penalty": 1.3}
        assert ours(loaded, flags) == theirs(model, flags)
    for text in TEXTS:
        ids = torch.tensor([[int(word) for word in text.split()]])
        of_prompt = {} if negative is None else {"negative_prompt_ids": torch.tensor([negative])}
        asked = {"output_scores": True, "return_dict_in_generate": True, **of_prompt}
        with torch.no_grad():
            output = model.generate(ids, attention_mask=torch.ones_like(ids), **GUIDED, **asked)
        scores = torch.stack(output.scores, 1).numpy()
        new = output.sequences[:, ids.shape[1] :].numpy().astype(np.int32)
        prompt = jnp.asarray(ids.numpy(), jnp.int32), jnp.array([ids.shape[1]])
        first, cache = guided.prefill(*prompt, lanes=1, slots=new.shape[1])
        later, _ = guided.extend(cache, jnp.asarray(new[:, None]), 0)
        got = np.concatenate([first.logits, later.logits], 2)[:, 0, :-1]
        np.testing.assert_allclose(got, scores, 1e-4, 1e-4)


WARPERS = {
    "default": {},
    "temperature": {"temperature": 0.7, "top_k": 0},
    "top_k": {"top_k": 3},
    "top_p": {"top_p": 0.6, "top_k": 0},
    "min_p": {"min_p": 0.2},
    "epsilon": {"epsilon_cutoff": 0.05},
    "eta": {"eta_cutoff": 0.2},
    "most": {"temperature": 1.4, "top_k": 9, "top_p": 0.8, "min_p": 0.05},
    "typical": {"typical_p": 0.5},
}
PROMPT, NEW = 4, 3


@pytest.mark.parametrize(
    ("beams", "warper", "logits"),
    tiers.combinations(
        [
            (beams, warper, logits)
            for beams in (1, 3)
            for warper in WARPERS
            for logits in LOGITS
            if beams == 1 or warper != "typical"
        ],
        default=[(1, "most", "all"), (3, "top_p", "plain")],
        covers=lambda case: (case[:2], case[1:2], (case[0], case[2])),
    ),
)
def test_samples_follow_the_same_logits(beams, warper, logits, pairs):
    model, loaded = pairs["gpt2"]
    flags = {"do_sample": True, "num_beams": beams, **WARPERS[warper], **LOGITS[logits]}
    flags |= {"max_new_tokens": NEW + 2, "min_new_tokens": 2}
    prepared, _ = model._prepare_generation_config(None, **flags)
    model._prepare_special_tokens(prepared, True)
    prepared.max_length = PROMPT + prepared.max_new_tokens
    processors = model._get_logits_processor(prepared, PROMPT, None, None, None, "cpu", {})
    choice = choose(GenerationConfig(**flags), loaded, EOS, [PROMPT] * 4)
    transform = jax.jit(choice.strategy.transform)
    draw = np.random.default_rng(0)
    for count in range(NEW + 2):
        text = draw.integers(0, 6, (4, PROMPT + count))
        # Distinct numbers: the truncations leave ties undefined.
        scores = np.stack([draw.permutation(VOCAB) for _ in text]) * 0.21 - 3.0
        scores = jax.nn.log_softmax(jnp.asarray(scores, jnp.float32))
        want = processors(torch.tensor(text), torch.tensor(np.asarray(scores))).numpy()
        new = np.zeros((4, 1, 1, NEW + 2), np.int32)
        new[:, 0, 0, :count] = text[:, PROMPT:]
        prefix = Prefix(
            text[:, :PROMPT].astype(np.int32),
            np.full(4, PROMPT, np.int32),
            new,
            np.full((4, 1, 1), count, np.int32),
        )
        got = np.asarray(transform(scores[:, None, None], prefix))[:, 0, 0]
        np.testing.assert_allclose(got, want, 1e-5, 1e-5)


def test_every_parameter_of_transformers_is_known():
    names = set(vars(transformers.GenerationConfig()))
    assert names <= set(decoding_jax.text.generation_config.PARAMETERS)
    defaults = transformers.GenerationConfig._get_default_generation_params()
    ours = GenerationConfig()
    assert {n: getattr(ours, n) for n in defaults if n not in DIFFERENT} == {
        n: v for n, v in defaults.items() if n not in DIFFERENT
    }


# A maximum length of 20 counts new tokens alone, as there; what is refused has no default.
DIFFERENT = (
    "max_length",
    "assistant_lookbehind",
    "target_lookbehind",
)


def test_a_file_is_read_by_both(tmp_path):
    config = GenerationConfig(num_beams=3, eos_token_id=[1, 2], early_stopping="never")
    config.save(tmp_path)
    read = transformers.GenerationConfig.from_pretrained(tmp_path)
    assert (read.num_beams, read.eos_token_id, read.early_stopping) == (3, [1, 2], "never")
    read.save_pretrained(tmp_path / "again")
    again = GenerationConfig.load(tmp_path / "again")
    assert {k: again.values[k] for k in config.values} == dict(config.values)
