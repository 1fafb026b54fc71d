"""Inputs of a job with stop strings of their own end as ``generate`` ends them."""

import functools
import json

import jax
import pytest
from infer_fakes import Digits

import decoding_jax
from decoding_jax import Stop, infer
from decoding_jax.testing import TableLM
from decoding_jax.text.token_texts import concatenated

OWN = [["12", "3"], None, [], "4", ["5", "16"], None]
TEXTS = ["1 2 3", "4", "5 6 1 2 3 4 5", "2 2", "6 5 4 3 2 1", "3 3 3"]
OF_JOB = ["2"]
GREEDY = functools.partial(decoding_jax.greedy, max_new_tokens=8)


class Texts(Digits):
    eos_ids = ()

    def token_texts(self, size):
        return concatenated([b"", *(b"%d" % i for i in range(1, size))])


@pytest.fixture(scope="module")
def model():
    return TableLM.random(jax.random.key(0), 7, sharpness=0.1), Texts()


def source(folder, own=OWN, **settings):
    lines = [{"inputs": text, "stop": o} for text, o in zip(TEXTS, own, strict=False)]
    (folder / "inputs.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return infer.JsonLines(str(folder / "inputs.jsonl"), stop_strings="stop", **settings)


@pytest.mark.exhaustive
def test_each_input_ends_with_its_own_strings_or_with_those_of_the_job(model, tmp_path):
    made = []
    settings = {"stop": Stop(strings=OF_JOB), "batch_size": 2, "max_input_length": 8}
    infer.run(model, source(tmp_path), GREEDY, report=made.append, **settings)
    lists = [OF_JOB if own is None else own for own in OWN]
    rows = decoding_jax.generate(*model, TEXTS, stop_strings=lists, max_new_tokens=8)
    found = [[(o["text"], o["finished"]) for o in record["outputs"]] for record in made]
    assert found == [[(c.text, c.finished) for c in row] for row in rows]
    ends = [finished for ((_, finished),) in found]
    assert any(ends)
    assert not all(ends)


def test_what_is_no_stop_string_is_a_fault_of_its_input(tmp_path):
    items = list(source(tmp_path, [3, [""], ["\ufffd"], "1", None]))
    assert [item.error is None for item in items] == [False, False, False, True, True]
    assert items[0].error == "not stop strings: 'stop' is 3"
    assert [item.stop_strings for item in items[3:]] == [("1",), None]


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([infer.Item("1", stop_strings=[""])], "stop_strings: expected a string, .*, got ''"),
        (
            [infer.Item("1", stop_strings=[f"{i:03}" for i in range(129)])],
            "stop_strings: expected at most 128 different ones of all inputs, got 129",
        ),
    ],
)
def test_strings_that_cannot_be_compiled_are_an_error_before_decoding(model, items, message):
    with pytest.raises(ValueError, match=message):
        infer.run(model, items, GREEDY, report=list, max_input_length=8)
