"""The text that the model of code is trained on."""

import itertools

import numpy as np
import pytest
import tokenizers

from experiments import code_data as data

SOURCE = '''# An example.
class Pair:
    def swap(self, first, second):
        """Swaps two values.

        In place.
        """
        first, second = second, first
        return first, second
\tx = "é→" \x0c
'''


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    path = tmp_path_factory.mktemp("pieces") / "tokenizer.json"
    data.train_tokenizer([data.File("a.py", SOURCE * 20)], path, 300)
    return tokenizers.Tokenizer.from_file(str(path))


def test_every_character_is_kept(tokenizer):
    for text in (SOURCE, "\n\n  \t\r\n", "🙂 never seen"):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.get_vocab_size() == 300
    assert tokenizer.token_to_id(data.END) == 0
    ids = data.encode(tokenizer, [data.File("a", SOURCE), data.File("b", "x")])
    assert np.flatnonzero(ids == 0).tolist() == [0, len(ids) - 3, len(ids) - 1]


def test_files_are_read_and_split(tmp_path):
    kept = [f"m{i}.py" for i in range(30)]
    for name in (*kept, "test/a.py", "_sysconfigdata__x.py", "empty.py", "b.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("" if name == "empty.py" else "x = 1\n")
    (tmp_path / "latin.py").write_bytes("# -*- coding: latin-1 -*-\n# é\n".encode("latin-1"))
    files = data.read_files(tmp_path)
    assert {f.name for f in files} == {*kept, "latin.py"}
    assert "# é" in next(f.text for f in files if f.name == "latin.py")
    train, held_out = data.split(files, 4)
    assert set(train) | set(held_out) == set(files)
    assert len(train) + len(held_out) == len(files)
    # A file's side does not depend on the others.
    assert set(data.split(files[5:], 4)[1]) == set(held_out) & set(files[5:])
    with pytest.raises(ValueError, match=r"data: expected a folder"):
        data.read_files(tmp_path / "nothing")
    with pytest.raises(ValueError, match="every: expected a number that holds out"):
        data.split(files, 1)


def test_batches_continue_from_any_step():
    tokens = np.arange(1000, dtype=np.int32)
    batches = data.Batches(tokens, 11, 4, seed=0)
    assert batches.steps_per_epoch == 24
    first = [*itertools.islice(batches(0), 60)]
    for a, b in zip(first[30:], batches(30), strict=False):
        np.testing.assert_array_equal(a, b)
    # No token is predicted twice in a pass.
    predicted = np.concatenate([b[:, 1:].ravel() for b in first[:24]])
    assert len(set(predicted.tolist())) == predicted.size == 24 * 40
    assert all((np.diff(b) == 1).all() for b in first)
    with pytest.raises(ValueError, match="data: expected 51 or more, got 40 tokens"):
        data.Batches(np.arange(40), 11, 4, seed=0)


@pytest.mark.parametrize("size", [5, 8, 9, 11, 12, 13, 40])
def test_windows_score_every_token_once(size):
    scored = []
    for window in data.windows(np.arange(size), 8):
        assert len(window.tokens) <= 8
        assert window.context >= min(4, window.tokens[0] + 1)
        scored += window.tokens[window.context :].tolist()
    assert scored == [*range(1, size)]


def test_examples_are_functions_cut_between_lines(tokenizer):
    body = SOURCE.rpartition("\t")[0]
    found = data.examples(tokenizer, [data.File("a.py", body)], prompt=30, reference=8)
    (example,) = found
    assert (example.file, example.line, example.domain) == ("a.py", 3, "docstring or comment")
    assert example.prompt.startswith("    def swap")
    assert not example.prompt.endswith("\n")
    assert example.prompt + example.reference in body
    assert len(tokenizer.encode(example.reference).ids) == 8
    (example,) = data.examples(tokenizer, [data.File("a.py", body)], prompt=40, reference=8)
    assert example.domain == "code"
    assert data.examples(tokenizer, [data.File("a.py", body)], prompt=40, reference=200) == []
