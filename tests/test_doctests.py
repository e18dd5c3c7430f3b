"""The examples in docstrings are right."""

import doctest
import importlib
import pkgutil

import pytest

import pagraph

MODULES = [
    "pagraph",
    *sorted(info.name for info in pkgutil.walk_packages(pagraph.__path__, "pagraph.")),
]


OPTIONAL = {"dgl", "torch_geometric", "triton"}
"""Packages without which some modules cannot be imported."""


@pytest.mark.pages
def test_examples_of_all_modules(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    attempted = {}
    for name in MODULES:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            assert error.name is not None
            if error.name.partition(".")[0] not in OPTIONAL:
                raise
            continue
        result = doctest.testmod(module)
        assert result.failed == 0, name
        attempted[name] = result.attempted
    assert attempted["pagraph.graph.graph"]
    assert attempted["pagraph.loader"]
