"""Ctrl-C at every place of a loader's pass at which CPython looks for signals."""

from __future__ import annotations

import contextlib
import dis
import gc
import random
import sys
import threading
import time
from collections import Counter
from functools import cache, partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pagraph

from . import ROUNDS
from .loaders import LOADERS, check_no_threads, graph_of
from .threads import epoch
from .worker import Case

HOME = str(Path(pagraph.__file__).parent)
LIBRARY = {contextlib.__file__, threading.__file__}
"""Modules of Python in which our code would hold a lock, or leave a block half entered."""

# Of Python 3.11 and newer.
_JUMP = dis.opmap.get("JUMP_BACKWARD")
_RESUME = dis.opmap.get("RESUME")

Place = tuple[CodeType, int, str]
"""Code, offset of the instruction, and the event: ``call`` at a function's start or where a
generator goes on, ``c_return`` after a call of C, ``jump`` where a loop jumps back."""


class Interrupter:
    """Visits the places in the calling thread while its block runs, and raises at one of them.

    CPython looks for signals where a function begins, after a call of C, and where a loop jumps
    back. The exception comes out of that very instruction, as a handler's would: ``c_return`` of a
    profiler is raised by the call, the tracer's at the jump. So a call of C that acquires a lock
    and a block that releases it are apart exactly if they are for a signal.

    Args:
        at: A place and how many visits to let pass; None: only count.
    """

    def __init__(self, at: tuple[Place, int] | None = None) -> None:
        self.visits: Counter[Place] = Counter()
        self.has_raised = False
        self._at = at
        # Kept here, too: they are switched off while they run.
        self._tracers = self._traced, self._profiled

    def __enter__(self) -> Interrupter:
        sys.settrace(self._tracers[0])
        sys.setprofile(self._tracers[1])
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)
        sys.settrace(None)

    def _profiled(self, frame: FrameType, event: str, _: Any) -> None:
        if not _is_ours(frame.f_code):
            return
        # What is thrown into a generator, as when it is dropped, is a call too, but no place.
        if event == "c_return" or (event == "call" and _opcode(frame) == _RESUME):
            self._visit(frame, event)

    def _traced(self, frame: FrameType, event: str, _: Any) -> Any:
        if not _is_ours(frame.f_code) or not _jumps(frame.f_code):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self._jumped

    def _jumped(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "opcode" and _opcode(frame) == _JUMP:
            self._visit(frame, "jump")
        return self._jumped

    def _visit(self, frame: FrameType, event: str) -> None:
        place = (frame.f_code, frame.f_lasti, event)
        self.visits[place] += 1
        if self._at is None or self.has_raised:
            return
        wanted, passed = self._at
        if place == wanted and self.visits[place] > passed:
            self.has_raised = True
            # Switched off first, as after a real signal the way out is not interrupted.
            sys.setprofile(None)
            sys.settrace(None)
            raise KeyboardInterrupt


def _opcode(frame: FrameType) -> int:
    return frame.f_code.co_code[frame.f_lasti]


_jumping: dict[CodeType, bool] = {}


def _jumps(code: CodeType) -> bool:
    if code not in _jumping:
        _jumping[code] = any(each.opcode == _JUMP for each in dis.get_instructions(code))
    return _jumping[code]


def _is_ours(code: CodeType) -> bool:
    return code.co_filename.startswith(HOME) or code.co_filename in LIBRARY


def name_of(place: Place) -> str:
    """A place for people: file, line, function and event."""
    code, offset, event = place
    line = next(
        (line for begin, end, line in code.co_lines() if begin <= max(offset, 0) < end), None
    )
    return f"{Path(code.co_filename).name}:{line or code.co_firstlineno} {code.co_name} {event}"


def places_of(run: Any) -> dict[Place, int]:
    """The places that a call visits, with how often."""
    with Interrupter() as visited:
        run()
    return dict(visited.visits)


def interrupted(run: Any, place: Place, passed: int) -> bool:
    """Call ``run`` with an interrupt at a visit of a place.

    Returns:
        Whether the place was visited: threads may have done the work.

    Raises:
        AssertionError: The interrupt was swallowed.
    """
    interrupter = Interrupter((place, passed))
    try:
        with interrupter:
            run()
        if interrupter.has_raised:
            time.sleep(10)  # in a finaliser, after which it comes again
    except KeyboardInterrupt:
        assert interrupter.has_raised, "an interrupt that nobody raised"
        return True
    assert not interrupter.has_raised, f"the interrupt at {name_of(place)} was swallowed"
    return False


OPTIONS: list[dict[str, Any]] = [
    {"num_workers": 0, "prefetch": 0, "cache": 0.5},
    {"num_workers": 0, "prefetch": 0, "lookahead": 2},
    {"num_workers": 1, "prefetch": 2, "cache": "auto"},
    {"num_workers": 2, "prefetch": 2, "cache": 0.5},
    {"num_workers": 2, "prefetch": 1, "lookahead": 2},
]
KINDS = ("core", "dgl", "pyg", "pyg links")


def trial(case: Case) -> None:
    rounds, part = divmod(case.number, ROUNDS["interrupts"])
    every = attacks(case.samples, rounds)[part :: ROUNDS["interrupts"]]
    came = 0
    for attack, place, passed in every:
        case.done.append(f"{attack}: {name_of(place)} after {passed} visits")
        came += attack(place, passed)
    assert 2 * came >= len(every), "threads did nearly all of the work"
    case.figures = {"places": len(every), "interrupts": came}


@cache
def attacks(samples: Path, rounds: int) -> list[tuple[Attack, Place, int]]:
    """Each place once, with a loader that visits it, in a random order."""
    graph = graph_of(samples)
    ways = [Attack(kind, options, graph) for options in OPTIONS for kind in KINDS]
    visitors: dict[Place, list[Attack]] = {}
    for attack in ways:
        for place in attack.places:
            visitors.setdefault(place, []).append(attack)
    rng = random.Random(rounds)
    found = []
    for place in sorted(visitors, key=name_of):
        attack = rng.choice(visitors[place])
        found.append((attack, place, rng.randrange(attack.places[place])))
    rng.shuffle(found)
    return found


class Attack:
    """Interrupts first passes of new loaders of one kind.

    Attributes:
        places: Those that a pass visits in the reader's thread, and how often.
    """

    def __init__(self, kind: str, options: dict[str, Any], graph: Any) -> None:
        self._kind = kind
        self._graph = graph
        self._options = {"batch_size": 30, "shuffle": True, "seed": 3, **options}
        reference = self._new()
        self._passes = [epoch(reference) for _ in range(2)]
        self.places = places_of(lambda: _read(self._new()))

    def __str__(self) -> str:
        return f"{self._kind} {self._options}"

    def _new(self) -> Any:
        return LOADERS[self._kind](self._graph, **self._options)

    def __call__(self, place: Any, passed: int) -> bool:
        """Interrupt a pass at a place, and look at what is left.

        Returns:
            Whether the interrupt came: threads may have done the work instead.
        """
        loader = self._new()
        if not interrupted(partial(_read, loader), place, passed):
            return False
        loader.set_epoch(1)
        assert epoch(loader) == self._passes[1], "the next pass has other batches"
        assert epoch(self._new()) == self._passes[0], "a new loader has other batches"
        str(loader.stats)
        del loader
        gc.collect()
        check_no_threads()
        return True


def _read(loader: Any) -> None:
    for _ in loader:
        pass
