"""A DGL graph whose own structure waits: of a graph on disk it would take 24 bytes an edge, and no batch needs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..graph.graph import Graph
from ..system.threads import ForkLock
from .graphbolt import import_dgl

dgl = import_dgl()
from dgl.frame import Frame  # noqa: E402

__all__ = ["WaitingGraph", "structure_mark"]


class WaitingGraph(dgl.DGLGraph):  # type: ignore[name-defined]
    """Types, numbers and columns of a graph; DGL's structure is made when anything else is asked for, and kept.

    Args:
        core: The graph. Its fields are not taken along.
        make: Makes the DGL graph with the structure.
    """

    def __init__(self, core: Graph, make: Callable[[Graph], Any]) -> None:
        nothing = torch.empty(0, dtype=torch.int64, device="cpu")
        outline = dgl.heterograph(dict.fromkeys(core.edge_types, (nothing, nothing)), core.num_nodes_by_type)
        self._core, self._make, self._lock = core, make, ForkLock()
        self._counts = [core.csc_of(etype).num_edges for etype in outline.canonical_etypes]
        self._outline = self._structure = outline._graph
        frames = [Frame(num_rows=outline.num_nodes(t)) for t in outline.ntypes], list(map(_rows, self._counts))
        super().__init__(outline._graph, outline.ntypes, outline.etypes, *frames)
        self._structure = None

    @property
    def _graph(self) -> Any:
        """DGL's index; an assignment, as by ``add_edges``, replaces it."""
        with self._lock:
            if self._structure is None:
                self._structure = self._made = self._make(self._core)._graph
            return self._structure

    @_graph.setter
    def _graph(self, index: Any) -> None:
        self._structure = index

    @property
    def _unchanged(self) -> bool:
        return self._structure is None or self._structure is vars(self).get("_made")

    def num_nodes(self, ntype: str | None = None) -> int:
        """See ``DGLGraph.num_nodes``."""
        if not self._unchanged:
            return int(super().num_nodes(ntype))
        types = self.ntypes if ntype is None else [ntype]
        return int(sum(self._outline.num_nodes(self.get_ntype_id(t)) for t in types))

    def num_edges(self, etype: Any = None) -> int:
        """See ``DGLGraph.num_edges``."""
        if not self._unchanged:
            return int(super().num_edges(etype))
        return sum(self._counts) if etype is None else self._counts[self.get_etype_id(etype)]

    @property
    def idtype(self) -> torch.dtype:
        """See ``DGLGraph.idtype``."""
        return torch.int64 if self._unchanged else super().idtype

    @property
    def device(self) -> torch.device:
        """See ``DGLGraph.device``."""
        return torch.device("cpu") if self._unchanged else super().device

    def is_pinned(self) -> bool:
        """See ``DGLGraph.is_pinned``."""
        return self._structure is not None and bool(super().is_pinned())

    def __reduce__(self) -> tuple[Any, ...]:
        parts = self._graph, self.ntypes, self.etypes, self._node_frames, self._edge_frames
        return dgl.DGLGraph, parts


def _rows(count: int) -> Any:
    return Frame(num_rows=count)


def structure_mark(graph: Any) -> Any:
    """An object that is another one once the graph's structure was changed in place."""
    waits = isinstance(graph, WaitingGraph) and graph._unchanged
    return graph._outline if waits else graph._graph
