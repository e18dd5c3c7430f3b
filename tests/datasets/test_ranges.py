"""Ranges cover everything once, and failures reach the caller."""

import time

import numpy as np
import pytest

from pagraph.datasets import ranges
from pagraph.datasets.ranges import for_ranges


@pytest.mark.parametrize("total", [0, 1, 9, 10, 11, 95])
def test_covers_everything_once(monkeypatch, total):
    monkeypatch.setattr(ranges, "_RANGE", 10)
    counts = np.zeros(total, dtype=int)
    calls = []

    def run(begin, end):
        counts[begin:end] += 1

    for_ranges(total, run, progress=lambda done, whole: calls.append((done, whole)))
    assert (counts == 1).all()
    assert [whole for _, whole in calls] == [total] * len(calls)
    assert [done for done, _ in calls][-1:] == ([total] if total else [])


def test_a_failure_reaches_the_caller_and_stops_the_rest(monkeypatch):
    monkeypatch.setattr(ranges, "_RANGE", 1)
    ran = []

    def run(begin, _end):
        ran.append(begin)
        time.sleep(0.001)
        if begin == 3:
            raise RuntimeError("bad range")

    with pytest.raises(RuntimeError, match="bad range"):
        for_ranges(2000, run)
    assert len(ran) < 2000


def test_a_failing_progress_reaches_the_caller():
    def progress(_done, _total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        for_ranges(10, lambda begin, end: None, progress=progress)
