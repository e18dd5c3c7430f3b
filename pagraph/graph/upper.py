"""Late import of modules above this one, for methods such as ``Graph.from_pyg``."""

from importlib import import_module
from typing import Any

__all__ = ["upper_room"]


def upper_room(name: str) -> Any:
    """The module of that name below ``pagraph``. Faces know graphs, graphs know no face: hence no import."""
    return import_module(f"{__name__.partition('.')[0]}.{name}")
