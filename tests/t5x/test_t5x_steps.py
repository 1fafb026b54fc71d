"""The quick form of the benchmark beside T5X's own functions."""

import json
import warnings

import jax
import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("t5x.models", reason="T5X is not installed", exc_type=ImportError)

from experiments.benchmarks import t5x_steps

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.exhaustive
def test_the_quick_form(tmp_path, capsys):
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        for _ in range(2):  # The second finds its point measured.
            t5x_steps.main(["--quick", "--out", str(tmp_path)])
    found = json.loads((tmp_path / "t5x_steps.json").read_text())
    assert list(found) == ["tiny top-k 40"]
    assert set(found["tiny top-k 40"]["ms_per_step"]) == set(t5x_steps.WAYS)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert lines[:2] == lines[2:]
