"""Counts the pages that mini-batches touch of a graph's files, in its own order of vertices or
another."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..graph.minibatch import HeteroMiniBatch, MiniBatch
from ..seeds.order import SeedOrder

if TYPE_CHECKING:
    from ..graph.graph import EdgeType, Graph
    from ..sampling.sampler import MiniBatchSampler

WINDOW = 8
"""Batches whose rows are read together in a window."""

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class PagesRead:
    """Pages that batches touch of some files, and their bytes over those of the rows that are
    needed.

    Attributes:
        pages: Distinct pages of a batch, the mean.
        batch_ratio: Bytes of these over those of the batch's distinct rows.
        window_ratio: The same for :data:`WINDOW` batches together.
    """

    pages: float
    batch_ratio: float
    window_ratio: float

    def to_json(self) -> dict[str, float]:
        """The figures by name."""
        return asdict(self)


@dataclass(frozen=True, eq=False)
class SampledRows:
    """Reads of sampled batches: vertices by type, and edges by type with the vertices that drew
    them.

    Attributes:
        batches: For each batch, the distinct vertices by type; then edges, distinct positions in
            the CSC of their type and the destination of each.
    """

    graph: Graph
    batches: list[tuple[dict[str, Array], dict[EdgeType, tuple[Array, Array]]]]

    def features(
        self, widths: Mapping[str, int], places: Mapping[str, Array] | None = None
    ) -> PagesRead:
        """Pages of rows of ``widths`` bytes by vertex type, at ``places`` or at those that they
        have."""
        needed = [
            {
                t: ids if places is None else places[t][ids].astype(np.int64)
                for t, ids in vertices.items()
                if widths.get(t)
            }
            for vertices, _ in self.batches
        ]
        return _pages_read(
            [{t: (rows, widths[t]) for t, rows in batch.items()} for batch in needed]
        )

    def topology(
        self,
        places: Mapping[str, Array] | None = None,
        offsets: Mapping[EdgeType, Array] | None = None,
    ) -> PagesRead:
        """Pages of ``indptr`` and ``indices``, with rows at ``places`` that begin at ``offsets``,
        or where they are."""
        counted = []
        for _, edges in self.batches:
            touched: dict[Any, tuple[Array, int]] = {}
            for etype, (positions, drew) in edges.items():
                csc = self.graph.csc_of(etype)
                width = csc.indices.element_size()
                rows = drew
                if places is not None and offsets is not None:
                    rows = places[etype[2]][drew].astype(np.int64)
                    # A row moves as a whole: an edge keeps its distance from the row's begin.
                    positions = offsets[etype][rows] + positions - csc.indptr.numpy()[drew]
                rows = np.unique(rows)
                # A sampler reads where a row begins and where the next one does.
                touched[etype, "indptr"] = np.union1d(rows, rows + 1), csc.indptr.element_size()
                touched[etype, "indices"] = positions, width
            counted.append(touched)
        return _pages_read(counted)


def sample_rows(
    graph: Graph,
    seeds: Any,
    sampler: MiniBatchSampler,
    *,
    batch_size: int,
    seed: int = 0,
    batches: int = WINDOW,
) -> SampledRows:
    """Sample the first batches of a shuffled epoch, and keep what they read."""
    order = SeedOrder(seeds, batch_size, shuffle=True, seed=seed)
    plan = order.plan(0)
    found = []
    for index in range(min(batches, len(order))):
        ticket = order.ticket(plan, index)
        found.append(_rows_of(graph, sampler.sample(graph, ticket.seeds, ticket.key)))
    return SampledRows(graph, found)


def _rows_of(
    graph: Graph, batch: Any
) -> tuple[dict[str, Array], dict[EdgeType, tuple[Array, Array]]]:
    if isinstance(batch, MiniBatch):
        (ntype,), (etype,) = graph.node_types, graph.edge_types
        drawn = {
            etype: [(block.indptr, block.positions, block.dst_nodes) for block in batch.blocks]
        }
        vertices = {ntype: batch.input_nodes}
    else:
        assert isinstance(batch, HeteroMiniBatch)
        vertices = batch.input_nodes
        drawn = {
            etype: [
                (
                    block.relations[etype].indptr,
                    block.relations[etype].positions,
                    block.dst_nodes[etype[2]],
                )
                for block in batch.blocks
            ]
            for etype in graph.edge_types
        }
    edges = {}
    for etype, blocks in drawn.items():
        positions = np.concatenate([part.numpy().astype(np.int64) for _, part, _ in blocks])
        drew = np.concatenate(
            [np.repeat(ids.numpy(), np.diff(indptr.numpy())) for indptr, _, ids in blocks]
        )
        # An edge may be drawn in several hops, but its page is read once.
        positions, first = np.unique(positions, return_index=True)
        edges[etype] = positions, drew[first].astype(np.int64)
    return {t: np.unique(ids.numpy()).astype(np.int64) for t, ids in vertices.items()}, edges


def _pages_read(batches: list[dict[Any, tuple[Array, int]]]) -> PagesRead:
    """Counts for rows and their bytes by file and batch; rows begin at a page, as good as where a
    header ends."""
    one = [_count(batch) for batch in batches]
    windows = []
    for begin in range(0, len(batches), WINDOW):
        joined: dict[Any, tuple[Array, int]] = {}
        for batch in batches[begin : begin + WINDOW]:
            for file, (rows, width) in batch.items():
                before = joined[file][0] if file in joined else rows[:0]
                joined[file] = np.union1d(before, rows), width
        windows.append(_count(joined))
    return PagesRead(
        sum(pages for pages, _ in one) / max(1, len(one)), _ratio(one), _ratio(windows)
    )


def _count(batch: dict[Any, tuple[Array, int]]) -> tuple[int, int]:
    """Distinct pages, and bytes that are needed."""
    pages = 0
    for rows, width in batch.values():
        low = rows * width // mmap.PAGESIZE
        high = (rows * width + width - 1) // mmap.PAGESIZE
        # A row wider than a page touches those in between, too.
        inner = [low + step for step in range(int((high - low).max(initial=0)) + 1)]
        pages += len(np.unique(np.concatenate([np.minimum(some, high) for some in inner])))
    return pages, sum(len(rows) * width for rows, width in batch.values())


def _ratio(counted: list[tuple[int, int]]) -> float:
    needed = sum(nbytes for _, nbytes in counted)
    return sum(pages for pages, _ in counted) * mmap.PAGESIZE / needed if needed else 0.0
