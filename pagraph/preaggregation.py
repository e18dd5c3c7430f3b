"""Pre-aggregation, the PaGraph paper's preprocessing: the first layer's neighbour sums, computed once for all.

What the first layer of GraphSAGE (mean) or GCN adds up over a vertex's in-neighbours does not depend on any weight.
With these sums as a field, a model samples one hop less, and a part of the graph reaches one hop less far. The field's
name says for which model it is, so that this goes wherever fields go: into other folders, and into parts.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .atomic import check_absent
from .features import DiskFeature, HostFeature, on_disk
from .graph import Graph

__all__ = ["FEATURES", "SUMS", "Aggregation", "preaggregate", "preaggregated_for"]

FEATURES = "feat"
SUMS = {"sage": "feat_mean", "gcn": "feat_gcn"}
"""The field that holds the sums, by model."""

Progress = Callable[[int, int], None]
"""Called with the work done so far and the whole of it."""

_CHUNK_BYTES = 16 * 2**20
_CHUNK_EDGES = 2**18  # of a mapped field each may ask for a page of 4 KiB: 1 GiB in flight
_LEAST_SUM = 1e-12  # as torch.nn.functional.normalize


def preaggregated_for(graph: Graph) -> str | None:
    """The model for which a graph's features have been pre-aggregated, ``"sage"`` or ``"gcn"``; None: for none.

    Raises:
        ValueError: For both, which nothing here writes.
    """
    found = [model for model, name in SUMS.items() if name in graph.ndata]
    if len(found) > 1:
        raise ValueError(f"graph must have one of the fields {', '.join(SUMS.values())} at most, got both")
    return found[0] if found else None


def preaggregate(
    graph: Graph,
    folder: str | os.PathLike[str],
    *,
    model: str,
    row_normalize: bool = False,
    origin: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> None:
    """Write a graph with the first layer's neighbour sums as a native folder, whole or not at all.

    For GCN the field ``feat`` gives way to ``feat_gcn``; for GraphSAGE, whose first layer also takes a vertex's own
    features, ``feat_mean`` goes beside it (zeros where a vertex has no in-neighbours). Everything else is copied.

    Memory: 24 bytes a vertex and some 50 MB beside the graph. Features may be mapped, and larger than memory. On the
    disk the sums are there twice until the folder is complete.

    Args:
        graph: One vertex type and one edge type, with the 2-D real field ``feat``; its ids are checked.
        folder: Must not exist yet.
        model: ``"sage"`` or ``"gcn"``, as :mod:`pagraph.train.models` defines them.
        row_normalize: Divide each vertex's features by their sum first. This can not be done to the sums later.
        origin: Where the graph is from, for people.
        progress: Called with the work done so far and the whole of it: for the sums, then for the writing.

    Raises:
        FileExistsError: ``folder`` exists.
        ValueError: ``model`` is neither, the graph does not have such features, or they are pre-aggregated already.

    Example:
        >>> graph = Graph.from_coo([0, 1, 2], [1, 2, 2], ndata={"feat": torch.tensor([[1.0], [2.0], [4.0]])})
        >>> target = os.path.join(tempfile.mkdtemp(), "means")
        >>> preaggregate(graph, target, model="sage")
        >>> Graph.open(target).ndata["feat_mean"].tolist()
        [[0.0], [1.0], [3.0]]
    """
    from .datasets import write_graph

    target = check_absent(folder)
    sums = Aggregation(graph, model=model, row_normalize=row_normalize)
    target.parent.mkdir(parents=True, exist_ok=True)
    fields = {name: value for name, value in graph.ndata.items() if name != FEATURES}
    if model == "sage":
        own = graph.ndata[FEATURES]
        fields[FEATURES] = _stored(sums.own(), sums.shape, target.parent) if row_normalize else own
    fields[SUMS[model]] = _stored(sums.chunks(progress=progress), sums.shape, target.parent)
    about = {**(origin or {}), "preaggregated_for": model, "row_normalize": row_normalize}
    write_graph(Graph(graph.csc, ndata=fields, edata=graph.edata), target, origin=about, progress=progress)


class Aggregation:
    """The sums of one graph for one model, computed in chunks of vertices.

    Args:
        graph: As for :func:`preaggregate`.
        model: As for :func:`preaggregate`.
        row_normalize: As for :func:`preaggregate`.

    Raises:
        ValueError: As for :func:`preaggregate`.
    """

    def __init__(self, graph: Graph, *, model: str, row_normalize: bool = False) -> None:
        _check(graph, model)
        features = graph.ndata[FEATURES]
        self._csc = graph.csc
        self._model = model
        self._features = features
        self._rows = (DiskFeature if on_disk(features) else HostFeature)(features)
        self.shape = (graph.num_nodes, int(features.shape[1]))
        self._from, self._to = _scales(graph, model)
        self._normalizer = self._row_sums().reciprocal_() if row_normalize else None
        if self._normalizer is not None:
            self._from *= self._normalizer

    def chunks(self, *, progress: Progress | None = None) -> Iterator[Tensor]:
        """The sums of all vertices in order, some at a time: float32, shape ``(n, width)``.

        Args:
            progress: Called with the edges done so far and all edges, self-loops of GCN not counted.
        """
        for begin, end in self._ranges():
            yield self._sums(begin, end)
            if progress is not None:
                progress(int(self._csc.indptr[end]), self._csc.num_edges)

    def own(self) -> Iterator[Tensor]:
        """The features themselves, normalised if that was asked for, in the same way."""
        for begin, end in self._ranges():
            rows = self._read(torch.arange(begin, end))
            yield rows if self._normalizer is None else rows.mul_(self._normalizer[begin:end, None])

    def _ranges(self) -> Iterator[tuple[int, int]]:
        count = max(1, _CHUNK_BYTES // (4 * max(1, self.shape[1])))
        for begin in range(0, self.shape[0], count):
            yield begin, min(begin + count, self.shape[0])

    def _sums(self, begin: int, end: int) -> Tensor:
        if self._model == "gcn":
            out = self._read(torch.arange(begin, end)).mul_(self._from[begin:end, None])
        else:
            out = torch.zeros(end - begin, self.shape[1])
        indptr = self._csc.indptr[begin : end + 1].long()
        step = self._edges_at_once()
        for low in range(int(indptr[0]), int(indptr[-1]), step):
            high = min(low + step, int(indptr[-1]))
            self._add_edges(begin, indptr.clamp(low, high) - low, slice(low, high), out)
        return out.mul_(self._to[begin:end, None])

    def _add_edges(self, begin: int, offsets: Tensor, edges: slice, out: Tensor) -> None:
        """Add the rows of a run of edges to the sums, which begin at vertex ``begin``."""
        from . import _preaggregation

        ids = self._csc.indices[edges]
        weights = self._from.index_select(0, ids)
        if self._model == "gcn":
            targets = torch.repeat_interleave(torch.arange(begin, begin + len(out)), offsets.diff())
            weights[ids == targets] = 0.0  # the model's own self-loop is in already
        rows = self._features
        if self._is_direct:
            self._rows.announce(ids.numpy())
        else:
            rows, ids = self._read(ids), torch.arange(len(ids), dtype=ids.dtype)
        _preaggregation.add_rows(offsets.numpy(), ids.numpy(), weights.numpy(), rows.detach().numpy(), out.numpy())

    @property
    def _is_direct(self) -> bool:
        """Whether rows are added from where they are; others are read and made float32 first."""
        return self._features.dtype == torch.float32 and self._features.is_contiguous()

    def _edges_at_once(self) -> int:
        return _CHUNK_EDGES if self._is_direct else max(1, _CHUNK_BYTES // (4 * max(1, self.shape[1])))

    def _read(self, ids: Tensor) -> Tensor:
        return self._rows.read(ids).float()

    def _row_sums(self) -> Tensor:
        sums = [self._read(torch.arange(*ends)).abs().sum(1) for ends in self._ranges()]
        return torch.cat([torch.empty(0), *sums]).clamp_(min=_LEAST_SUM)


def _scales(graph: Graph, model: str) -> tuple[Tensor, Tensor]:
    """What a vertex's row is multiplied with where it is added, and its sum: float32, one each per vertex."""
    in_degrees, out_degrees = graph.in_degrees(), graph.out_degrees()
    if model == "sage":
        return torch.ones(graph.num_nodes), in_degrees.clamp(min=1).float().reciprocal_()
    from . import _preaggregation

    loops = torch.empty(graph.num_nodes, dtype=torch.int64)
    _preaggregation.count_self_loops(graph.csc.indptr.numpy(), graph.csc.indices.numpy(), loops.numpy())
    # One self-loop on every vertex instead of those there are: the degrees of pagraph.train.task.
    return tuple((degrees - loops + 1).float().rsqrt_() for degrees in (out_degrees, in_degrees))  # type: ignore[return-value]


def _stored(chunks: Iterator[Tensor], shape: tuple[int, int], folder: Path) -> Tensor:
    """The rows in a file without a name on the disk of ``folder``: a killed run leaves nothing."""
    with tempfile.TemporaryFile(dir=folder) as file:
        for rows in chunks:
            file.write(rows.contiguous().numpy().tobytes())
        file.flush()
        if 0 in shape:
            return torch.empty(shape)
        return torch.from_numpy(np.memmap(file, np.float32, "r+", shape=shape))


def _check(graph: Graph, model: str) -> None:
    if model not in SUMS:
        raise ValueError(f"model must be one of {', '.join(SUMS)}, got {model!r}")
    if not graph.is_homogeneous:
        raise ValueError(f"graph must have one vertex type and one edge type, got {graph}")
    done = preaggregated_for(graph)
    if done is not None:
        raise ValueError(f"graph must not be pre-aggregated yet, got one with the field {SUMS[done]}")
    if FEATURES not in graph.ndata:
        raise ValueError(f"graph must have the field {FEATURES} to be pre-aggregated, it has {[*graph.ndata]}")
    features = graph.ndata[FEATURES]
    if features.dim() != 2 or features.is_complex():
        raise ValueError(f"{FEATURES} must be a 2-D real field, got {features.dtype} {tuple(features.shape)}")
    graph.csc.validate()
