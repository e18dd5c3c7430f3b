"""Pre-aggregation, the PaGraph paper's preprocessing: computes the first layer's sums once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..datasets.native import write_graph
from ..features.disk import on_disk
from ..features.field import row_reader
from ..graph.csc import check_range
from ..graph.fields import FieldValue
from ..graph.graph import Graph
from ..graph.stored_rows import NarrowRows
from ..options.names import SUMS
from ..system.atomic import check_absent
from ..system.budget import work_memory
from ..system.checks import StrPath
from ..system.progress import Progress
from ..system.units import shortened
from .windows import SourceWindows, Window, least_room

FEATURES = "feat"

_CHUNK_BYTES = 16 * 2**20
_CHUNK_EDGES = 2**18
_CHUNKS = 4  # one of the file, one of the sums, and two of edges with their weights
_VERTEX_BYTES = 32  # degrees and scales, and the place of a row
_KERNEL_BYTES = 48 * 2**20  # compiled kernels and their threads
_OF_A_PART = {"global_ids", "in_degrees", "out_degrees"}  # fields of a part, which lacks neighbours
_LEAST_SUM = 1e-12  # as in torch.nn.functional.normalize


def preaggregated_for(graph: Graph) -> str | None:
    """The model that features are pre-aggregated for, ``"sage"`` or ``"gcn"``, or None.

    Raises:
        ValueError: There are fields for both.
    """
    found = [model for model, name in SUMS.items() if name in graph.ndata]
    if len(found) > 1:
        raise ValueError(
            f"graph must have at most one of the fields {', '.join(SUMS.values())}, got both"
        )
    return found[0] if found else None


def gcn_degrees(graph: Graph) -> tuple[Tensor, Tensor]:
    """In- and out-degrees, int64, as if every vertex had exactly one self-loop."""
    more = 1 - graph.csc.loop_counts
    return graph.in_degrees() + more, graph.out_degrees() + more


def preaggregate(
    graph: Graph,
    folder: StrPath,
    *,
    model: str,
    row_normalize: bool = False,
    memory: int | str | None = None,
    origin: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> None:
    """Write a graph with the first layer's neighbour sums as a native folder, whole or not at all.

    For GCN the field ``feat_gcn`` replaces ``feat``. For GraphSAGE, whose first layer also takes a
    vertex's own features, ``feat_mean`` is added; it is 0 for vertices without in-neighbours.
    Everything else is copied.

    Features may be larger than memory. Sums are computed for runs of vertices whose in-neighbours'
    rows fit, and these rows are read in file order.

    Args:
        graph: A graph of one vertex type and one edge type, with the 2-D real field ``feat``. Its
            ids are checked.
        folder: Folder to write, which must not exist yet.
        model: ``"sage"`` or ``"gcn"``, as :mod:`pagraph.train.models` defines them.
        row_normalize: Divide each vertex's features by their sum first. This is impossible once
            they are summed up.
        memory: Bytes that the process may take (``"4GiB"``), including what it already holds beyond
            an eighth of it. Default: half of what is free.
        origin: A note on where the graph is from.
        progress: Called with the bytes written and the bytes to write.

    Raises:
        FileExistsError: ``folder`` exists.
        ValueError: ``memory`` is too little (the message says how much is needed); ``model`` is
            neither; or the graph lacks the features, is a part, or is already pre-aggregated.

    Example:
        >>> import os, tempfile
        >>> features = torch.tensor([[1.0], [2.0], [4.0]])
        >>> graph = Graph.from_coo([0, 1, 2], [1, 2, 2], ndata={"feat": features})
        >>> target = os.path.join(tempfile.mkdtemp(), "means")
        >>> preaggregate(graph, target, model="sage")
        >>> Graph.open(target).ndata["feat_mean"].tolist()
        [[0.0], [1.0], [3.0]]
    """
    check_absent(folder)
    sums = NeighborSums(graph, model=model, row_normalize=row_normalize, memory=memory)
    kept = {name: value for name, value in graph.ndata.items() if name != FEATURES}
    computed: dict[str, NeighborSums | FeatureRows | NarrowRows] = {SUMS[model]: sums}
    if model == "sage":
        features = graph.ndata[FEATURES]
        computed[FEATURES] = sums.features
        if isinstance(features, NarrowRows) and not row_normalize:
            computed[FEATURES] = features
    about = {**(origin or {}), "preaggregated_for": model, "row_normalize": row_normalize}
    rest = Graph(graph.csc, ndata=kept, edata=graph.edata)
    write_graph(rest, folder, origin=about, computed=computed, progress=progress)


class FeatureRows:
    """Feature rows that are read on access: 2-D, of any real dtype, perhaps mapped.

    With ``row_normalize`` each row is divided by the sum of its magnitudes, which makes it float32.
    """

    def __init__(self, features: FieldValue, *, row_normalize: bool = False) -> None:
        self.dtype: torch.dtype = torch.float32 if row_normalize else features.dtype
        self.shape: tuple[int, int] = (int(features.shape[0]), int(features.shape[1]))
        self._rows = row_reader(features)
        self.scales: Tensor | None = self._scales() if row_normalize else None

    def __getitem__(self, rows: slice) -> Tensor:
        """A slice of the rows."""
        begin, end, _ = rows.indices(self.shape[0])
        ids = torch.arange(begin, end, device="cpu")
        if self.scales is None:
            return self._rows.read(ids)
        return self.read(ids).mul_(self.scales[begin:end, None])

    def read(self, ids: Tensor) -> Tensor:
        """The rows of ``ids`` as float32, not normalised; a copy."""
        return self._rows.read(ids).float()

    def _scales(self) -> Tensor:
        # Into one tensor, as small ones between the chunks kept malloc from reusing the chunks'
        # memory (787 MiB for 819 MB).
        sums = torch.empty(self.shape[0], device="cpu")
        step = rows_at_once(self.shape[1])
        for begin in range(0, len(sums), step):
            some = sums[begin : begin + step]
            ids = torch.arange(begin, begin + len(some), device="cpu")
            torch.sum(self.read(ids).abs_(), 1, out=some)
        return sums.clamp_(min=_LEAST_SUM).reciprocal_()


class NeighborSums:
    """Neighbour sums that are computed on access, a 2-D field of float32.

    Arguments and errors are those of :func:`preaggregate`.
    """

    dtype = torch.float32

    def __init__(
        self,
        graph: Graph,
        *,
        model: str,
        row_normalize: bool = False,
        memory: int | str | None = None,
    ) -> None:
        _check(graph, model)
        self._csc = graph.csc
        self._model = model
        self.features: FeatureRows = FeatureRows(graph.ndata[FEATURES], row_normalize=row_normalize)
        self.shape: tuple[int, int] = self.features.shape
        self._windows = SourceWindows(graph.csc, graph.ndata[FEATURES], _room(graph, memory))
        self._from, self._to = _scales(graph, model)
        if self.features.scales is not None:
            self._from *= self.features.scales

    def __getitem__(self, rows: slice) -> Tensor:
        """The sums of a slice of the vertices, shape ``(n, width)``."""
        begin, end, _ = rows.indices(self.shape[0])
        if self._model == "gcn":
            out = self.features.read(torch.arange(begin, end, device="cpu")).mul_(
                self._from[begin:end, None]
            )
        else:
            out = torch.zeros(end - begin, self.shape[1], device="cpu")
        at = begin
        while at < end:
            window = self._windows.at(at)
            stop = min(end, window.end)
            self._add(window, at, out[at - begin : stop - begin])
            at = stop
        return out.mul_(self._to[begin:end, None])

    def _add(self, window: Window, begin: int, out: Tensor) -> None:
        """Add the in-neighbours' rows of the vertices from ``begin`` on to ``out``."""
        indptr = self._csc.indptr[begin : begin + len(out) + 1].long()
        plain = window.rows.dtype == torch.float32 and window.rows.is_contiguous()
        step = _CHUNK_EDGES if plain else rows_at_once(self.shape[1])
        for low in range(int(indptr[0]), int(indptr[-1]), step):
            high = min(low + step, int(indptr[-1]))
            self._add_edges(window, begin, indptr.clamp(low, high) - low, slice(low, high), out)

    def _add_edges(
        self, window: Window, begin: int, offsets: Tensor, edges: slice, out: Tensor
    ) -> None:
        """Add the rows of a run of edges to the sums, the first of which is vertex ``begin``'s."""
        from . import _neighbor_rows

        ids = self._csc.indices[edges].clone()
        check_range("indices", ids, self._csc.num_src)
        weights = self._from.index_select(0, ids)
        if self._model == "gcn":
            targets = torch.repeat_interleave(
                torch.arange(begin, begin + len(out), device="cpu"), offsets.diff()
            )
            weights[ids == targets] = 0.0  # the model's self-loop is already in the sums
        rows = window.rows
        ids = window.places_of(ids)
        if rows.dtype != torch.float32 or not rows.is_contiguous():
            rows = rows.index_select(0, ids).float()
            ids = torch.arange(len(ids), dtype=ids.dtype, device="cpu")
        _neighbor_rows.add_weighted(
            offsets.numpy(), ids.numpy(), weights.numpy(), rows.numpy(), out.numpy()
        )


def rows_at_once(width: int) -> int:
    """Number of float32 rows in a chunk."""
    return max(1, _CHUNK_BYTES // (4 * max(1, width)))


def _room(graph: Graph, memory: int | str | None) -> int:
    """Bytes of ``memory`` that are left for rows of neighbours; ValueError if it is too little."""
    taken = _VERTEX_BYTES * graph.num_nodes + _CHUNKS * _CHUNK_BYTES + _KERNEL_BYTES
    rows = graph.ndata[FEATURES]
    csc = graph.csc
    held = isinstance(rows, Tensor) and not on_disk(rows)
    least = 0 if held else least_room(csc, row_reader(rows).row_bytes)
    return work_memory(memory, taken + least, whom="this graph") - taken


def _scales(graph: Graph, model: str) -> tuple[Tensor, Tensor]:
    """The factor of each vertex's row when it is added, and the factor of its sum; float32."""
    if model == "sage":
        means = graph.in_degrees().clamp(min=1).float().reciprocal_()
        return torch.ones(graph.num_nodes, device="cpu"), means
    in_degrees, out_degrees = gcn_degrees(graph)
    return out_degrees.float().rsqrt_(), in_degrees.float().rsqrt_()


def _check(graph: Graph, model: str) -> None:
    if model not in SUMS:
        raise ValueError(f"model must be one of {', '.join(SUMS)}, got {model!r}")
    if not graph.is_homogeneous:
        raise ValueError(f"graph must have one vertex type and one edge type, got {graph}")
    if set(graph.ndata) >= _OF_A_PART:
        raise ValueError(
            "graph must be a whole graph, got a part of a partition: pre-aggregate first, then "
            "divide"
        )
    done = preaggregated_for(graph)
    if done is not None:
        raise ValueError(
            f"graph must not be pre-aggregated already, got one with the field {SUMS[done]}"
        )
    if FEATURES not in graph.ndata:
        raise ValueError(
            f"graph must have the field {FEATURES} to be pre-aggregated, it has "
            f"{shortened([*graph.ndata])}"
        )
    features = graph.ndata[FEATURES]
    if features.dim() != 2 or features.is_complex():
        raise ValueError(
            f"{FEATURES} must be a 2-D real field, got {features.dtype} {tuple(features.shape)}"
        )
    graph.csc.validate()
