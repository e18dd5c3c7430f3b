"""Progress bars: on a terminal, and nowhere else."""

import io

import pytest
from rich.console import Console

from pagraph.cli.terminal import progress_bar


def test_none_in_a_pipe(capfd):
    with progress_bar("working") as progress:
        assert progress is None
    assert capfd.readouterr() == ("", "")


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
