"""The progress bar: its rate, its time left, its lines."""

import pytest

from decoding_jax.infer import progress


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])

    def passes(seconds):
        now[0] += seconds

    return passes


def test_neither_skipped_inputs_nor_compilation_are_in_the_estimate(clock):
    compiling = progress.Stopwatch()
    bar = progress.Bar(100, compiling)
    clock(7)
    bar.skip(40)
    assert bar.format_dict["rate"] is None
    assert "40/100" in str(bar)
    assert "<?," in str(bar)
    with bar.working:
        with compiling:
            clock(30)
        clock(5)
        bar.update(10)
    clock(3)
    bar.skip(20)
    assert bar.format_dict["rate"] == 2.0
    assert "70/100" in str(bar)
    assert "<00:15," in str(bar)
    with bar.working, compiling:
        clock(60)  # not even while it lasts
        assert bar.format_dict["rate"] == 2.0
    bar.close()


def test_without_a_terminal_a_report_is_a_line(capsys):
    bar = progress.Bar(3)
    bar.update(1)
    bar.refresh()
    bar.update(2)
    bar.close()
    said = capsys.readouterr().err
    assert said.endswith("\n")
    assert "\r" not in said
    lines = said.splitlines()
    assert all(line.startswith("decoding: ") for line in lines)
    assert "0/3" in lines[0]
    assert "3/3" in lines[-1]
