"""Topology: the edges of a graph as a device draws from them, on it or in pinned host memory."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...accelerator import OutOfMemory, StagingRing
from ..sampler import edge_ends

if TYPE_CHECKING:
    from ...accelerator import Accelerator, Pin
    from ...graph.csc import CSC
    from ...graph.graph import Graph
    from ...system.budget import Budget

_PLACEMENTS = {
    "device": ("indptr", "indices"),
    "indptr on the device, indices pinned": ("indptr",),
    "pinned": (),
}

_placing = threading.Lock()  # guards what follows, and the users of each
_placed: weakref.WeakKeyDictionary[CSC, list[weakref.ref[Topology]]] = weakref.WeakKeyDictionary()


@dataclass(eq=False)
class DeviceEdges:
    """The edges of one type for the kernels of one device.

    Attributes:
        indptr: Shape ``(num_dst + 1,)``, on the device or pinned.
        indices: Shape ``(num_edges,)``, on the device or pinned, the same dtype.
        src, dst: Numbers of the vertex types that they come from and lead to.
        edge_ids: Shape ``(num_edges,)``: the user's id of each edge, on the device or pinned; None:
            its position, or they were not asked for.
    """

    indptr: Tensor
    indices: Tensor
    src: int
    dst: int
    edge_ids: Tensor | None = None


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
        cscs: What they were placed from.
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
    cscs: tuple[CSC, ...]
    lock: threading.Lock = field(default_factory=threading.Lock)
    users: int = 1

    @classmethod
    def shared(
        cls, graph: Graph, edge_dir: str, accelerator: Accelerator, budget: Budget | None
    ) -> Topology:
        """:meth:`place`, or what another sampler has placed: all of it, or by an equal budget.

        A training and a validation loader would take the memory twice otherwise, and "auto" of the
        second half of what the first left.
        """
        cscs = tuple(graph.adjacency(edge_dir, edge_type) for edge_type in graph.edge_types)
        with _placing:
            known = _placed.setdefault(cscs[0], [])
            for topology in [reference() for reference in known]:
                if topology is None or not topology.users or topology.device is not accelerator:
                    continue
                # A CSC is equal to itself alone.
                if topology.cscs != cscs:
                    continue
                if topology.budget == budget or topology.placement == "device":
                    topology.users += 1
                    return topology
            topology = cls.place(graph, cscs, accelerator, budget)
            known[:] = [reference for reference in known if reference() is not None]
            known.append(weakref.ref(topology))
            return topology

    @classmethod
    def place(
        cls,
        graph: Graph,
        cscs: tuple[CSC, ...],
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
            cscs: The edges of each of its edge types, by destination or by source.
            accelerator: The device.
            budget: Bytes that the arrays and the table may take; a share means one of the arrays,
                the table on top; "auto" half of what is free; None pins both arrays.

        Raises:
            ValueError: The budget is above what is free, or host memory that does not fit cannot be
                pinned.
            OutOfMemory: Not even the table fits.
        """
        arrays = {
            "indptr": [csc.indptr.contiguous() for csc in cscs],
            "indices": [csc.indices.contiguous() for csc in cscs],
        }
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
            count = len(cscs)
            placed = {name: uploaded[i * count :][:count] for i, name in enumerate(names)}
            both = arrays | placed
            relations = [
                DeviceEdges(indptr, indices, src, dst)
                for indptr, indices, (src, dst) in zip(
                    both["indptr"], both["indices"], edge_ends(graph).tolist(), strict=True
                )
            ]
            return cls(
                relations=relations,
                first=first,
                tables=list(torch.split(first, counts)),
                placement=placement,
                nbytes=nbytes,
                pins=pins,
                device=accelerator,
                budget=budget,
                cscs=cscs,
            )
        raise AssertionError("the last placement needs no memory")

    def place_edge_ids(self) -> None:
        """Have the ids of edges in reach, for samplers that return them; call where a stream is in
        use.

        They come last: on the device where it has all else and the budget has room for them, pinned
        in other cases.

        Raises:
            ValueError: The host's memory cannot be pinned.
        """
        for edges, csc in zip(self.relations, self.cscs, strict=True):
            if csc.edge_ids is None or edges.edge_ids is not None:
                continue
            ids = csc.edge_ids.contiguous()
            if self.placement == "device" and ids.nbytes <= self._room(ids.nbytes):
                (edges.edge_ids,) = StagingRing(self.device).upload([ids])
                self.nbytes += ids.nbytes
                continue
            pin = self.device.pin(ids)
            if pin is None:
                raise ValueError(
                    f"the memory of the edges' ids cannot be pinned on {self.device.device}: "
                    "sampling_device='cpu' needs none"
                )
            edges.edge_ids = ids
            self.pins = (*self.pins, pin)

    def _room(self, more: int) -> int:
        """Bytes that the budget leaves, of which arrays of ``more`` bytes are a part; "auto": half
        of what is free now."""
        if self.budget is None:
            return 0
        free, _ = self.device.free_bytes()
        arrays = sum(edges.indptr.nbytes + edges.indices.nbytes for edges in self.relations)
        limit = self.budget.nbytes([(1, arrays + more)], free=lambda: free // 2 + self.nbytes)
        if not self.budget.pays_tables:
            limit += self.first.nbytes
        return min(free, limit - self.nbytes)

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
