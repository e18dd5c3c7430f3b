"""The two tiers of the tests: what ``make test`` runs, and what ``make test-all`` adds.

``make test`` holds every promise once. A test is in the second tier if a marker says that it needs
one of :data:`SECOND_TIER`.
"""

import itertools
import re

import hypothesis

SECOND_TIER = {
    "attack": "random attacks, interrupts, kills and full disks",
    "clients": "libraries that use ours: Lightning, accelerate, RelBench, DistDGL",
    "compilers": "Triton's interpreter or compiler over many settings, mypy, or a build of the package",
    "kernels": "kernels that few others need, and that take seconds to compile",
    "learning": "training until something is learned",
    "many": "many cases at once, so that it takes seconds",
    "memory": "the memory of a process of its own, or files above 100 MB",
    "pages": "all commands of a page, an example or a notebook",
    "processes": "several processes that train, or a new interpreter for each case",
    "server": "a database server",
    "statistics": "many batches, for a distribution or an expectation",
}
"""Marker to what a test with it needs."""

EVERY = "every"
"""Marker of a test with parameters whose first case is in the first tier, and all others in the
second."""

# Speed is measured in benchmarks/, never here: the first call of a kernel may compile it.
hypothesis.settings.register_profile("all", deadline=None)
hypothesis.settings.register_profile("first", deadline=None, max_examples=20)


def examples(count: int) -> int:
    """How many examples Hypothesis draws, of ``count`` in the second tier."""
    return max(5, count * hypothesis.settings.default.max_examples // 100)


def pairs(**settings) -> tuple[list[str], list[tuple]]:
    """What ``parametrize`` takes, where any two values of two settings are in a case together.

    Each setting is a list of its values. The cases are the same each time, and far fewer than the
    product's; the first holds the first value of each setting.
    """
    left = list(itertools.product(*(range(len(values)) for values in settings.values())))
    chosen, seen = [], set()
    while new := max((set(_pairs_in(case)) - seen for case in left), key=len):
        case = next(case for case in left if new.issubset(_pairs_in(case)))
        chosen.append(tuple(map(list.__getitem__, settings.values(), case)))
        seen |= new
    return list(settings), chosen


def _pairs_in(case: tuple) -> list:
    return list(itertools.combinations(enumerate(case), 2))


def is_all_second_tier(text: str) -> bool:
    """Whether a module of tests, given as text, marks itself as a whole for the second tier."""
    marked = text.partition("\npytestmark = ")[2].partition("\n\n")[0]
    return not SECOND_TIER.keys().isdisjoint(re.findall(r"mark\.(\w+)", marked))


def in_second_tier(items) -> list:
    """Those of the collected tests that the first tier leaves out."""
    found, seen = [], set()
    for item in items:
        names = {marker.name for marker in item.iter_markers()}
        function = item.nodeid.partition("[")[0]
        is_other_case = EVERY in names and function in seen
        seen.add(function)
        if is_other_case or not SECOND_TIER.keys().isdisjoint(names):
            found.append(item)
    return found
