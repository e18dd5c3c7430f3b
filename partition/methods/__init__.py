"""Partitioning methods by name, and their interface.

A method is a function ``(graph, train, num_parts, hops, *, seed=0, progress=None) -> parts``:

- ``graph``: Has one vertex type and one edge type. Its arrays may be mapped from a file, and must
  not be changed.
- ``train``: Distinct ids of the training vertices, ascending, shape ``(n,)``, int64,
  ``n >= num_parts``.
- ``num_parts``, ``hops``: At least 1.
- ``seed``: Random seed.
- ``progress``: Called with the work done so far, and the total.
- The result: The part of each training vertex, shape ``(n,)``, int32, in ``[0, num_parts)``; no
  part is empty. It depends on the arguments alone, not on the number of threads or a global
  generator.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from ...graph.graph import Graph
from ...options.names import check_method
from ...system.progress import Progress
from .auto import auto_bytes, auto_parts
from .halo import halo_parts
from .metis import METIS_EDGE_BYTES, metis_parts
from .paper import hash_parts, paper_parts

__all__ = ["METHODS", "Method", "method_bytes", "resolve_method"]


class Method(Protocol):
    """Function that assigns training vertices to parts; see :mod:`pagraph.partition.methods`."""

    def __call__(
        self,
        graph: Graph,
        train: Tensor,
        num_parts: int,
        hops: int,
        *,
        seed: int = 0,
        progress: Progress | None = None,
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
"""Methods by name; ``auto`` is the default of :func:`pagraph.partition.partition_graph`."""


def resolve_method(name: str) -> Method:
    """The method of this name.

    Raises:
        ValueError: There is none.
    """
    check_method(name)
    return METHODS[name]


def method_bytes(graph: Graph, num_parts: int, hops: int, name: str) -> int:
    """Estimated memory in bytes that a method takes in addition to that of ``halo``."""
    if name == "metis":
        return 0 if num_parts == 1 else METIS_EDGE_BYTES * graph.num_edges
    return auto_bytes(graph, num_parts, hops) if name == "auto" else 0


__dir__ = __all__.copy
