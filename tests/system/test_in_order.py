"""``in_order``: results in the order of their items, and threads that end with their reader."""

import threading
import time

import pytest
from fresh_processes import HANGING

from pagraph.system.threads import AHEAD, in_order

pytestmark = pytest.mark.usefixtures("no_threads_left")


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_results_come_in_the_order_of_the_items(workers):
    def run(number):
        time.sleep(0.002 * (number % 3))
        return number * number

    assert list(in_order(run, range(20), workers)) == [n * n for n in range(20)]


def test_no_more_than_a_few_are_taken_ahead_of_the_reader():
    taken = []

    def items():
        for number in range(20):
            taken.append(number)
            yield number

    results = in_order(int, items(), 2)
    assert next(results) == 0
    assert len(taken) <= 2 + AHEAD
    results.close()


def test_the_first_error_in_order_is_raised_and_ends_the_others():
    stopped = threading.Event()

    def run(number):
        if number == 1:
            raise ValueError("the second")
        # Would never end, were nobody told.
        if number > 1:
            assert stopped.wait(HANGING)
        return number

    results = in_order(run, range(10), 2, stopped)
    assert next(results) == 0
    with pytest.raises(ValueError, match="the second"):
        next(results)
    assert stopped.is_set()


def test_a_reader_that_stops_ends_what_has_begun():
    stopped = threading.Event()
    results = in_order(lambda number: number == 0 or stopped.wait(HANGING), range(10), 2, stopped)
    assert next(results) is True
    results.close()
    assert stopped.is_set()
