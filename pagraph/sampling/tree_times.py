"""TreeTimes: the times up to which the trees of a batch may look, and where their windows begin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .times import as_times, known_ticks, one_kind, window_starts

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..graph.graph import EdgeType, Graph
    from .sampler import EdgeField

    Array = npt.NDArray[Any]


def check_time_fields(
    graph: Graph,
    name: str,
    field: EdgeField,
    window: float | Mapping[EdgeType, float] | None = None,
) -> dict[str, torch.dtype]:
    """The dtype of each field of this name, of vertices and of edges.

    Raises:
        TypeError: Some are floats, others integers.
        ValueError: There is no such field, or ``window`` names an edge type that has no times.
    """
    of_edges = {etype: field(etype, name) for etype in graph.edge_types}
    of_nodes = {ntype: graph.node_fields(ntype).get(name) for ntype in graph.node_types}
    fields = {
        f"vertex field {name!r} of {t!r}": values
        for t, values in of_nodes.items()
        if values is not None
    }
    fields |= {
        f"edge field {name!r} of {t!r}": values
        for t, values in of_edges.items()
        if values is not None
    }
    if not fields:
        raise ValueError(f"time must name a field of vertices or of edges, got {name!r}: neither")
    for etype in window if isinstance(window, Mapping) else ():
        if etype not in of_edges:
            raise ValueError(
                f"time_window must be of the edge types {graph.edge_types}, got {etype!r}"
            )
        if of_edges.get(etype) is None and of_nodes.get(etype[0]) is None:
            raise ValueError(
                f"time_window must be of edge types that have times, got one of {etype!r}"
            )
    dtypes = {owner: values.dtype for owner, values in fields.items() if isinstance(values, Tensor)}
    one_kind(dtypes)
    return dtypes


@dataclass(frozen=True, eq=False)
class TreeTimes:
    """The times of a batch's trees.

    Attributes:
        until: Shape ``(num_trees,)``, int64: the latest ticks in each tree.
        of_seeds: Shape ``(num_seeds,)``, int64: the tree of each seed, over all types in the
            graph's order.
        floats: The times were floats.
    """

    until: Tensor
    of_seeds: Tensor
    floats: bool

    @classmethod
    def of(
        cls,
        graph: Graph,
        name: str,
        dtypes: Mapping[str, torch.dtype],
        seeds: Mapping[str, Tensor],
        seed_times: Any,
        *,
        share: bool,
    ) -> TreeTimes:
        """A tree for each seed, or with ``share`` for each time, in the order of time; raises as
        ``sample`` does.

        Args:
            graph: The graph.
            name: The field of vertices that has the seeds' own times.
            dtypes: Dtypes of the graph's times, see :func:`check_time_fields`.
            seeds: Seeds by type.
            seed_times: Their times, or None for their own.
            share: Seeds of the same time share a tree.
        """
        if seed_times is not None and not isinstance(seed_times, Tensor | Mapping):
            got = type(seed_times).__name__
            raise TypeError(f"seed_times must be a tensor or a mapping from vertex type, got {got}")
        given = (
            {graph.only_node_type: seed_times}
            if isinstance(seed_times, Tensor)
            else seed_times or {}
        )
        for ntype in given:
            if ntype not in seeds:
                raise KeyError(
                    f"seed_times must be of the seeds' types {list(seeds)}, got {ntype!r}"
                )
        ticks = [torch.empty(0, dtype=torch.int64, device="cpu")]
        kinds = dict(dtypes)
        for ntype in (t for t in graph.node_types if t in seeds):
            owner, times = _times_of(graph, name, ntype, seeds[ntype], given.get(ntype))
            ticks.append(known_ticks(owner, times))
            kinds[owner] = times.dtype
        floats = one_kind(kinds)
        until = torch.cat(ticks)
        if share:
            until, of_seeds = torch.unique(until, return_inverse=True)
        else:
            of_seeds = torch.arange(len(until), device="cpu")
        return cls(until, of_seeds, floats)

    @cached_property
    def _starts(self) -> dict[float | None, Array | None]:
        return {}

    def starts(self, length: float | None) -> Array | None:
        """The ticks that those in a window of this length are above, for each tree; None where
        there is no limit."""
        if length not in self._starts:
            starts = window_starts(self.until, length, self.floats)
            self._starts[length] = None if starts is None else starts.numpy()
        return self._starts[length]


def _times_of(graph: Graph, name: str, ntype: str, seeds: Tensor, times: Any) -> tuple[str, Tensor]:
    """The seeds' times, and whose they are called."""
    owner = f"seed_times[{ntype!r}]"
    if times is not None:
        return owner, as_times(owner, times, len(seeds), "seed")
    values = graph.node_fields(ntype).get(name)
    if values is None:
        raise ValueError(
            f"seed_times must be given for seeds of type {ntype!r}, which has no vertex field "
            f"{name!r}"
        )
    values = as_times(f"vertex field {name!r}", values, graph.num_nodes_of(ntype), "vertex")
    return f"vertex field {name!r} of the seeds", values[seeds]
