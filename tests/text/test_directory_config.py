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


@pytest.mark.release
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
        (
            {"forced_bos_token_id": [5, 6]},
            {},
            rf"{PATH}: forced_bos_token_id: expected one token id, got [5, 6]; strategy",
        ),
        ({"bad_words_ids": []}, {}, rf"{PATH}: bad_words_ids: expected lists of token ids, such"),
        ({"eos_token_id": "</s>", "num_beams": 2}, {}, f"{PATH}: eos_token_id: expected a token "),
        ({"token_healing": True}, {}, "token_healing: expected none, got True"),
    ],
)
def test_a_file_that_cannot_be_followed(values, settings, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(").replace("[", r"\[")):
        decoding_jax.generate(TABLE, digits(**values), TEXTS, **settings)
    if "stop" not in settings:
        # A strategy of one's own does not read the file.
        decoding_jax.generate(TABLE, digits(**values), TEXTS, strategy="greedy")


@pytest.mark.parametrize(
    "values",
    [
        {"suppress_tokens": [], "begin_suppress_tokens": []},
        {"forced_bos_token_id": None, "new_name": None, "top_k": None, "_commit_hash": "1"},
    ],
)
def test_what_asks_for_nothing(values):
    want = tokens(decoding_jax.generate(TABLE, Digits(), TEXTS, num_beams=2, max_new_tokens=5))
    file = digits(**{"num_beams": 2, "max_new_tokens": 5, **values})
    assert tokens(decoding_jax.generate(TABLE, file, TEXTS)) == want


def test_what_is_unknown_is_said_and_ignored():
    unknown = digits(num_beam=2, lang_to_id={"<|en|>": 7})
    message = f"{PATH}: num_beam \\(num_beams is near\\), lang_to_id: unknown to Generat"
    with pytest.warns(UserWarning, match=message):
        rows = decoding_jax.generate(TABLE, unknown, TEXTS, max_new_tokens=5)
    assert tokens(rows) == tokens(decoding_jax.generate(TABLE, Digits(), TEXTS, max_new_tokens=5))


def test_load_reads_the_file(tmp_path):
    shutil.copytree(embedded()["translation-en-fr-draft"], tmp_path / "model")
    _, tokenizer = decoding_jax.load(tmp_path / "model")
    assert tokenizer.generation_config is None
    decoding_jax.GenerationConfig(do_sample=True, num_beams=3).save(tmp_path / "model")
    _, tokenizer = decoding_jax.load(tmp_path / "model")
    assert tokenizer.generation_config.path == str(tmp_path / "model" / "generation_config.json")
    config = tokenizer.generation_config.config()
    assert (config.mode, config.num_beams) == ("beam_sample", 3)


@pytest.mark.parametrize(
    ("settings", "values"),
    [
        ({"max_length": 9, "num_beams": 3, "top_k": None}, {"max_length": 9, "num_beams": 3}),
        ({"use_cache": False, "num_beams": 1, "temperature": 1.0, "eos_token_id": 1}, None),
        ({"force_bos_token_to_be_generated": True, "bos_token_id": 7}, {"forced_bos_token_id": 7}),
        ({"decoder": {"num_beams": 2, "max_length": 9}, "num_beams": 3},
         {"num_beams": 3, "max_length": 9}),
        ({"text_config": {"do_sample": True}}, {"do_sample": True}),
    ],
)  # fmt: skip
def test_settings_among_those_of_an_old_network(settings, values, tmp_path):
    """``config.json`` holds where there is no ``generation_config.json``."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bart", **settings}))
    found = DirectoryConfig.read(tmp_path)
    assert values == (found and dict(found.config().values))
    assert found is None or found.path == str(tmp_path / "config.json")
    (tmp_path / "generation_config.json").write_text("{}")
    assert DirectoryConfig.read(tmp_path).config() is None


@pytest.mark.parametrize(
    ("file", "value", "message"),
    [
        ("generation_config.json", {"eos_token_id": "</s>"}, "eos_token_id: expected a token"),
        ("generation_config.json", {"eos_token_id": [1, "a"]}, "eos_token_id: expected a token id"),
        ("generation_config.json", {"decoder_start_token_id": [1, 2]}, "expected one token id"),
        ("generation_config.json", {"decoder_start_token_id": -1}, "expected one token id from 0"),
        ("generation_config.json", [], "expected an object, got list"),
        ("tokenizer_config.json", [], "expected a JSON object, got a list"),
        ("special_tokens_map.json", [], "expected a JSON object, got a list"),
    ],
)  # fmt: skip
def test_files_of_another_kind_are_one_line(file, value, message, tmp_path):
    shutil.copytree(embedded()["translation-en-fr-draft"], tmp_path / "model")
    (tmp_path / "model" / file).write_text(json.dumps(value))
    with pytest.raises(ValueError, match=f"{file}: .*{message}") as error:
        decoding_jax.load(tmp_path / "model")
    assert "\n" not in str(error.value)


@pytest.mark.release
def test_the_start_token_of_a_file_and_of_a_call(tmp_path):
    path = shutil.copytree(embedded()["translation-en-fr-draft"], tmp_path / "model")
    model, tokenizer = decoding_jax.load(path)
    settings = {"strategy": "greedy", "max_new_tokens": 6}
    want = dict.fromkeys((model.config.start_id, 7, 9))
    for start in want:
        given = {"decoder_start_token_id": start, "max_new_tokens": 6}
        want[start] = tokens(decoding_jax.generate(model, tokenizer, ["Good morning!"], **given))
    assert len({str(rows) for rows in want.values()}) == 3
    for values, start in (
        ({"decoder_start_token_id": 7, "bos_token_id": 9}, 7),
        ({"bos_token_id": [9]}, 9),
        ({"num_beams": 1}, model.config.start_id),
    ):
        (path / "generation_config.json").write_text(json.dumps(values))
        model, tokenizer = decoding_jax.load(path)
        assert model.config.start_id == start
        rows = decoding_jax.generate(model, tokenizer, ["Good morning!"], **settings)
        assert tokens(rows) == want[start]
    config = json.loads((path / "config.json").read_text()) | {"decoder_start_token_id": 10**6}
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        ValueError, match=r"config\.json: decoder_start_token_id: expected one token"
    ):
        decoding_jax.load(path)
    with pytest.raises(ValueError, match="decoder_start_token_id: expected a token id from 0 to"):
        decoding_jax.generate(model, tokenizer, ["1"], decoder_start_token_id=10**6)
    with pytest.warns(UserWarning, match="decoder_start_token_id=7: no effect with a TableLM"):
        decoding_jax.generate(TABLE, Digits(), TEXTS, decoder_start_token_id=7)


@pytest.mark.release
def test_samples_of_the_file_need_a_key_alone():
    sampled = digits(do_sample=True, top_k=0, num_return_sequences=2)
    key = jax.random.key(0)
    settings = {"strategy": "sample", "num_samples": 2, "key": key}
    want = decoding_jax.generate(TABLE, Digits(), TEXTS, **settings)
    assert tokens(decoding_jax.generate(TABLE, sampled, TEXTS, key=key)) == tokens(want)
