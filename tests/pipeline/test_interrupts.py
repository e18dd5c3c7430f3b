"""Ctrl-C in a loader's pass, at any place where CPython looks for signals."""

import gc
import os
import re
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest
from fresh_processes import HANGING, forked_python

from pagraph._postponed import finalize

pytestmark = pytest.mark.attack

_TRIALS = 4  # of 40 places


@pytest.mark.parametrize("first", [0, _TRIALS])
def test_it_arrives_and_the_loader_works(tmp_path, first):
    """In processes of their own, as tracers that raise are hard on an interpreter."""
    command = [sys.executable, "-m", "tests.chaos", "--part", "interrupts", "--seconds", "0"]
    command += ["--seed", str(first), "--trials", str(_TRIALS), "--keep", str(tmp_path / "kept")]
    done = subprocess.run(
        command,
        cwd=Path(__file__).parents[2],
        env=os.environ | {"CHAOS_PYTHON": forked_python()},
        capture_output=True,
        text=True,
        timeout=HANGING,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(rf"interrupts +\S {_TRIALS} +\S 0 ", done.stdout), done.stdout


def test_finalisers_of_several_threads_at_once():
    class Item:
        pass

    together, rounds, kept = threading.Barrier(3, timeout=HANGING), 100, []

    def work():
        together.wait()
        together.wait()

    def drop():
        for _ in range(rounds):
            item = Item()
            finalize(item, work)
            del item

    def begin_others():
        for _ in range(rounds):
            together.wait()
            kept.append(Item())
            finalize(kept[-1], list)  # while two callbacks are at work
            together.wait()

    threads = [threading.Thread(target=each) for each in (drop, drop, begin_others)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    assert len(kept) == rounds


def test_one_in_a_finaliser_comes_after_it():
    class Item:
        pass

    item, done = Item(), []
    finalize(item, partial(signal.raise_signal, signal.SIGINT))

    def drop():
        nonlocal item
        del item
        done.append("dropped")
        time.sleep(60)

    with pytest.raises(KeyboardInterrupt):
        drop()
    assert done == ["dropped"]
