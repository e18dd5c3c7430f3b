"""Graph folders, importers of other formats, and generators of realistic graphs."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .edge_list import read_edge_list
    from .forms import export_graph, import_graph, read_graph
    from .generators import citation, rmat, sbm, shop
    from .native import write_graph
    from .opening import open_graph
    from .original_ids import new_ids
    from .reordering import reorder

# Imported on first use, so that a manifest can be read without torch.
_HOMES = {
    "citation": "generators",
    "export_graph": "forms",
    "import_graph": "forms",
    "new_ids": "original_ids",
    "open_graph": "opening",
    "read_edge_list": "edge_list",
    "read_graph": "forms",
    "reorder": "reordering",
    "rmat": "generators",
    "sbm": "generators",
    "shop": "generators",
    "write_graph": "native",
}

__all__ = [
    "citation",
    "export_graph",
    "import_graph",
    "new_ids",
    "open_graph",
    "read_edge_list",
    "read_graph",
    "reorder",
    "rmat",
    "sbm",
    "shop",
    "write_graph",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__dir__ = __all__.copy
