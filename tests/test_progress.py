"""Progress: plain lines, few of them, with count, values and time left; bars on a terminal."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest

from plansmith.progress import Bars, Lines, duration, shown_progress


def ticking(step: float) -> Iterator[float]:
    now = 0.0
    while True:
        yield now
        now += step


def lines_of(amounts: int, seconds_each: float) -> list[str]:
    stream = io.StringIO()
    clock = ticking(seconds_each)
    lines = Lines(stream, clock=lambda: next(clock))
    lines.start("training steps", amounts)
    for number in range(amounts):
        lines.advance(loss=1 / (number + 1))
    lines.finish()
    return stream.getvalue().splitlines()


def test_a_slow_task_tells_every_step_with_values_and_time_left():
    lines = lines_of(3, 10.0)
    assert lines[0] == "training steps: 0/3"
    assert lines[1] == "training steps: 1/3 (33%), loss 1, 20 s left"
    assert lines[2] == "training steps: 2/3 (66%), loss 0.5, 10 s left"
    assert lines[-1] == "training steps: 3/3 in 40 s, loss 0.3333"


def test_a_fast_task_tells_little():
    lines = lines_of(1000, 0.01)
    assert len(lines) <= 4
    assert lines[-1].startswith("training steps: 1000/1000")


def test_an_empty_task_is_no_division_by_zero():
    assert lines_of(0, 10.0)[0] == "training steps: 0/0"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59.6, "1 min 0 s"), (200, "3 min 20 s"), (3900, "1 h 5 min")]
)
def test_durations_are_read_at_a_glance(seconds: float, text: str):
    assert duration(seconds) == text


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def fail_within_a_task(terminal: Terminal) -> None:
    with shown_progress(terminal) as progress:
        assert isinstance(progress, Bars)
        progress.start("training steps", 2)
        progress.advance(loss=0.5)
        progress.note("a note with [brackets]")
        raise RuntimeError


def test_a_terminal_gets_bars_that_are_closed_when_the_work_fails():
    terminal = Terminal()
    with pytest.raises(RuntimeError):
        fail_within_a_task(terminal)
    assert "training steps" in terminal.getvalue()
    assert "a note with [brackets]" in terminal.getvalue()
    assert terminal.getvalue().endswith("\x1b[?25h")


def test_a_pipe_gets_lines():
    stream = io.StringIO()
    with shown_progress(stream) as progress:
        progress.note("told")
    assert stream.getvalue() == "told\n"
