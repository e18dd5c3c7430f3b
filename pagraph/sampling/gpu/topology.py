"""Topology: a graph's edges for a device's kernels, on the device or in pinned host memory."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ...accelerator import OutOfMemory, StagingRing
from ..plan import edge_ends

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

# Placed after `indptr` and `indices`, which every drawn edge reads; of these few numbers are read.
_DRAWN_BY = ("times", "origin", "weights", "sums", "guide")
_WORDS = dict.fromkeys(_DRAWN_BY, "weights") | {"edge_ids": "ids", "times": "times"}

_placing = threading.Lock()  # guards `_placed`, and `users` of each topology
_placed: weakref.WeakKeyDictionary[CSC, list[weakref.ref[Topology]]] = weakref.WeakKeyDictionary()


class Drawn(NamedTuple):
    """The edges of one type with their times and weights.

    Compared by identity of these, so it differs for each version of the fields.

    Attributes:
        csc: The edges.
        times: Their times, if any.
        weights: Their weights; None: all are equal.
    """

    csc: CSC
    times: EdgeTimes | None = None
    weights: EdgeWeights | None = None

    def rows(self) -> dict[str, Tensor]:
        """``indptr`` and ``indices`` of :class:`DeviceEdges`, in host memory."""
        csc = self._in_order
        kept = None if self.weights is None else self.weights.kept
        if kept is None:
            return {"indptr": csc.indptr.contiguous(), "indices": csc.indices.contiguous()}
        return {"indptr": kept.indptr, "indices": csc.indices[kept.indices.long()]}

    def ids(self) -> Tensor | None:
        """``edge_ids`` of :class:`DeviceEdges`, in host memory, if any."""
        ids = self._in_order.edge_ids
        return None if ids is None else ids.contiguous()

    def more(self) -> dict[str, Tensor]:
        """The other arrays of :class:`DeviceEdges`, in host memory."""
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
    """The edges of one type for the kernels of one device. Arrays are on it or in pinned memory.

    Edges of weight 0 are left out. With times, each row is sorted by time.

    Attributes:
        indptr: Shape ``(num_dst + 1,)``, int32 or int64.
        indices: Shape ``(num_edges,)``, the same dtype.
        src, dst: Numbers of the source's and the destination's vertex types.
        edge_ids: The user's id for each position in the graph; None: ids are positions, or are not
            needed.
        times: Shape ``(num_edges,)``, int32 or int64, see ``EdgeTimes``; None without times.
        origin: Shape ``(num_edges,)``: the position of each edge in the graph; None if no edge is
            left out.
        weights, sums, guide: See ``EdgeWeights``; None: all are equal.
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
    """A graph's edges for the kernels of one device, and its vertex table.

    Made by :meth:`place`, or by :meth:`shared` for several samplers of one graph.

    Attributes:
        relations: The edges, by number of the edge type.
        first: The vertex table, shape ``(vertices of all types,)``, int32, on the device. All 0
            except while a batch is sampled; see kernels.py.
        tables: The parts of ``first`` by vertex type.
        placement: "device", "indptr on the device, indices pinned" or "pinned".
        nbytes: Bytes on the device.
        pins: Pins of host memory, released by :meth:`close`.
        device: The device.
        budget: The budget by which arrays were placed.
        drawn: The edges that were placed.
        lock: Held while a batch is enqueued, since batches share the vertex table.
        users: Number of samplers that have not called :meth:`close`.
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
        """A topology that another sampler has placed, else a new one by :meth:`place`.

        Shared if it was placed with an equal budget, or is on the device as a whole. Else a
        training and a validation loader would take the memory twice, and "auto" of the second would
        be half of what the first one left.
        """
        with _placing:
            known = _placed.setdefault(drawn[0].csc, [])
            for topology in [reference() for reference in known]:
                if topology is None or not topology.users or topology.device is not accelerator:
                    continue
                # CSCs, times and weights compare by identity.
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
        """Place as many arrays on the device as the budget allows, and pin the others.

        The vertex table is always on the device, as kernels write it at random. Then comes
        ``indptr``, then ``indices``, in the order in which a drawn edge reads them. If an upload
        runs out of memory, fewer arrays are placed. Work is enqueued on the current stream.

        Args:
            graph: The graph.
            drawn: The edges of each edge type, by destination or by source.
            accelerator: The device.
            budget: Device memory for the arrays and the table. A share is one of the arrays alone,
                without the table; "auto" is half of the free memory; None pins all arrays.

        Raises:
            ValueError: The budget is above the free memory, or host memory cannot be pinned.
            OutOfMemory: The table does not fit.
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
            relations = []
            of_types = zip(both["indptr"], both["indices"], edge_ends(graph).tolist(), strict=True)
            for indptr, indices, (src, dst) in of_types:
                relations.append(DeviceEdges(indptr, indices, src, dst))
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
            topology._place_drawn_by()
            return topology
        raise AssertionError("the last placement needs no memory")

    def _place_drawn_by(self) -> None:
        """Place or pin what the picks depend on; unpins everything if that is not possible."""
        more = [of_type.more() for of_type in self.drawn]
        try:
            for name in _DRAWN_BY:
                self._place_more(name, [of_type.get(name) for of_type in more])
        except ValueError:
            for pin in self.pins:
                pin.release()
            raise

    def place_edge_ids(self) -> None:
        """Place or pin the edges' ids, for samplers that return them; raises as :meth:`place`."""
        if all(edges.edge_ids is None for edges in self.relations):
            self._place_more("edge_ids", [of_type.ids() for of_type in self.drawn])

    def _place_more(self, name: str, arrays: Sequence[Tensor | None]) -> None:
        """Place an array of each edge type that has one.

        On the device if all arrays before it are there and the budget allows; else pinned.
        """
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
        """Bytes that the budget still allows, when ``more`` bytes of arrays are to be placed.

        A share counts these arrays, too; "auto" is half of what is free now.
        """
        if self.budget is None:
            return 0
        free, _ = self.device.free_bytes()
        placed = self.nbytes - self.first.nbytes
        limit = self.budget.nbytes([(1, placed + more)], free=lambda: free // 2 + self.nbytes)
        if not self.budget.pays_tables:
            limit += self.first.nbytes
        return min(free, limit - self.nbytes)

    def open(self) -> None:
        """Add a user, which must call :meth:`close`."""
        with _placing:
            self.users += 1

    def close(self) -> None:
        """Remove a user; the last one unpins host memory, and must launch no kernel afterwards."""
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
    """Device memory that the arrays and the table may take, in bytes."""
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
    """Pin the arrays that are not placed on the device; all or none."""
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
        # Arrays are placed in order, so those before a refused one need room on the device, too.
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
