"""What ``dir()`` and the reference show of each package: its public names, which exist and say what
they are."""

import importlib
import pkgutil

import pytest

import pagraph

PACKAGES = [
    "pagraph",
    *sorted(
        found.name for found in pkgutil.walk_packages(pagraph.__path__, "pagraph.") if found.ispkg
    ),
]
NO_NAMES_OF_THEIR_OWN = {
    "pagraph.datasets.tables",
    "pagraph.features.gpu",
    "pagraph.sampling.gpu",
    "pagraph.sampling.kernels",
}


@pytest.mark.parametrize("name", sorted(set(PACKAGES) - NO_NAMES_OF_THEIR_OWN))
def test_dir_lists_public_names_alone(name):
    package = importlib.import_module(name)
    shown = {shown for shown in dir(package) if not shown.startswith("__")}
    assert set(package.__all__) <= shown
    for other in shown - set(package.__all__):
        home = getattr(getattr(package, other), "__module__", "pagraph")  # a module has none
        assert not home.startswith("pagraph"), f"{other} is an internal of {name}"


@pytest.mark.parametrize("name", sorted(set(PACKAGES) - NO_NAMES_OF_THEIR_OWN))
def test_public_functions_and_classes_are_documented(name):
    package = importlib.import_module(name)
    for public in package.__all__:
        value = getattr(package, public)
        if callable(value) and str(value.__module__).startswith("pagraph."):
            assert value.__doc__ and not value.__doc__.startswith(f"{public}("), (
                f"{name}.{public} has no docstring"
            )
