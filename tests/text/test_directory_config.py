"""The ``generation_config.json`` of a model's directory chooses the strategy by itself."""

import json
import shutil

import jax
import pytest
from text_fakes import TABLE, Digits

import decoding_jax
from decoding_jax import Stop
from decoding_jax.text import embedded
from decoding_jax.text.generation_config import DirectoryConfig

TEXTS = ["1 2 3", "4 5"]
PATH = "models/digits/generation_config.json"


def digits(**values):
    """The tokenizer of a directory whose file has these values."""
    tokenizer = Digits()
    tokenizer.generation_config = DirectoryConfig(PATH, json.dumps(values))
    return tokenizer


def tokens(rows):
    return [[c.tokens for c in row] for row in rows]


BEAMS = {"num_beams": 2, "length_penalty": 3.0}


@pytest.mark.exhaustive
def test_beams_of_the_file_unless_the_caller_says_otherwise():
    beams, settings = digits(**BEAMS), {"max_new_tokens": 5}
    by_file = tokens(decoding_jax.generate(TABLE, beams, TEXTS, **settings))
    assert by_file == tokens(decoding_jax.generate(TABLE, Digits(), TEXTS, **settings, **BEAMS))
    greedy = tokens(decoding_jax.generate(TABLE, Digits(), TEXTS, **settings))
    assert greedy != by_file
    config = decoding_jax.GenerationConfig(max_new_tokens=5)
    said = ({"strategy": "greedy"}, {"num_beams": 1, "length_penalty": 1.0}, {"config": config})
    for otherwise in said:
        assert tokens(decoding_jax.generate(TABLE, beams, TEXTS, **settings, **otherwise)) == greedy


@pytest.mark.exhaustive
def test_streams_follow_the_file_and_parameters_change_it():
    beams = digits(**BEAMS)
    strategy = {"strategy": "beam_search", "beam_size": 2, "num_return": 1, "length_penalty": 3.0}
    want = tokens(decoding_jax.generate(TABLE, Digits(), TEXTS, **strategy))
    *_, streamed = decoding_jax.stream(TABLE, beams, TEXTS, chunk=30)
    assert tokens(streamed) == want
    two = tokens(decoding_jax.generate(TABLE, beams, TEXTS, num_return_sequences=2))
    assert [len(row) for row in two] == [2, 2]
    assert [row[:1] for row in two] == want


def test_a_file_that_chooses_nothing_changes_nothing():
    of_checkpoint = {"_from_model_config": True, "bos_token_id": 5, "eos_token_id": 0}
    of_checkpoint |= {"pad_token_id": 0, "transformers_version": "4.50.0", "temperature": 1.0}
    tokenizer = digits(**of_checkpoint)
    assert tokenizer.generation_config.config() is None
    want = decoding_jax.generate(TABLE, Digits(), TEXTS, stop=Stop(max_new_tokens=5))
    got = decoding_jax.generate(TABLE, tokenizer, TEXTS, stop=Stop(max_new_tokens=5))
    assert tokens(got) == tokens(want)


@pytest.mark.parametrize(
    ("values", "settings", "message"),
    [
        (
            {"do_sample": True},
            {},
            f"key: expected a typed key such as .*, got None, and {PATH} says do_sample",
        ),
        ({"num_beams": 2}, {"stop": Stop()}, f"stop: expected None beside parameters of {PATH}"),
        ({"num_beams": 0}, {}, f"{PATH}: num_beams: expected an int of 1 or more, got 0; strat"),
        ({"new_name": 1}, {}, f"{PATH}: new_name: expected a parameter of GenerationConf"),
        ({"token_healing": True}, {}, "token_healing: expected none, got True"),
    ],
)
def test_a_file_that_cannot_be_followed(values, settings, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        decoding_jax.generate(TABLE, digits(**values), TEXTS, **settings)
    if "stop" not in settings:
        # A strategy of one's own does not read the file.
        decoding_jax.generate(TABLE, digits(**values), TEXTS, strategy="greedy")


def test_load_reads_the_file(tmp_path):
    shutil.copytree(embedded()["translation-en-fr-draft"], tmp_path / "model")
    _, tokenizer = decoding_jax.load(tmp_path / "model")
    assert tokenizer.generation_config is None
    decoding_jax.GenerationConfig(do_sample=True, num_beams=3).save(tmp_path / "model")
    _, tokenizer = decoding_jax.load(tmp_path / "model")
    assert tokenizer.generation_config.path == str(tmp_path / "model" / "generation_config.json")
    config = tokenizer.generation_config.config()
    assert (config.mode, config.num_beams) == ("beam_sample", 3)


@pytest.mark.exhaustive
def test_samples_of_the_file_need_a_key_alone():
    sampled = digits(do_sample=True, top_k=0, num_return_sequences=2)
    key = jax.random.key(0)
    settings = {"strategy": "sample", "num_samples": 2, "key": key}
    want = decoding_jax.generate(TABLE, Digits(), TEXTS, **settings)
    assert tokens(decoding_jax.generate(TABLE, sampled, TEXTS, key=key)) == tokens(want)
