"""Progress: a bar on a terminal, elsewhere a line every ten seconds."""

import io

import pytest
from rich.console import Console

from pagraph.cli.terminal import progress_bar


def test_short_work_says_nothing_in_a_pipe(capfd):
    with progress_bar("working") as progress:
        progress(1, 4)
        progress(4, 4)
    assert capfd.readouterr() == ("", "")


def test_lines_with_the_time_left_in_a_pipe(capfd, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("pagraph.cli.terminal.time.monotonic", lambda: clock[0])
    with progress_bar("writing [a]") as progress:
        for seconds, done in ((5, 1), (9, 2), (20, 4), (29, 5), (30, 6), (3640, 7)):
            clock[0] = seconds
            progress(done, 8)
    lines = [
        "writing [a]: 50%, 0:00:20 left",
        "writing [a]: 75%, 0:00:10 left",
        "writing [a]: 88%, 0:08:40 left",
    ]
    assert capfd.readouterr() == ("", "\n".join([*lines, ""]))


def test_bar_on_a_terminal():
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80)
    with progress_bar("working", console=console) as progress:
        progress(1, 4)
        progress(4, 4)
    assert "working" in screen.getvalue()
    assert "100%" in screen.getvalue()


def test_ends_when_the_work_fails():
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80)
    with pytest.raises(RuntimeError), progress_bar("working", console=console) as progress:
        progress(1, 4)
        raise RuntimeError
    assert screen.getvalue().endswith(("\x1b[2K", "\x1b[?25h", "\n", "\r"))
