"""A reader that works instead of waiting, and who works where batches are small."""

import itertools
import os
import signal
import threading
import time

import pytest
from fresh_processes import HANGING

from pagraph.system.stage import Stage
from pagraph.system.thread_use import ThreadUse

pytestmark = pytest.mark.usefixtures("no_threads_left")

READER = threading.current_thread()


@pytest.fixture(autouse=True)
def processors(monkeypatch):
    monkeypatch.setattr("pagraph.system.stage.usable_cpus", lambda: 8)


def stage(source, work, workers=1, ahead=3):
    return Stage(iter(source), work, workers=workers, ahead=ahead, use=ThreadUse())


def waits(use, seconds, count, skipped=0, before=0.0):
    """Whether the choice changed with the last of some waits, and with none before."""
    changes = [use.note(seconds, before, skipped) for _ in range(count)]
    assert not any(changes[:-1])
    return changes[-1]


class TestTheChoice:
    def test_both_are_tried_and_the_one_with_less_waiting_is_kept(self):
        for of_threads, of_reader in ((3e-4, 1e-4), (1e-4, 1.4e-4)):
            use = ThreadUse()
            assert waits(use, of_threads, 24) and use.rests
            assert waits(use, of_reader, 24) == (of_reader > of_threads)
            assert use.rests == (of_reader < of_threads)

    def test_the_other_is_tried_again_after_a_while(self):
        use = ThreadUse()
        waits(use, 3e-4, 24), waits(use, 1e-4, 24)
        assert use.rests and waits(use, 1e-4, 512) and not use.rests
        assert waits(use, 5e-5 * 1.5, 24) is False  # threads are better by now

    def test_what_proves_right_is_kept_for_longer(self):
        use = ThreadUse()
        waits(use, 3e-4, 24), waits(use, 1e-4, 24)
        for kept in (512, 1024, 2048, 4096, 8192, 16384, 16384):
            assert use.rests and waits(use, 1e-4, kept) and not use.rests
            assert waits(use, 1.4e-4, 24)  # worse, as before
        waits(use, 1e-4, 16384)
        assert waits(use, 6e-5, 24) is False and not use.rests  # better by now
        # A new choice is kept for as long as a first one.
        assert waits(use, 6e-5, 512) and use.rests

    @pytest.mark.parametrize(("waited", "before"), [(1e-6, 0.01), (0.1, 0.0)])
    def test_threads_that_are_ahead_or_whose_work_is_long_are_left_at_it(self, waited, before):
        use = ThreadUse()
        for count in (24, 512, 512):
            assert not waits(use, waited, count, before=before) and not use.rests

    def test_threads_that_are_ahead_of_a_reader_that_they_slow_down_are_put_to_the_test(self):
        use = ThreadUse()
        assert waits(use, 1e-6, 24, before=6e-4) and use.rests

    def test_a_trial_that_goes_much_worse_is_short(self):
        use = ThreadUse()
        assert waits(use, 2e-4, 24) and use.rests
        assert waits(use, 4e-4, 8) and not use.rests

    def test_one_pause_ends_no_trial(self):
        use = ThreadUse()
        assert waits(use, 2e-4, 24) and use.rests
        # A pause in the first group; the others say that the reader is the faster.
        assert not waits(use, 4e-3, 4)
        assert not waits(use, 1e-4, 20)
        assert use.rests

    def test_long_waits_keep_no_threads_that_a_trial_found_slower(self):
        use = ThreadUse()
        use._of_reader = 5e-3  # as an earlier trial measured it
        assert waits(use, 2e-2, 8) and use.rests

    def test_the_readers_own_work_that_threads_slow_down_counts(self):
        use = ThreadUse()
        assert waits(use, 1e-4, 24, before=3e-4) and use.rests
        assert not waits(use, 2e-4, 24, before=1e-4) and use.rests

    def test_a_pause_does_not(self):
        use = ThreadUse()
        assert waits(use, 1e-4, 23) is False and use.note(1e-4, 10.0, 0) and use.rests
        assert waits(use, 1.4e-4, 24) and not use.rests

    def test_two_pauses_inside_the_work_do_not(self):
        for of_threads, of_reader in ((3e-4, 1e-4), (1e-4, 3e-4)):
            use = ThreadUse()
            for place in range(24):
                use.note(of_threads + (5e-3 if place in (3, 12) else 0.0), 0.0, 0)
            assert use.rests
            for place in range(24):
                use.note(of_reader + (5e-3 if place in (7, 20) else 0.0), 0.0, 0)
            assert use.rests == (of_reader < of_threads)

    def test_threads_that_hand_over_in_bursts_are_measured_by_all_of_a_burst(self):
        use = ThreadUse()
        for place in range(24):
            use.note(4e-4 if place % 4 == 3 else 0.0, 0.0, 0)
        assert use.rests and not waits(use, 9e-5, 24) and use.rests

    def test_work_of_some_milliseconds_is_put_to_the_test(self):
        use = ThreadUse()
        assert waits(use, 4e-3, 24) and use.rests
        assert not waits(use, 3e-3, 24) and use.rests

    def test_threads_that_win_little_do_not_take_a_processor(self):
        use = ThreadUse()
        assert waits(use, 1e-4, 24) and not waits(use, 1.03e-4, 24) and use.rests

    def test_items_begun_before_a_change_do_not_count(self):
        use = ThreadUse()
        assert not waits(use, 1.0, 4, skipped=4)
        assert waits(use, 3e-4, 24, skipped=4) and use.rests


@pytest.mark.every
@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("seconds", [0, 1e-4, 2e-3])
def test_order_and_completeness_whoever_works(workers, seconds):
    def work(x):
        time.sleep(seconds * (x % 3))
        return x * x

    got = list(stage(range(150), work, workers, workers + 2))
    assert got == [x * x for x in range(150)]


def test_the_reader_works_rather_than_waits():
    entered = threading.Event()
    workers = []

    def work(x):
        workers.append(threading.current_thread())
        if len(workers) == 1:
            assert entered.wait(HANGING)  # until somebody else works too
        else:
            entered.set()
        return x

    assert list(stage(range(2), work)) == [0, 1]
    assert READER in workers and len(set(workers)) == 2


def test_the_reader_waits_where_threads_take_all_processors(monkeypatch):
    monkeypatch.setattr("pagraph.system.stage.usable_cpus", lambda: 1)
    workers = set()

    def work(x):
        workers.add(threading.current_thread())
        time.sleep(0.02)  # no reason for a trial
        return x

    assert list(stage(range(20), work)) == list(range(20))
    assert READER not in workers


@pytest.mark.parametrize("where", [0, 3, 40, 99])
def test_an_exception_comes_at_its_place(where):
    def work(x):
        if x == where:
            raise OSError(f"item {x}")
        return x

    reading, got = stage(range(100), work), []
    with pytest.raises(OSError, match=f"item {where}"):
        for x in reading:
            got.append(x)
    assert got == list(range(where))
    assert list(reading) == []


def test_an_exception_of_the_source_comes_at_its_place():
    def source():
        yield from range(30)
        raise OSError("the source")

    reading, got = stage(source(), lambda x: x), []
    with pytest.raises(OSError, match="the source"):
        for x in reading:
            got.append(x)
    assert got == list(range(30))


def test_no_more_than_ahead_items_are_drawn():
    drawn = []

    def source():
        for x in range(300):
            drawn.append(x)
            yield x

    for delivered, x in enumerate(stage(source(), lambda x: x, workers=2, ahead=4)):
        assert x == delivered and len(drawn) <= delivered + 1 + 4


@pytest.mark.attack
def test_ctrl_c_in_the_readers_own_work_comes_at_once():
    asked = threading.Event()

    def work(x):
        if threading.current_thread() is READER:
            asked.set()
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(HANGING)
        time.sleep(0.2)
        return x

    reading = stage(itertools.count(), work)
    with pytest.raises(KeyboardInterrupt):
        for _ in reading:
            pass
    assert asked.is_set()
