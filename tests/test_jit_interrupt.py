"""Ctrl-C while a kernel is being loaded."""

import os
import signal
import threading

import numpy as np
import pytest
from numba import types
from numba.extending import intrinsic

from pagraph import _jit

moments = []


@intrinsic
def interrupted_here(typingctx):
    """Nothing; the interrupt comes while numba compiles it."""

    def codegen(context, builder, signature, args):
        moments.append("before")
        os.kill(os.getpid(), signal.SIGINT)
        moments.append("after")
        return context.get_dummy_value()

    return types.void(), codegen


def add_one(array):
    interrupted_here()
    return array + 1


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    monkeypatch.setattr(_jit, "_CACHE_DIR", str(tmp_path))
    moments.clear()
    return _jit.allocating_kernel(add_one)


def test_the_load_ends_before_the_interrupt_is_raised(kernel):
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        kernel(np.zeros(3))
    assert moments == ["before", "after"]
    assert signal.getsignal(signal.SIGINT) is handler
    assert kernel(np.zeros(3)).tolist() == [1, 1, 1]
    assert moments == ["before", "after"]  # the load was not thrown away


def test_in_another_thread_the_interrupt_comes_at_once(kernel):
    """Handlers run in the main thread, which is loading nothing."""
    seen, results = [], []
    handler = signal.signal(signal.SIGINT, lambda *event: seen.append(event))
    try:
        thread = threading.Thread(target=lambda: results.append(kernel(np.zeros(1)).tolist()))
        thread.start()
        thread.join()
    finally:
        signal.signal(signal.SIGINT, handler)
    assert results == [[1]] and len(seen) == 1


def test_handlers_of_all_signals_wait_and_all_of_them_run(tmp_path, monkeypatch):
    monkeypatch.setattr(_jit, "_CACHE_DIR", str(tmp_path))
    seen = []

    def raises(number, _):
        seen.append(number)
        raise TimeoutError(number)

    numbers = [signal.SIGALRM, signal.SIGUSR1]
    before = [signal.signal(number, raises) for number in numbers]

    @intrinsic
    def signalled_here(typingctx):
        def codegen(context, builder, signature, args):
            for number in numbers:
                os.kill(os.getpid(), number)
            return context.get_dummy_value()

        return types.void(), codegen

    def add_two(array):
        signalled_here()
        return array + 2

    compiled = _jit.allocating_kernel(add_two)
    try:
        with pytest.raises(TimeoutError):
            compiled(np.zeros(3))
        assert seen == numbers and compiled(np.zeros(3)).tolist() == [2, 2, 2]
        assert [signal.getsignal(number) for number in numbers] == [raises, raises]
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def test_a_full_disk_costs_the_cache_alone(kernel, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(kernel._cache), "save_overload", full)
    monkeypatch.setattr(os, "kill", lambda *_: None)
    assert kernel(np.zeros(3)).tolist() == [1, 1, 1]
    assert kernel(np.zeros(3, np.int32)).tolist() == [1, 1, 1]


def test_a_user_who_ignores_interrupts(kernel):
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert kernel(np.zeros(1)).tolist() == [1]
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, handler)
