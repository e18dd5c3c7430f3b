"""Functions of higher rooms that a graph's methods call, such as ``Graph.open``.

Imports go one way, so ``graph`` cannot import folders, DGL or PyG. The package's ``__init__``
registers their functions here. Each is imported when it is first called.
"""

from collections.abc import Callable
from typing import Any

__all__ = ["call_late", "offer"]

_offers: dict[str, Callable[[], Callable[..., Any]]] = {}


def offer(**imports: Callable[[], Callable[..., Any]]) -> None:
    """Register functions by name, each by a function that imports and returns it."""
    _offers.update(imports)


def call_late(name: str, *args: Any, **options: Any) -> Any:
    """Call a registered function."""
    return _offers[name]()(*args, **options)
