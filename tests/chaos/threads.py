"""Forks, threads, copies and interrupts of loaders: each pass gives the batches of an undisturbed
one."""

import copy
import gc
import os
import pickle
import signal
import threading
from collections.abc import Callable
from typing import Any

from .loaders import LOADERS, NOT_REPEATED, check_no_threads, digest, draw_options, graph_of
from .worker import Case

Make = Callable[[], Any]
Passes = list[list[str]]


def trial(case: Case) -> None:
    graph, options = graph_of(case.samples), draw_options(case)
    kind = case.choose("loader", LOADERS.keys() - NOT_REPEATED)

    def make() -> Any:
        return LOADERS[kind](graph, **options)

    reference = make()
    passes = [epoch(reference) for _ in range(3)]
    for _ in range(case.rng.choice([1, 2, 3])):
        ACTIONS[case.choose("action", ACTIONS)](case, make, passes)
    del reference
    gc.collect()
    check_no_threads()


def epoch(loader: Any) -> list[str]:
    return [digest(batch) for batch in loader]


def several_threads(case: Case, make: Make, passes: Passes) -> None:
    loaders, found = [make() for _ in range(case.rng.choice([2, 4]))], {}

    def read(number: int) -> None:
        found[number] = [epoch(loaders[number]) for _ in range(2)]

    threads = [threading.Thread(target=read, args=[number]) for number in range(len(loaders))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(found.get(number) == passes[:2] for number in range(len(loaders)))


def fork(case: Case, make: Make, passes: Passes) -> None:
    """While a pass goes on: the child reads with a loader of its own, the parent goes on."""
    loader = make()
    batches = iter(loader)
    begun = [
        digest(next(batches)) for _ in range(case.rng.randrange(3) if len(passes[0]) > 2 else 0)
    ]
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        code = 1
        try:
            code = 0 if epoch(make()) == passes[0] else 3
        finally:
            os._exit(code)
    assert begun + [digest(batch) for batch in batches] == passes[0]
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code == 0, f"the child ended with {code}"


def begin_again(case: Case, make: Make, passes: Passes) -> None:
    """A pass is left in the middle, held or dropped; the next one is whole."""
    loader, held = make(), []
    for number in range(2):
        held.append(iter(loader))
        for _ in range(case.rng.randrange(3)):
            if digest(next(held[-1])) not in passes[number]:
                raise AssertionError("a batch of another pass")
        if case.rng.random() < 0.5:
            held.clear()
    assert epoch(loader) == passes[2]


def duplicate(case: Case, make: Make, passes: Passes) -> None:
    """A copy begins the epoch of the loader, which goes on."""
    loader = make()
    finished = case.rng.randrange(2)
    for _ in range(finished):
        epoch(loader)
    batches, done = iter(loader), case.rng.randrange(len(passes[0]))
    for _ in range(done):
        next(batches)
    again = copy.deepcopy(loader) if case.rng.random() < 0.5 else pickle.loads(pickle.dumps(loader))
    assert [epoch(again), epoch(again)] == passes[finished:][:2]
    assert [digest(batch) for batch in batches] == passes[finished][done:]


def resume(case: Case, make: Make, passes: Passes) -> None:
    loader = make()
    batches, done = iter(loader), case.rng.randrange(1, len(passes[0]) + 1)
    for _ in range(done):
        next(batches)
    state, other = loader.state_dict(), make()
    other.load_state_dict(state)
    expected = passes[0][done:] if done < len(passes[0]) else passes[1]
    assert epoch(other) == expected or (done == len(passes[0]) and epoch(other) == passes[1])


class Interrupted(Exception):
    """What a signal's handler raises."""


def interrupt(case: Case, make: Make, passes: Passes) -> None:
    """At any moment of a pass, by an exception out of a handler; the loader can be used again."""
    loader = make()

    def handler(*_: Any) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0005 + 0.03 * case.rng.random())
        epoch(loader)
    except Interrupted:
        case.done.append("interrupted")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    loader.set_epoch(2)
    assert epoch(loader) == passes[2]


ACTIONS = {
    action.__name__: action
    for action in (several_threads, fork, begin_again, duplicate, resume, interrupt)
}
