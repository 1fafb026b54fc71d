"""Batches of columns whose inputs have schemas of their own."""

import functools
import json

import jax
import numpy as np
import pytest
from languages import Pieces

import decoding_jax
from decoding_jax import infer
from decoding_jax.testing import TableLM

PIECES = [*'"abc{}[]:, 12', "true", "false", "null", '":', '["', "ab"]


class Letters(Pieces):
    """Texts of the pieces of one character."""

    def encode(self, text):
        return [PIECES.index(character) for character in text]


TOKENIZER = Letters(PIECES)
MODEL = TableLM.random(jax.random.key(0), TOKENIZER.vocab_size, sharpness=2.0)
WORDS = {"type": "array", "items": {"type": "string", "pattern": "[ab]{1,2}"}, "maxItems": 2}
PAIR = {
    "type": "object",
    "properties": {"a": {"type": "boolean"}, "b": {"enum": [1, 2, None]}},
    "required": ["a"],
}
LISTS = {"type": "array", "items": {"$ref": "#"}, "maxItems": 2}
SCHEMAS = [
    PAIR,
    {"enum": ["a", "ab", 1]},
    None,
    json.dumps(WORDS),
    {"type": "boolean"},
    {"type": "text"},
    LISTS,
    5,
    {"const": [1, 2]},
    {"enum": [np.float32(1)]},
    {"anyOf": [{"type": "null"}, WORDS]},
    {"type": "integer", "minimum": 0, "maximum": 12},
]
TEXTS = [character * (1 + i % 3) for i, character in enumerate("abcabcabc121")]
FAULTS = {
    5: "json_schema.type: expected one of null",
    7: "not a JSON Schema: 'schema' is 5",
    9: "not a JSON Schema: 'schema': Object of type float32 is not JSON serializable",
}
OPTIONS = {"seed": 5, "batch_size": 2, "max_input_length": 4, "max_depth": 3, "regex": "[12]{1,3}"}
TRACED = []


def counted(logits, prefix):
    TRACED.append(logits.shape)
    return logits


SAMPLE = functools.partial(decoding_jax.sample, num_samples=2, max_new_tokens=12, transform=counted)


def decoder(strategy=SAMPLE, **options):
    options = {**OPTIONS, "json_schemas": "schema", **options}
    return infer.BatchDecoder((MODEL, TOKENIZER), strategy, **options)


def columns(index):
    schemas = [SCHEMAS[i] for i in index]
    return {"inputs": [TEXTS[i] for i in index], "index": index, "schema": schemas}


def check(i, outputs, error):
    """Checks the completions of input i, which are finished where no limit has cut them."""
    if i in FAULTS:
        assert error.startswith(FAULTS[i])
        assert outputs == []
        return
    assert error is None
    import jsonschema

    schema = json.loads(SCHEMAS[i]) if isinstance(SCHEMAS[i], str) else SCHEMAS[i]
    for output in outputs:
        if schema is None:
            assert set(output["text"]) <= set("12")
        elif output["finished"]:
            jsonschema.validate(json.loads(output["text"]), schema)


@pytest.mark.release
def test_inputs_of_batches_have_schemas_of_their_own():
    """Batches in any order have the job's records; what fits the tables compiles nothing."""
    expected = []
    items = [
        infer.Item(t, json_schema=s if i not in FAULTS else None)
        for i, (t, s) in enumerate(zip(TEXTS, SCHEMAS, strict=True))
    ]
    infer.run((MODEL, TOKENIZER), items, SAMPLE, report=expected.append, **OPTIONS)
    made = decoder()
    finished = 0
    for number, index in enumerate(([10, 4, 0, 7], [6], [11, 9, 1, 3, 8, 5], [2])):
        batch = made({k: np.array(v, object) for k, v in columns(index).items()})
        for i, outputs, error in zip(index, batch["outputs"], batch["error"], strict=True):
            check(i, outputs, error)
            finished += sum(output["finished"] for output in outputs)
            assert i in FAULTS or outputs == expected[i]["outputs"]
        if number == 2:
            count = len(TRACED)
    assert finished > 10
    assert made({"inputs": [], "index": [], "schema": []})["error"].tolist() == []
    again = made(columns([3, 0, 11, 1]))
    assert again["outputs"].tolist() == [expected[i]["outputs"] for i in (3, 0, 11, 1)]
    assert len(TRACED) == count


def test_wrong_columns_of_schemas_are_one_line():
    with pytest.raises(ValueError, match="batch: expected a column 'schema', got"):
        decoder()({"inputs": [], "index": []})
    with pytest.raises(ValueError, match="batch: expected as many schemas as texts, got 1 for 0"):
        decoder()({"inputs": [], "index": [], "schema": [None]})

    def without(model, prompt):
        raise NotImplementedError

    with pytest.raises(ValueError, match="json_schemas: expected none for a strategy that takes"):
        decoder(without, regex=None)
