"""Sources and their faulty lines, and printing."""

import json
import sys
import types

import pytest

from decoding_jax.infer import Item, JsonLines, Printer, SeqioTask, TextLines, records
from decoding_jax.text import Completion


def test_text_lines(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_bytes("one\r\ntwo \u2028 three\n\n".encode() + b"bad \xff byte\n" + b"last")
    assert list(TextLines(str(path))) == [
        Item("one"),
        Item("two \u2028 three"),
        Item("", "empty"),
        Item("bad \\xff byte", "not UTF-8"),
        Item("last"),
    ]


def test_json_lines(tmp_path):
    path = tmp_path / "lines.jsonl"
    lines = [
        '{"en": "one", "fr": "un"}',
        "",
        '{"en": "two"',
        '["two"]',
        '{"fr": "trois"}',
        '{"en": 4}',
        '{"en": " "}',
        '{"en": "\\ud800"}',
        "[" * 100_000,
        '{"en": "last"}',
    ]
    path.write_text("\n".join(lines))
    made = list(JsonLines(str(path), field="en"))
    assert len(made) == len(lines)
    assert made[0] == Item("one")
    assert made[-1] == Item("last")
    assert [item.error.partition(":")[0] for item in made[1:-1]] == [
        "empty",
        "broken JSON",
        "not a JSON object",
        "no field",
        "not text",
        "empty",
        "not Unicode text",
        "broken JSON",
    ]
    assert made[2].inputs == lines[2]
    for item in made:  # Every item can be written as a record.
        record = records.fault(0, item.inputs, item.error or "", seed=0)
        written = json.loads(records.to_line(record).encode())
        assert written["inputs"] == item.inputs[:1000]
        assert written.get("inputs_length", len(item.inputs)) == len(item.inputs)


@pytest.mark.parametrize(("source", "line"), [(TextLines, "one"), (JsonLines, '{"inputs": "one"}')])
def test_a_byte_order_mark_is_no_part_of_the_first_input(tmp_path, source, line):
    path = tmp_path / "marked"
    path.write_text(f"\ufeff{line}\n\ufeff\n", encoding="utf-8")
    first, second = source(str(path))
    assert first == Item("one")
    assert second.inputs == "\ufeff"  # It is a byte order mark only at the start of the file.


def test_ids_of_json_records_are_kept(tmp_path):
    path = tmp_path / "lines.jsonl"
    lines = [
        '{"inputs": "one", "id": "a"}',
        '{"inputs": "two", "id": [1, {"b": null}]}',
        '{"inputs": 3, "id": 3}',
        '{"id": 4}',
        '{"inputs": "", "id": 5}',
        '{"inputs": "six", "id": null}',
        '{"inputs": "seven", "id": NaN}',
        '{"inputs": "eight", "id": "\\ud800"}',
    ]
    path.write_text("\n".join(lines))
    made = list(JsonLines(str(path)))
    assert [item.id for item in made] == ["a", [1, {"b": None}], 3, 4, 5, None, None, None]
    assert [item.error for item in made[:2]] == [None, None]
    kinds = [item.error.partition(":")[0] for item in made if item.error]
    assert kinds == ["not text", "no field", "empty", *["id cannot be written as JSON"] * 2]
    assert [item.inputs for item in made[6:]] == lines[6:]


def test_a_long_faulty_input_is_cut_and_its_length_recorded():
    record = records.fault(3, "x" * 100_000, "cannot be tokenized: " + "x" * 100_000, seed=0)
    assert record["inputs"] == "x" * 1000
    assert record["inputs_length"] == 100_000
    assert record["error"].endswith("x [...] (100,021 characters)")
    assert len(records.to_line(record)) < 2200
    assert records.count_faults([record]) == {"cannot be tokenized": 1}
    assert "inputs_length" not in records.fault(3, "x" * 1000, "empty", seed=0)


@pytest.mark.parametrize("path", ["ftp://host/a.txt", "https://host/a.txt", "ftp:/host/a.txt"])
@pytest.mark.parametrize("source", [TextLines, JsonLines])
def test_urls_are_refused_as_inputs(source, path):
    with pytest.raises(
        ValueError, match=f"^path: expected a local path, or a URL of .*, got '{path}'"
    ):
        source(path)


@pytest.mark.parametrize("source", [TextLines, JsonLines])
def test_a_file_that_is_not_there(source):
    with pytest.raises(ValueError, match=r"^nowhere\.txt: no such file"):
        source("nowhere.txt")


def test_a_seqio_task_without_seqio_is_an_error_of_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "seqio", None)
    with pytest.raises(ValueError, match="expected an installed SeqIO"):
        SeqioTask("wmt")


def test_a_seqio_mixture_by_its_interface(monkeypatch):
    """This test replaces SeqIO; the next one uses it if it is installed."""

    class Examples(list):
        def as_numpy_iterator(self):
            return iter(self)

    def task(name, examples, splits=("validation",)):
        vocabulary = types.SimpleNamespace(decode=lambda ids: "".join(map(chr, ids)))
        return types.SimpleNamespace(
            name=name,
            splits=splits,
            output_features={"inputs": types.SimpleNamespace(vocabulary=vocabulary)},
            get_dataset=lambda **kwargs: Examples(examples),
        )

    tasks = {
        "a": task("a", [{"inputs_pretokenized": b"one"}, {"inputs_pretokenized": b""}]),
        "b": task("b", [{"inputs": [116, 119, 111]}]),
        "c": task("c", [], splits=("train",)),
    }
    fake = types.ModuleType("seqio")
    fake.get_mixture_or_task = lambda name: name
    fake.get_subtasks = lambda name: [tasks[n] for n in name]
    monkeypatch.setitem(sys.modules, "seqio", fake)
    assert list(SeqioTask("abc")) == [Item("one"), Item("", "empty"), Item("two")]
    with pytest.raises(
        ValueError, match=r"SeqioTask\.split: expected a split of 'c', got 'validation'"
    ):
        SeqioTask("c")
    with pytest.raises(
        ValueError, match=r"SeqioTask\.feature: expected inputs of 'a', got 'targets'"
    ):
        SeqioTask("a", feature="targets")


@pytest.mark.release
def test_a_seqio_task():
    import seqio
    import tensorflow as tf

    feature = seqio.Feature(seqio.ByteVocabulary())
    seqio.TaskRegistry.add(
        "decoding_jax_three_lines",
        source=seqio.FunctionDataSource(
            lambda split, shuffle_files, seed=None: tf.data.Dataset.from_tensor_slices(
                {"inputs": ["one", "zwei", "três"], "targets": ["1", "2", "3"]}
            ),
            splits=["validation"],
        ),
        preprocessors=[seqio.preprocessors.tokenize, seqio.preprocessors.append_eos],
        output_features={"inputs": feature, "targets": feature},
    )
    seqio.MixtureRegistry.add("decoding_jax_mixture", [("decoding_jax_three_lines", 1)])
    for name in ("decoding_jax_three_lines", "decoding_jax_mixture"):
        source = SeqioTask(name)
        assert list(source) == list(source) == [Item("one"), Item("zwei"), Item("três")]
    with pytest.raises(ValueError, match="decoding_jax_four_lines"):
        SeqioTask("decoding_jax_four_lines")


def test_a_score_that_is_not_finite_is_null():
    lane = Completion("a", [1], log_prob=float("-inf"), score=float("nan"), finished=True)
    [output] = records.decoded(0, "x", [lane], seed=0)["outputs"]
    assert output["log_prob"] is None
    assert output["score"] is None


def test_equal_scores_rank_in_their_order_and_a_missing_one_last():
    lanes = [
        Completion("nan", [1], log_prob=0.0, score=float("nan"), finished=True),
        Completion("b", [1], log_prob=-2.0, score=-1.0, finished=True),
        Completion("c", [1], log_prob=-1.0, score=-1.0, finished=True),
    ]
    outputs = records.decoded(0, "x", lanes, seed=0)["outputs"]
    assert [o["rank"] for o in outputs] == [3, 1, 2]


def test_printing(capsys):
    lanes = [
        Completion("never ends", [1], log_prob=-12.345, score=-12.345, finished=False),
        Completion("twice", [1], log_prob=-0.126, score=-0.126, finished=True),
        Completion("once", [1], log_prob=-3.0, score=-3.0, finished=True),
        Completion("twice", [1, 2], log_prob=-4.0, score=-4.0, finished=True),
    ]
    record = records.decoded(4, "input", lanes, seed=0)
    Printer(limit=2)(record)
    assert capsys.readouterr().out == (
        "[5] input\n"
        "    rank  log-prob  drawn  text\n"
        "       1     -0.13    2/4  twice\n"
        "       2     -3.00    1/4  once\n"
        "          and 1 more\n"
        "\n"
    )
    Printer(merge_duplicates=False)(record)
    out = capsys.readouterr().out.splitlines()
    assert out[1] == "    rank  log-prob  text"
    assert out[4:6] == ["       3     -4.00  twice", "       4    -12.35  never ends [...]"]
    Printer()(records.fault(0, "", "empty", seed=0))
    assert capsys.readouterr().out == "[1] \n    not decoded: empty\n\n"
