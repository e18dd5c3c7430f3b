"""The first tier of the tests holds every promise, and what it leaves out is what markers say."""

import ast
import itertools
import re
from pathlib import Path

import pytest
from tiers import SECOND_TIER, examples, in_second_tier, is_all_second_tier, pairs

ROOT = Path(__file__).resolve().parent.parent
DESIGN = ROOT / "docs" / "design.md"
NEEDS_MORE = {"tests/dgl_face/test_dist_loaders.py"}
"""Tests of promises that nothing in the first tier can hold: DistDGL is servers and trainers."""


def markers(node: ast.AST) -> set[str]:
    return set(re.findall(r"mark\.(\w+)", ast.unparse(node)))


def in_first_tier(body: list[ast.stmt], inherited: frozenset[str] = frozenset()) -> list[str]:
    """Names of the tests that no marker puts into the second tier."""
    found = []
    for node in body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef):
            continue
        names = inherited.union(*map(markers, node.decorator_list))
        if isinstance(node, ast.ClassDef):
            found += in_first_tier(node.body, names)
        elif node.name.startswith("test") and SECOND_TIER.keys().isdisjoint(names):
            found.append(node.name)
    return found


def first_tier_of(path: Path) -> list[str]:
    body = ast.parse(path.read_text()).body
    of_module = [
        markers(node)
        for node in body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
    ]
    return in_first_tier(body, frozenset().union(*of_module))


def promises() -> list[tuple[str, list[str]]]:
    """Each promise of the design and the files or folders of its tests."""
    rows = DESIGN.read_text().partition("## Promises, and the tests")[2].splitlines()
    found = [(row, re.findall(r"`(tests/[\w/.]+)`", row)) for row in rows]
    return [(row.split("|")[1].strip(), places) for row, places in found if places]


@pytest.mark.skipif(not DESIGN.is_file(), reason="needs the checkout, not only its tests")
def test_each_promise_has_a_test_in_the_first_tier():
    assert len(promises()) > 40
    without = []
    for promise, places in promises():
        files = [
            file
            for place in map(ROOT.joinpath, places)
            for file in ([place] if place.is_file() else place.rglob("test_*.py"))
        ]
        if not any(map(first_tier_of, files)) and not NEEDS_MORE.issuperset(places):
            without.append(promise)
    assert without == []


class Item:
    """What a collected test looks like here."""

    def __init__(self, nodeid: str, *names: str) -> None:
        self.nodeid = nodeid
        self._names = names

    def iter_markers(self):
        return (getattr(pytest.mark, name).mark for name in self._names)


def test_of_a_test_with_every_case_the_first_stays():
    items = [
        Item("a.py::plain"),
        Item("a.py::cases[0]", "every"),
        Item("a.py::cases[1]", "every", "gpu"),
        Item("b.py::cases[1]", "every"),
        Item("b.py::learns[0]", "learning", "every"),
    ]
    assert [item.nodeid for item in in_second_tier(items)] == ["a.py::cases[1]", "b.py::learns[0]"]


@pytest.mark.parametrize(
    ("mark", "is_second"),
    [
        ("pytest.mark.server", True),
        ("[pytest.mark.wheel, pytest.mark.memory]", True),
        ("[\n    pytest.mark.compilers,\n    pytest.mark.gpu,\n]", True),
        ("pytest.mark.wheel", False),
    ],
)
def test_a_module_that_is_marked_is_not_imported_for_the_first_tier(mark, is_second):
    text = f"import pytest\n\npytestmark = {mark}\n\n\n@pytest.mark.server\ndef test_a(): ..."
    assert is_all_second_tier(text) == is_second
    assert not is_all_second_tier("@pytest.mark.server\ndef test_a(): ...")


def test_fewer_examples_are_drawn_in_the_first_tier(request):
    share = {"first": 5, "all": 1}[request.config.getoption("--tier")]
    assert examples(200) == 200 // share and examples(1) >= 1


def test_pairs_hold_any_two_values_together():
    settings = {"a": [1, 2, 3, 4], "b": [{}, {"c": 5}], "c": [False, True], "d": [None, "e"]}
    names, cases = pairs(**settings)
    assert names == list(settings) and cases[0] == (1, {}, False, None)
    assert len(cases) == 8 and cases == pairs(**settings)[1]
    for (one, values), (two, others) in itertools.combinations(enumerate(settings.values()), 2):
        for value, other in itertools.product(values, others):
            assert any(case[one] == value and case[two] == other for case in cases)
