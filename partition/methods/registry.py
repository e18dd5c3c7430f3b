"""The methods by name; their contract is the package's."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from ...graph import Graph
from ..partition import Progress
from .auto import auto_parts
from .halo import halo_parts
from .hashing import hash_parts
from .metis import metis_parts
from .paper import paper_parts

__all__ = ["METHODS", "Method", "resolve_method"]


class Method(Protocol):
    """How training vertices are divided; see :mod:`pagraph.partition.methods`."""

    def __call__(
        self, graph: Graph, train: Tensor, num_parts: int, hops: int, *, seed: int = 0, progress: Progress | None = None
    ) -> Tensor:
        """The part of each training vertex."""
        ...


METHODS: dict[str, Method] = {
    "auto": auto_parts,
    "halo": halo_parts,
    "pagraph": paper_parts,
    "metis": metis_parts,
    "hash": hash_parts,
}
"""Name to method; ``auto`` is the default of :func:`pagraph.partition.partition_graph`."""


def resolve_method(name: str) -> Method:
    """The method of that name.

    Raises:
        ValueError: There is none.
    """
    if name not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {name!r}")
    return METHODS[name]
