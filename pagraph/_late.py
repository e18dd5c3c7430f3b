"""Functions of rooms above the graphs that a graph's own methods call, such as ``Graph.open``.

A graph knows no folder, no DGL and no PyG: imports run one way. The package's front door knows all
of them and offers their functions here; each is imported when it is first called.
"""

from collections.abc import Callable
from typing import Any

__all__ = ["call_late", "offer"]

_offers: dict[str, Callable[[], Callable[..., Any]]] = {}


def offer(**imports: Callable[[], Callable[..., Any]]) -> None:
    """Take functions by name, each given by one that imports and returns it."""
    _offers.update(imports)


def call_late(name: str, *args: Any, **options: Any) -> Any:
    """Call a function that was offered by this name."""
    return _offers[name]()(*args, **options)
