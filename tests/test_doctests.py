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


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_a_module(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        pytest.importorskip(str(error.name))  # Triton, of the modules of its kernels
        raise
    assert doctest.testmod(module).failed == 0


def test_examples_are_found():
    attempted = [
        doctest.testmod(importlib.import_module(f"pagraph.{name}")).attempted
        for name in ("graph.graph", "loader")
    ]
    assert all(attempted)
