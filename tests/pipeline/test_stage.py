"""Stages: order, depth, errors at their place, and no thread left behind."""

import gc
import itertools
import subprocess
import sys
import textwrap
import threading
import time

import pytest
from fresh_processes import HANGING, forked_python

from pagraph.errors import PipelineError
from pagraph.system.stage import AheadStage, Relay, SerialStage, Stage

pytestmark = pytest.mark.usefixtures("no_threads_left")


def stage(source, work=lambda x: x, workers=2, ahead=4, **kwargs):
    return Stage(iter(source), work, workers=workers, ahead=ahead, **kwargs)


@pytest.mark.parametrize("workers", [1, 2, 8])
@pytest.mark.parametrize("extra", [0, 1, 5])
def test_results_come_in_the_sources_order(workers, extra):
    def slow_for_some(x):
        time.sleep(0.002 if x % 3 == 0 else 0)
        return x * x

    got = list(stage(range(40), slow_for_some, workers, workers + extra))
    assert got == [x * x for x in range(40)]


def test_an_empty_source_ends_at_once_and_stays_ended():
    empty = stage([])
    for _ in range(3):
        with pytest.raises(StopIteration):
            next(empty)
    assert iter(empty) is empty


def test_work_runs_concurrently():
    barrier = threading.Barrier(3, timeout=HANGING)
    assert list(stage(range(3), lambda x: (barrier.wait(), x)[1], workers=3)) == [0, 1, 2]


def test_no_more_than_ahead_items_are_in_work_or_waiting():
    drawn = []

    def source():
        for x in range(20):
            drawn.append(x)
            yield x

    def drawn_after_a_while(expected):
        deadline = time.monotonic() + HANGING
        while len(drawn) < expected and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.1)  # for more than that
        return len(drawn)

    reading = stage(source(), workers=2, ahead=3)
    assert drawn_after_a_while(3) == 3  # nobody has read yet
    assert next(reading) == 0
    assert drawn_after_a_while(4) == 4
    reading.close()


@pytest.mark.parametrize("where", ["work", "source"])
def test_an_exception_comes_at_its_place_with_its_traceback(where):
    def explode(x):
        if x == 5:
            raise KeyError("five")
        return x

    reading = stage(range(20), explode) if where == "work" else stage(explode(x) for x in range(20))
    assert [next(reading) for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(KeyError, match="five") as caught:
        next(reading)
    assert "explode" in {entry.name for entry in caught.traceback}
    with pytest.raises(StopIteration):
        next(reading)


def test_an_exception_in_on_start_reaches_the_reader():
    def refuse(worker):
        raise OSError(f"worker {worker} cannot start")

    with pytest.raises(OSError, match="cannot start"):
        list(stage(range(5), on_start=refuse))


def test_on_start_runs_once_in_each_thread():
    seen = []
    list(
        stage(
            range(50),
            on_start=lambda i: seen.append((i, threading.current_thread().name)),
            workers=3,
        )
    )
    assert sorted(i for i, _ in seen) == [0, 1, 2]
    assert len({name for _, name in seen}) == 3


def test_close_twice_and_close_before_the_end():
    reading = stage(itertools.count())
    assert next(reading) == 0
    reading.close()
    reading.close()
    with pytest.raises(StopIteration):
        next(reading)


def test_dropping_the_stage_ends_its_threads():
    for x in stage(itertools.count()):
        if x == 3:
            break
    reading = stage(itertools.count())
    next(reading)
    threads = reading._shared.threads
    del reading
    for thread in threads:
        thread.join(HANGING)
    assert not any(thread.is_alive() for thread in threads)


def test_a_stage_may_be_dropped_while_a_lock_of_threading_is_held():
    """As by the garbage collector, within ``threading.enumerate``: its threads need that lock."""
    reading = stage(itertools.count())
    next(reading)
    with threading._active_limbo_lock:
        del reading


def test_a_stage_in_a_reference_cycle_is_collected():
    class Holder:
        pass

    holder = Holder()
    holder.me, holder.stage = holder, stage(itertools.count())
    next(holder.stage)
    del holder
    gc.collect()


def test_a_waiting_reader_is_woken_by_close():
    release = threading.Event()
    reading = stage(range(3), lambda x: release.wait(HANGING), workers=1)
    got = []
    reader = threading.Thread(target=lambda: got.extend(reading))
    reader.start()
    time.sleep(0.05)
    release.set()
    reader.join(HANGING)
    assert got == [True, True, True]


@pytest.mark.parametrize("ending", ["pass", "raise SystemExit(0)", "del stage", "next(stage)"])
@pytest.mark.processes
def test_the_interpreter_exits_with_a_live_stage(ending):
    script = textwrap.dedent(f"""
        import itertools, time
        from pagraph.system.stage import Stage
        stage = Stage(itertools.count(), lambda x: time.sleep(0.01), workers=2, ahead=4)
        next(stage)
        {ending}
    """)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=HANGING
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.processes
def test_ctrl_c_while_waiting_ends_everything():
    script = textwrap.dedent("""
        import itertools, os, signal, threading, time
        from pagraph.system.stage import Stage
        stage = Stage(itertools.count(), lambda x: time.sleep(1.5), workers=2, ahead=4)
        asks = threading.Event()
        def interrupt():
            asks.wait()
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGINT)
        threading.Thread(target=interrupt).start()
        try:
            asks.set()
            next(stage)
        except KeyboardInterrupt:
            names = [t.name for t in threading.enumerate() if t.name.startswith("pagraph")]
            print("interrupted", names)
    """)
    done = subprocess.run(
        [forked_python(), "-c", script], capture_output=True, text=True, timeout=HANGING
    )
    assert done.stdout.strip() == "interrupted []", done.stderr


@pytest.mark.many
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("workers", [1, 2])
def test_a_thread_that_just_dies_is_noticed(workers):
    """As one does that has no memory left to report its failure."""

    def die(*_):
        if threading.current_thread() is not threading.main_thread():
            raise MemoryError

    batches = stage(range(20), workers=workers, on_change=die)
    with pytest.raises(PipelineError, match="a thread of the loader has died with its batch"):
        list(batches)


def test_the_serial_stage_has_the_same_contract():
    assert list(SerialStage(iter(range(5)), lambda x: x + 1)) == [1, 2, 3, 4, 5]
    failing = SerialStage(iter([1, 0]), lambda x: 1 // x)
    assert next(failing) == 1
    with pytest.raises(ZeroDivisionError):
        next(failing)
    with pytest.raises(StopIteration):
        next(failing)
    failing.close()


def test_the_collector_may_end_a_stage_while_a_lock_is_held():
    """A finaliser runs in any thread, also in one that holds what the workers wait for: it must not
    join them."""
    lock = threading.Lock()

    def work(x):
        with lock:
            return x

    class Cycle:
        pass

    holder = Cycle()
    holder.me, holder.stage = holder, stage(itertools.count(), work)
    next(holder.stage)
    del holder
    with lock:
        gc.collect()  # would wait for workers that wait for us


@pytest.mark.processes
def test_an_iterator_from_before_a_fork_says_so():
    script = textwrap.dedent("""
        import itertools, os, warnings
        warnings.simplefilter("ignore")
        from pagraph.system.stage import Stage
        stage = Stage(itertools.count(), lambda x: x, workers=2, ahead=4)
        next(stage)
        child = os.fork()
        if child == 0:
            try:
                next(stage)
            except RuntimeError as error:
                os._exit(0 if "fork" in str(error) else 1)
            os._exit(2)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), next(stage))
    """)
    done = subprocess.run(
        [forked_python(), "-c", script], capture_output=True, text=True, timeout=HANGING
    )
    assert done.stdout.split() == ["0", "1"], done.stderr


@pytest.mark.parametrize(
    "make", [lambda work: stage([1, 2], work), lambda work: SerialStage(iter([1, 2]), work)]
)
def test_a_stop_iteration_in_the_work_is_not_the_end(make):
    with pytest.raises(RuntimeError, match="raised StopIteration"):
        list(make(lambda x: next(iter([]))))


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_finishing_is_serial_and_in_order_whatever_order_work_ends_in(workers):
    inside, order, threads = [], [], set()

    def work(item):
        time.sleep(0.001 * (item * 7 % 5))
        return item

    def finish(number, item):
        assert not inside
        inside.append(number)
        assert number == item
        order.append(number)
        threads.add(threading.current_thread().name)
        time.sleep(0.0005)
        inside.pop()
        return -item

    stage = Stage(iter(range(60)), work, workers=workers, ahead=workers + 3, finish=finish)
    assert list(stage) == [-item for item in range(60)]
    assert order == list(range(60))
    assert threads <= {f"pagraph-{worker}" for worker in range(workers)}


def test_nobody_waits_for_who_finishes():
    """While one thread is held up in finishing, others work on all that there is room for."""
    worked, go_on = [], threading.Event()

    def work(item):
        worked.append(item)
        return item

    def finish(number, item):
        assert go_on.wait(HANGING)
        return item

    stage = Stage(iter(range(20)), work, workers=2, ahead=8, finish=finish)
    deadline = time.monotonic() + HANGING
    while len(worked) < 8 and time.monotonic() < deadline:
        time.sleep(0.001)
    assert sorted(worked) == list(range(8))
    go_on.set()
    assert list(stage) == list(range(20))


@pytest.mark.parametrize("where", ["work", "finish", "source"])
@pytest.mark.parametrize("workers", [1, 3])
def test_errors_come_at_their_place_with_a_finish(where, workers):
    def fail(at, item):
        if where == at and item == 5:
            raise ValueError("five")
        return item

    def source():
        for item in range(10):
            yield fail("source", item)

    finished = []

    def finish(number, item):
        finished.append(fail("finish", item))
        return item

    stage = Stage(
        source(), lambda item: fail("work", item), workers=workers, ahead=6, finish=finish
    )
    assert [next(stage) for _ in range(5)] == list(range(5))
    with pytest.raises(ValueError, match="five"):
        next(stage)
    with pytest.raises(StopIteration):
        next(stage)
    assert finished[:5] == list(range(5))
    assert where == "finish" or 5 not in finished


def test_a_stage_is_dropped_while_it_finishes():
    begun = threading.Event()

    def finish(number, item):
        begun.set()
        time.sleep(0.02)
        return item

    stage = Stage(iter(range(100)), lambda item: item, workers=2, ahead=4, finish=finish)
    assert begun.wait(HANGING)
    del stage


def test_its_own_threads_may_not_read_a_stage():
    stages, ready = [], threading.Event()

    def finish(number, item):
        assert ready.wait(HANGING)
        return next(stages[0])

    stages.append(Stage(iter(range(3)), lambda item: item, workers=1, ahead=1, finish=finish))
    ready.set()
    with pytest.raises(PipelineError, match="must not be read by code that prepares its batches"):
        next(stages[0])


def items(numbers):
    """The numbers; an error in place of a negative one."""
    for number in numbers:
        if number < 0:
            raise OSError(number)
        yield number


@pytest.mark.parametrize("ahead", [0, 1, 5])
def test_what_is_begun_ahead_comes_in_order_and_errors_at_their_place(ahead):
    begun, abandoned = [], []

    def begin(number):
        if number == 7:
            raise ZeroDivisionError
        if number % 3 == 2:
            return None
        begun.append(number)
        return f"begun {number}"

    def made(numbers):
        return AheadStage(items(numbers), begin, str, abandoned.append, ahead=ahead)

    stage = made(range(4))
    assert [next(stage), begun] == ["begun 0", [number for number in (0, 1, 3) if number <= ahead]]
    assert list(stage) == ["begun 1", "2", "begun 3"] and next(stage, None) is None
    for numbers, error in (((0, 1, -1, 3), OSError), ((0, 1, 7, 3), ZeroDivisionError)):
        stage = made(numbers)
        assert [next(stage), next(stage)] == ["begun 0", "begun 1"]
        with pytest.raises(error):
            next(stage)
        assert next(stage, None) is None
    assert not abandoned
    stage = made(range(2))
    next(stage)
    stage.close()
    assert abandoned == ["begun 1"][:ahead] and next(stage, None) is None


def test_one_stage_follows_another_once_that_one_is_read():
    source, order = iter(range(6)), []

    def follow():
        order.append("follows")
        return SerialStage(source, str)

    relay = Relay(stage(itertools.islice(source, 3), lambda x: -x, workers=2, ahead=3), follow)
    for result in relay:
        order.append(result)
    assert order == [0, -1, -2, "follows", "3", "4", "5"]
    relay.close()
    early = Relay(SerialStage(iter([1, 2]), str), follow)
    assert next(early) == "1" and early.is_ready
    early.close()
    assert next(early, None) is None
