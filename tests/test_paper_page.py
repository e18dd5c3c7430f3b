"""docs/paper.md: its tables are those of the benchmarks' files."""

import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "paper.md"


@pytest.mark.skipif(not PAGE.exists(), reason="needs the checkout, not only its tests")
def test_tables_are_those_of_the_results(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    paper = importlib.import_module("paper")
    page = PAGE.read_text()
    assert page.count("<!-- end of ") == len(paper.tables())
    assert paper.fill(page) == page, "python benchmarks/paper.py --tables writes them anew"
