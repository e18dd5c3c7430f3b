"""Locks over a fork: a child does not wait for threads that only its parent has."""

import os
import signal
import threading
import warnings

import pytest
import torch

from pagraph.graph.csc import CSC
from pagraph.sampling.edge_values import MadeOfFields
from pagraph.system.threads import fork_lock

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


def exit_code_of_child(run):
    """Run in a forked child, which is ended if it hangs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a fork of several threads
        child = os.fork()
    if child == 0:
        signal.alarm(20)
        run()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def in_a_thread(run):
    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_a_child_finds_every_lock_free():
    lock, held, done = fork_lock(), threading.Event(), threading.Event()

    def hold():
        with lock:
            held.set()
            done.wait()

    def take_twice():
        for _ in range(2):
            with lock:
                pass

    thread = in_a_thread(hold)
    held.wait()
    try:
        assert exit_code_of_child(take_twice) == 0
    finally:
        done.set()
        thread.join()
    take_twice()


def test_only_one_thread_is_inside():
    lock, total = fork_lock(), [0]

    def count():
        for _ in range(2000):
            with lock:
                before = total[0]
                total[0] = before + 1

    threads = [in_a_thread(count) for _ in range(4)]
    for thread in threads:
        thread.join()
    assert total == [8000]


def test_a_child_makes_itself_what_a_thread_of_the_parent_is_making():
    csc, values = CSC(torch.tensor([0, 1]), torch.tensor([0]), 1), torch.tensor([5])
    made, begun, done = MadeOfFields(), threading.Event(), threading.Event()

    def slow():
        begun.set()
        done.wait()
        return "parent's"

    thread = in_a_thread(lambda: made.get(csc, values, slow))
    begun.wait()
    try:
        assert (
            exit_code_of_child(
                lambda: os._exit(made.get(csc, values, lambda: "child's") != "child's")
            )
            == 0
        )
    finally:
        done.set()
        thread.join()
    assert made.get(csc, values, lambda: "later") == "parent's"
