"""The native graph folder: plain ``.npy`` arrays, opened memory-mapped, under a manifest with checksums."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from ..atomic import is_unfinished, new_folder
from ..errors import FormatError
from ..graph import CSC, EDGE_TYPE, NODE_TYPE, EdgeType, Graph
from .arrays import ArrayWriter, Rows, check_sum, nbytes, open_array
from .manifest import ArrayEntry, EdgeEntry, Manifest, NodeEntry

__all__ = ["open_native", "write_graph"]

Progress = Callable[[int, int], None]
"""Called with the work done so far and the whole of it."""


def write_graph(
    graph: Graph,
    folder: str | os.PathLike[str],
    *,
    origin: Mapping[str, Any] | None = None,
    computed: Mapping[str, Rows] | None = None,
    progress: Progress | None = None,
) -> None:
    """Write ``graph`` with all its fields as a native folder, whole or not at all.

    The folder appears under its name when everything is on the disk; a failure leaves nothing, a killed
    process only a hidden folder that cannot be opened.

    Args:
        graph: The graph; its ids are checked.
        folder: Must not exist yet.
        origin: Where the graph is from, for people: anything that JSON can hold.
        computed: More vertex fields, of a graph with one vertex type; their rows are asked for block by block.
        progress: Called with the bytes written and the bytes to write.

    Raises:
        FileExistsError: ``folder`` exists.
        ValueError: The graph's ids are out of range, or a field has a dtype or layout that cannot be stored.

    Example:
        >>> import tempfile
        >>> target = os.path.join(tempfile.mkdtemp(), "graph")
        >>> write_graph(Graph.from_coo([0, 1], [1, 2]), target)
        >>> Graph.open(target)
        Graph(num_nodes=3, num_edges=2, ids=int32)
    """
    json.dumps(dict(origin or {}))  # before the long work: what JSON cannot hold raises TypeError
    for edge_type in graph.edge_types:
        graph.csc_of(edge_type).validate()
    with new_folder(folder) as part:
        writer = _Writer(part, graph, computed or {}, progress)
        manifest = Manifest(
            [writer.node_type(name) for name in graph.node_types],
            [writer.edge_type(edge_type) for edge_type in graph.edge_types],
            dict(origin or {}),
        )
        manifest.write(part)


class _Writer:
    """Writes the arrays of one graph and remembers what they were called."""

    def __init__(self, folder: Path, graph: Graph, computed: Mapping[str, Rows], progress: Progress | None) -> None:
        self._graph = graph
        self._computed = computed
        self._progress = progress
        self._arrays = ArrayWriter(folder, self._written)
        self._done = 0
        self._total = sum(nbytes(rows) for rows in [*_arrays(graph), *computed.values()])

    def node_type(self, name: str) -> NodeEntry:
        prefix = "node" if name == NODE_TYPE else f"node-{name}"
        fields = {**self._graph.node_fields(name), **self._computed}
        entries = {key: self._arrays.write(f"{prefix}-{key}", value) for key, value in fields.items()}
        return NodeEntry(name, self._graph.num_nodes_of(name), entries)

    def edge_type(self, edge_type: EdgeType) -> EdgeEntry:
        prefix = "edge" if edge_type == EDGE_TYPE else "edge-" + "-".join(edge_type)
        csc, write = self._graph.csc_of(edge_type), self._arrays.write
        fields = self._graph.edge_fields(edge_type)
        return EdgeEntry(
            edge_type,
            csc.num_edges,
            write(f"{prefix}-indptr", csc.indptr),
            write(f"{prefix}-indices", csc.indices),
            None if csc.edge_ids is None else write(f"{prefix}-ids", csc.edge_ids),
            {key: write(f"{prefix}-field-{key}", value) for key, value in fields.items()},
        )

    def _written(self, count: int) -> None:
        self._done += count
        if self._progress is not None:
            self._progress(self._done, self._total)


def _arrays(graph: Graph) -> list[Tensor]:
    found = [value for name in graph.node_types for value in graph.node_fields(name).values()]
    for edge_type in graph.edge_types:
        csc = graph.csc_of(edge_type)
        found += [csc.indptr, csc.indices, *([] if csc.edge_ids is None else [csc.edge_ids])]
        found += graph.edge_fields(edge_type).values()
    return found


def open_native(folder: str | os.PathLike[str], *, verify: bool = False) -> Graph:
    """Open a native folder in milliseconds, whatever its size; arrays are read when they are touched.

    Args:
        folder: What :func:`write_graph` wrote.
        verify: Read everything once: compare the checksums and check every id.

    Raises:
        FormatError: The folder is not complete, or does not match its manifest.
    """
    path = Path(folder)
    if is_unfinished(path):
        raise FormatError(f"folder must be finished, got {str(path)!r}, which its writer did not complete")
    manifest = Manifest.read(path)
    if verify:
        for entry in manifest.arrays():
            check_sum(path, entry)
    try:
        graph = _assemble(path, manifest)
        if verify:
            _check_all_ids(graph)
    except FormatError:
        raise
    except (ValueError, TypeError) as error:
        raise FormatError(f"{path}: {error}") from error
    return graph


def _assemble(path: Path, manifest: Manifest) -> Graph:
    counts = {node.name: node.num_nodes for node in manifest.node_types}
    ndata = {node.name: _open_fields(path, node.fields) for node in manifest.node_types}
    edata = {edge.type: _open_fields(path, edge.fields) for edge in manifest.edge_types}
    csc = {}
    for edge in manifest.edge_types:
        ids = None if edge.edge_ids is None else open_array(path, edge.edge_ids)
        indptr, indices = open_array(path, edge.indptr), open_array(path, edge.indices)
        csc[edge.type] = CSC(indptr, indices, counts[edge.type[0]], ids)
    return Graph(
        csc,
        counts,
        ndata=ndata[manifest.node_types[0].name] if len(ndata) == 1 else ndata,
        edata=edata[manifest.edge_types[0].type] if len(edata) == 1 else edata,
    )


def _open_fields(path: Path, fields: Mapping[str, ArrayEntry]) -> dict[str, Tensor]:
    return {name: open_array(path, entry, random=len(entry.shape) > 1) for name, entry in fields.items()}


def _check_all_ids(graph: Graph) -> None:
    for edge_type in graph.edge_types:
        csc = graph.csc_of(edge_type)
        csc.validate()
        if csc.edge_ids is None or csc.num_edges == 0:
            continue
        low, high = int(csc.edge_ids.min()), int(csc.edge_ids.max())
        limit = csc.num_edges if graph.edge_fields(edge_type) else 2**63
        if low < 0 or high >= limit:
            raise ValueError(f"edge_ids must be in [0, {limit}), got {low if low < 0 else high}")
