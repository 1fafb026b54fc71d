"""The rate, the estimate of the time left, and the output of the progress bar."""

import pytest

from decoding_jax.batches import compilations
from decoding_jax.infer import progress


@pytest.fixture
def advance_time(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(compilations.time, "monotonic", lambda: now[0])

    def advance(seconds):
        now[0] += seconds

    return advance


def test_neither_skipped_inputs_nor_compilation_are_in_the_estimate(advance_time):
    compiling = compilations.Stopwatch()
    bar = progress.Bar(100, compiling)
    advance_time(7)
    bar.skip(40)
    assert bar.format_dict["rate"] is None
    assert "40/100" in str(bar)
    assert "<?," in str(bar)
    with bar.working:
        with compiling:
            advance_time(30)
        advance_time(5)
        bar.update(10)
    advance_time(3)
    bar.skip(20)
    assert bar.format_dict["rate"] == 2.0
    assert "70/100" in str(bar)
    assert "<00:15," in str(bar)
    with bar.working, compiling:
        advance_time(60)  # A running compilation is left out as well.
        assert bar.format_dict["rate"] == 2.0
    bar.close()


def test_without_a_terminal_each_report_is_one_line(capsys):
    bar = progress.Bar(3)
    bar.update(1)
    bar.refresh()
    bar.update(2)
    bar.close()
    printed = capsys.readouterr().err
    assert printed.endswith("\n")
    assert "\r" not in printed
    lines = printed.splitlines()
    assert all(line.startswith("decoding: ") for line in lines)
    assert "0/3" in lines[0]
    assert "3/3" in lines[-1]
