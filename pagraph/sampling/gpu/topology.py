"""Topology: the edges of a graph as a device draws from them, on it or in pinned host memory."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ...accelerator import OutOfMemory, StagingRing
from ..sampler import edge_ends

if TYPE_CHECKING:
    from ...accelerator import Accelerator, Pin
    from ...graph.csc import CSC
    from ...graph.graph import Graph
    from ...system.budget import Budget
    from ..edge_values import EdgeWeights
    from ..times import EdgeTimes

_PLACEMENTS = {
    "device": ("indptr", "indices"),
    "indptr on the device, indices pinned": ("indptr",),
    "pinned": (),
}

# Of these a draw reads few numbers at random, so they come after what it reads of every edge.
_DRAWN_BY = ("times", "origin", "weights", "sums", "guide")
_WORDS = dict.fromkeys(_DRAWN_BY, "weights") | {"edge_ids": "ids", "times": "times"}

_placing = threading.Lock()  # guards what follows, and the users of each
_placed: weakref.WeakKeyDictionary[CSC, list[weakref.ref[Topology]]] = weakref.WeakKeyDictionary()


class Drawn(NamedTuple):
    """What the edges of one type are drawn by, beside the fan-out. Nothing is equal to it that was
    made of another version of the fields.

    Attributes:
        csc: The edges.
        times: Their times; None: they have none.
        weights: Their weights; None: all alike.
    """

    csc: CSC
    times: EdgeTimes | None = None
    weights: EdgeWeights | None = None

    def rows(self) -> dict[str, Tensor]:
        """``indptr`` and ``indices`` in host memory, see :class:`DeviceEdges`."""
        csc = self._in_order
        kept = None if self.weights is None else self.weights.kept
        if kept is None:
            return {"indptr": csc.indptr.contiguous(), "indices": csc.indices.contiguous()}
        return {"indptr": kept.indptr, "indices": csc.indices[kept.indices.long()]}

    def ids(self) -> Tensor | None:
        """The same of ``edge_ids``."""
        ids = self._in_order.edge_ids
        return None if ids is None else ids.contiguous()

    def more(self) -> dict[str, Tensor]:
        """The same of what edges are drawn by."""
        more = {}
        if self.times is not None:
            more["times"] = self.times.values
        weights = self.weights
        if weights is not None and weights.kept is not None:
            more["origin"] = weights.kept.indices
        if weights is not None and weights.values is not None:
            more["weights"] = weights.values
            more["sums"], more["guide"] = map(torch.from_numpy, weights.tables())
        return more

    @property
    def _in_order(self) -> CSC:
        return self.csc if self.times is None else self.times.in_order(self.csc)


@dataclass(eq=False)
class DeviceEdges:
    """The edges of one type for the kernels of one device. All arrays are on it or pinned.

    Attributes:
        indptr: Shape ``(num_dst + 1,)``.
        indices: Shape ``(num_edges,)``, the same dtype. Without edges of weight 0; rows are in the
            order of time where there are times.
        src, dst: Numbers of the vertex types that they come from and lead to.
        edge_ids: The user's id of each edge; None: its position, or they were not asked for.
        times: Shape ``(num_edges,)``, int32 or int64, see ``EdgeTimes``; None: edges have none.
        origin: Shape ``(num_edges,)``: where each edge is among those of the graph, if some have a
            weight of 0. ``edge_ids`` are of the graph's.
        weights, sums, guide: See ``EdgeWeights``; None: all alike.
    """

    indptr: Tensor
    indices: Tensor
    src: int
    dst: int
    edge_ids: Tensor | None = None
    times: Tensor | None = None
    origin: Tensor | None = None
    weights: Tensor | None = None
    sums: Tensor | None = None
    guide: Tensor | None = None


@dataclass(eq=False)
class Topology:
    """A graph's edges for the kernels of one device, and its table of vertices; made by
    :meth:`place`, or for several samplers of one graph by :meth:`shared`.

    Attributes:
        relations: The edges, by number of the edge type.
        first: Shape ``(vertices of all types,)``, int32, on the device, zero but while a batch is
            sampled.
        tables: The part of it that each vertex type has.
        placement: "device", "indptr on the device, indices pinned" or "pinned".
        nbytes: Bytes on the device.
        pins: The pins of host memory, released by :meth:`close`.
        device: That of the arrays.
        budget: By which they were placed.
        drawn: What they were placed from.
        lock: Held while a batch's work is enqueued: batches share the table of vertices.
        users: Samplers that have not called :meth:`close`.
    """

    relations: list[DeviceEdges]
    first: Tensor
    tables: list[Tensor]
    placement: str
    nbytes: int
    pins: tuple[Pin, ...]
    device: Accelerator
    budget: Budget | None
    drawn: tuple[Drawn, ...]
    lock: threading.Lock = field(default_factory=threading.Lock)
    users: int = 1

    @classmethod
    def shared(
        cls,
        graph: Graph,
        drawn: tuple[Drawn, ...],
        accelerator: Accelerator,
        budget: Budget | None,
    ) -> Topology:
        """:meth:`place`, or what another sampler has placed: all of it, or by an equal budget.

        A training and a validation loader would take the memory twice otherwise, and "auto" of the
        second half of what the first left.
        """
        with _placing:
            known = _placed.setdefault(drawn[0].csc, [])
            for topology in [reference() for reference in known]:
                if topology is None or not topology.users or topology.device is not accelerator:
                    continue
                # A CSC is equal to itself alone, and so are times and weights.
                if topology.drawn != drawn:
                    continue
                if topology.budget == budget or topology.placement == "device":
                    topology.users += 1
                    return topology
            topology = cls.place(graph, drawn, accelerator, budget)
            known[:] = [reference for reference in known if reference() is not None]
            known.append(weakref.ref(topology))
            return topology

    @classmethod
    def place(
        cls,
        graph: Graph,
        drawn: tuple[Drawn, ...],
        accelerator: Accelerator,
        budget: Budget | None,
    ) -> Topology:
        """Place as much on the device as the budget allows, and pin the rest; call where a stream
        is in use.

        The table of vertices is on the device in any case, since kernels write it without order;
        then comes what an edge drawn reads first, ``indptr``, then ``indices``. Where memory runs
        out, more is pinned.

        Args:
            graph: The graph.
            drawn: What is drawn of each of its edge types, by destination or by source.
            accelerator: The device.
            budget: Bytes that the arrays and the table may take; a share means one of the arrays,
                the table on top; "auto" half of what is free; None pins both arrays.

        Raises:
            ValueError: The budget is above what is free, or host memory that does not fit cannot be
                pinned.
            OutOfMemory: Not even the table fits.
        """
        every = [of_type.rows() for of_type in drawn]
        arrays = {name: [rows[name] for rows in every] for name in ("indptr", "indices")}
        counts = [graph.num_nodes_of(node_type) for node_type in graph.node_types]
        limit = _limit(arrays, sum(counts), accelerator, budget)
        first = accelerator.empty((sum(counts),), torch.int32).zero_()
        ring = StagingRing(accelerator)
        for placement, names in _PLACEMENTS.items():
            wanted = [array for name in names for array in arrays[name]]
            nbytes = first.nbytes + sum(array.nbytes for array in wanted)
            if names and nbytes > limit:
                continue
            try:
                uploaded = ring.upload(wanted) if names else []
            except OutOfMemory:
                accelerator.release_memory()
                continue
            pins = _pinned(arrays, names, first, accelerator, budget)
            count = len(drawn)
            placed = {name: uploaded[i * count :][:count] for i, name in enumerate(names)}
            both = arrays | placed
            relations = [
                DeviceEdges(indptr, indices, src, dst)
                for indptr, indices, (src, dst) in zip(
                    both["indptr"], both["indices"], edge_ends(graph).tolist(), strict=True
                )
            ]
            topology = cls(
                relations=relations,
                first=first,
                tables=list(torch.split(first, counts)),
                placement=placement,
                nbytes=nbytes,
                pins=pins,
                device=accelerator,
                budget=budget,
                drawn=drawn,
            )
            more = [of_type.more() for of_type in drawn]
            try:
                for name in _DRAWN_BY:
                    topology._place_more(name, [of_type.get(name) for of_type in more])
            except ValueError:
                for pin in topology.pins:
                    pin.release()
                raise
            return topology
        raise AssertionError("the last placement needs no memory")

    def place_edge_ids(self) -> None:
        """Have the ids of edges in reach, for samplers that return them; call where a stream is in
        use. Raises as :meth:`place` does."""
        if all(edges.edge_ids is None for edges in self.relations):
            self._place_more("edge_ids", [of_type.ids() for of_type in self.drawn])

    def _place_more(self, name: str, arrays: Sequence[Tensor | None]) -> None:
        """Place an array of each edge type that has one: on the device where it has all else and
        the budget has room, pinned in other cases."""
        for edges, array in zip(self.relations, arrays, strict=True):
            if array is None:
                continue
            if self.placement == "device" and array.nbytes <= self._room(array.nbytes):
                (there,) = StagingRing(self.device).upload([array])
                setattr(edges, name, there)
                self.nbytes += array.nbytes
                continue
            pin = self.device.pin(array)
            if pin is None:
                raise ValueError(
                    f"the memory of the edges' {_WORDS[name]} cannot be pinned on "
                    f"{self.device.device}: sampling_device='cpu' needs none"
                )
            setattr(edges, name, array)
            self.pins = (*self.pins, pin)

    def _room(self, more: int) -> int:
        """Bytes that the budget leaves, of which arrays of ``more`` bytes are a part; "auto": half
        of what is free now."""
        if self.budget is None:
            return 0
        free, _ = self.device.free_bytes()
        placed = self.nbytes - self.first.nbytes
        limit = self.budget.nbytes([(1, placed + more)], free=lambda: free // 2 + self.nbytes)
        if not self.budget.pays_tables:
            limit += self.first.nbytes
        return min(free, limit - self.nbytes)

    def open(self) -> None:
        """Have one more user, who calls :meth:`close`."""
        with _placing:
            self.users += 1

    def close(self) -> None:
        """Unpin the host's memory once its last sampler is closed, which must launch no kernel any
        more."""
        with _placing:
            self.users -= 1
            if self.users:
                return
        for pin in self.pins:
            pin.release()


def _limit(
    arrays: dict[str, list[Tensor]],
    num_nodes: int,
    accelerator: Accelerator,
    budget: Budget | None,
) -> int:
    """Bytes that the arrays and the table may take."""
    if budget is None:
        return 0
    free, total = accelerator.free_bytes()
    table = num_nodes * torch.int32.itemsize
    whole = sum(map(_nbytes, arrays.values()))
    limit = budget.nbytes([(1, whole)], free=lambda: free // 2)
    if not budget.pays_tables:
        limit += table
    if budget.limit is not None and limit > free:
        raise ValueError(
            f"sampling_budget must be at most the {free} bytes that are free on "
            f"{accelerator.device} "
            f"(of {total}), got {limit}"
        )
    return limit


def _nbytes(arrays: Sequence[Tensor]) -> int:
    return sum(array.nbytes for array in arrays)


def _pinned(
    arrays: dict[str, list[Tensor]],
    placed: Sequence[str],
    first: Tensor,
    accelerator: Accelerator,
    budget: Budget | None,
) -> tuple[Pin, ...]:
    """Pins of the arrays that are not placed on the device."""
    pins = {
        name: [accelerator.pin(array) for array in of_name]
        for name, of_name in arrays.items()
        if name not in placed
    }
    every = [pin for of_name in pins.values() for pin in of_name]
    refused = [name for name, of_name in pins.items() if None in of_name]
    if refused:
        for pin in every:
            if pin is not None:
                pin.release()
        # What lies before a refused array is placed on the device with it.
        needed = first.nbytes + _nbytes(arrays["indptr"])
        if "indices" in refused:
            needed += _nbytes(arrays["indices"])
        raise ValueError(
            f"sampling_budget must be at least {needed} bytes, because the host memory of the "
            "graph's "
            f"{' and '.join(refused)} cannot be pinned on {accelerator.device}, got {budget}; "
            "sampling_device='cpu' "
            "needs none"
        )
    return tuple(pin for pin in every if pin is not None)
