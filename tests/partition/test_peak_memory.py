"""Memory and time by step."""

import gc
import mmap
import subprocess
import sys
import threading
import time

import pytest
import torch
from fresh_processes import HANGING

from pagraph.partition.steps import MemoryUse, PeakMemory, Steps


class Watched(PeakMemory):
    """Counts its looks."""

    looks = 0

    def _look(self):
        super()._look()
        self.looks += 1


def hold(megabytes, memory):
    """New memory from the system, for some looks: what this process has free would add nothing."""
    block = torch.frombuffer(mmap.mmap(-1, megabytes * 2**20), dtype=torch.uint8).fill_(1)
    enough, deadline = memory.looks + 3, time.monotonic() + HANGING
    while memory.looks < enough and time.monotonic() < deadline:
        time.sleep(0.01)
    return int(block[-1])


def test_sees_what_is_held_for_a_while():
    gc.collect()  # what earlier tests left must not go in between
    with Watched() as memory:
        assert hold(200, memory) == 1
    use = memory.use
    assert use.peak_bytes >= use.before_bytes + 150 * 2**20
    assert use.added_bytes == use.peak_bytes - use.before_bytes
    assert 150 * 2**20 < use.private_bytes <= use.peak_bytes


def test_a_later_lower_peak_is_not_the_earlier_higher_one():
    gc.collect()
    with Watched() as first:
        hold(300, first)
    with Watched() as second:
        hold(50, second)
    assert second.use.peak_bytes < first.use.peak_bytes - 150 * 2**20


@pytest.mark.processes
def test_what_nobody_saw_is_not_told():
    """The watching thread cannot run while one call holds the interpreter's lock."""
    code = (
        "import sys\n"
        "from pagraph.partition.steps import PeakMemory\n"
        "sys.setswitchinterval(100)\n"
        "with PeakMemory() as memory:\n"
        "    b'x' * 400_000_000\n"
        "print(memory.use.peak_bytes > 400_000_000, memory.use.private_bytes)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=HANGING
    )
    assert (done.stdout, done.stderr) == ("True None\n", "")


def test_ends_with_the_block():
    with pytest.raises(RuntimeError, match="boom"), PeakMemory():
        raise RuntimeError("boom")
    assert not [thread for thread in threading.enumerate() if thread.name == "pagraph-memory"]


def test_without_proc_the_highest_of_the_life_is_told(monkeypatch, tmp_path):
    for name in ("_STATM", "_STATUS"):
        monkeypatch.setattr(f"pagraph.partition.steps.{name}", tmp_path / "none")
    with PeakMemory() as memory:
        pass
    assert memory.use.private_bytes is None
    assert memory.use.peak_bytes >= memory.use.before_bytes > 0


def test_json():
    assert MemoryUse(5, 3, None).to_json() == {
        "peak_bytes": 5,
        "before_bytes": 3,
        "private_bytes": None,
    }


def test_steps_are_recorded_in_order_and_only_when_they_end():
    steps = Steps()
    with steps("dividing"):
        time.sleep(0.1)
    with pytest.raises(RuntimeError), steps("writing"):
        raise RuntimeError
    assert list(steps.seconds) == list(steps.memory) == ["dividing"]
    assert steps.seconds["dividing"] >= 0.1
