"""Summary of a graph for ``pagraph info``: counts, degree skew, fields, bytes, edges in a cache.

Does not import torch, which would take most of the time for a small graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import FormatError
from ..system.arrays import Array
from ..system.atomic import is_unfinished
from ..system.budget import work_memory
from ..system.files import named_path, open_plain, read_npy_header
from ..system.memory import address_on_disk
from .manifest import MANIFEST, ArrayEntry, Manifest, stored_dtype

if TYPE_CHECKING:
    from ..graph.fields import Fields, FieldValue
    from ..graph.graph import Graph


CACHE_SHARES = (0.01, 0.05, 0.10, 0.20)
"""Shares of the vertices for which the share of edges is reported."""

_LABELS = "label"
_MOST_CLASSES = 1 << 16  # with more distinct values, a field has no classes
# Measured with 4.2 M vertices: degrees in both directions, and a chunk of as many edges.
_VERTEX_BYTES = 48
# For kernels and blocks of edges.
_REST_BYTES = 64 * 2**20
_CHUNK = 1 << 20  # edges or labels per block


@dataclass(frozen=True)
class FieldSummary:
    """Summary of a field or structure array.

    Attributes:
        owner: The vertex type, or the edge type with slashes.
        kind: "field" or "structure".
        where: "disk" (memory-mapped) or "memory".
        true: Number of true values of a mask; None for other dtypes.
        classes: Number of distinct non-negative labels in an integer field named ``label``; None
            for other fields, and above 65,536.
        stored: Form of a field in fewer bytes; None: its own dtype.
        unit: For times: their unit since 1970.
        words: For codes: the words of codes 0, 1, ...
    """

    owner: str
    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    where: str
    true: int | None = None
    classes: int | None = None
    stored: str | None = None
    unit: str = ""
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class EdgeSummary:
    """Summary of an edge type.

    Attributes:
        type: The edge type with slashes.
        isolated: Number of vertices without edges; None between different vertex types.
        self_loops: Number of self-loops; None between different vertex types.
        by_out_degree: Share of edges from the vertices of highest out-degree, for each of
            ``CACHE_SHARES``. A degree-ranked cache serves these when in-edges are sampled.
        by_in_degree: The same for edges into the vertices of highest in-degree, when out-edges are
            sampled.
        both_ways: Whether edges are symmetric, counting repeats; None between different vertex
            types.
    """

    type: str
    num_edges: int
    max_in_degree: int
    max_out_degree: int
    isolated: int | None
    self_loops: int | None
    by_out_degree: tuple[float, ...]
    by_in_degree: tuple[float, ...]
    both_ways: bool | None = None


@dataclass(frozen=True)
class GraphSummary:
    """Summary of a graph, as ``pagraph info`` prints it."""

    num_nodes: dict[str, int]
    edges: list[EdgeSummary]
    arrays: list[FieldSummary]

    @property
    def total_bytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.bytes for array in self.arrays)

    def to_json(self) -> dict[str, Any]:
        """The summary as a JSON object."""
        return {
            "num_nodes": sum(self.num_nodes.values()),
            "num_edges": sum(edge.num_edges for edge in self.edges),
            "bytes": self.total_bytes,
            "cache_shares": list(CACHE_SHARES),
            "node_types": self.num_nodes,
            "edge_types": [asdict(edge) for edge in self.edges],
            "arrays": [asdict(array) for array in self.arrays],
        }


def summarise(graph: Graph, *, memory: int | str | None = None) -> GraphSummary:
    """Summarise a graph. Reads the structure once or twice, masks and labels, but no other fields.

    Takes 48 bytes per vertex. ValueError, with that size, if ``memory`` (like ``"4GiB"``) is less.

    >>> from pagraph import Graph
    >>> summary = summarise(Graph.from_coo([0, 1, 1], [1, 1, 2]))
    >>> summary.edges[0].max_out_degree, summary.edges[0].self_loops
    (2, 1)
    """
    _check_memory(memory, graph.num_nodes)
    edges = []
    arrays: list[FieldSummary] = []
    for name in graph.node_types:
        arrays += _fields(name, graph.node_fields(name))
    for edge_type in graph.edge_types:
        label = "/".join(edge_type)
        csc = graph.csc_of(edge_type)
        csc.validate()
        same_ends = edge_type[0] == edge_type[2]
        edges.append(_edges(label, *csc.arrays, csc.num_src, same_ends=same_ends))
        for key, value in (
            ("indptr", csc.indptr),
            ("indices", csc.indices),
            ("edge_ids", csc.edge_ids),
        ):
            if value is not None:
                arrays.append(_tensor(label, key, "structure", value))
        arrays += _fields(label, graph.edge_fields(edge_type))
    return GraphSummary(graph.num_nodes_by_type, edges, arrays)


def summarise_folder(folder: Path, *, memory: int | str | None = None) -> GraphSummary | None:
    """Summarise a native folder like :func:`summarise`.

    None if it has another form or is damaged; opening it gives the error.
    """
    if is_unfinished(folder) or not (folder / MANIFEST).is_file():
        return None
    edges = []
    arrays: list[FieldSummary] = []
    try:
        manifest = Manifest.read(folder)
    except (FormatError, ValueError, OSError):
        return None
    counts = {node.name: node.num_nodes for node in manifest.node_types}
    _check_memory(memory, sum(counts.values()))
    try:
        for node in manifest.node_types:
            arrays += _mapped_fields(folder, node.name, node.fields)
        for edge in manifest.edge_types:
            label = "/".join(edge.type)
            indptr, offsets = _mapped(folder, label, "indptr", "structure", edge.indptr)
            indices, sources = _mapped(folder, label, "indices", "structure", edge.indices)
            arrays += [indptr, indices]
            if edge.edge_ids is not None:
                arrays.append(_mapped(folder, label, "edge_ids", "structure", edge.edge_ids)[0])
            arrays += _mapped_fields(folder, label, edge.fields)
            same_ends = edge.type[0] == edge.type[2]
            edges.append(_edges(label, offsets, sources, counts[edge.type[0]], same_ends=same_ends))
    except (FormatError, ValueError, OSError):
        return None
    return GraphSummary(counts, edges, arrays)


def _check_memory(memory: int | str | None, num_nodes: int) -> None:
    work_memory(memory, _VERTEX_BYTES * num_nodes + _REST_BYTES, whom=f"{num_nodes:,} vertices")


def _edges(
    label: str, indptr: Array, indices: Array, num_src: int, *, same_ends: bool
) -> EdgeSummary:
    """Summarise a CSC in little memory; ValueError if it is invalid."""
    in_degrees = np.diff(indptr)
    out_degrees = np.zeros(num_src, np.int64)
    runs_over_all = indptr[0] == 0 and indptr[-1] == len(indices)
    if indptr.dtype.kind != "i" or not runs_over_all or (in_degrees < 0).any():
        raise ValueError("indptr must run from 0 to the number of edges, and never decrease")
    loops = 0
    for src, dst in _chunks(indptr, indices, num_src):
        if src.min() < 0 or src.max() >= num_src:
            raise ValueError(f"indices must be in [0, {num_src})")
        out_degrees += np.bincount(src, minlength=num_src)
        loops += np.count_nonzero(src == dst)
    summary = EdgeSummary(
        label,
        len(indices),
        max_in_degree=int(in_degrees.max(initial=0)),
        max_out_degree=int(out_degrees.max(initial=0)),
        isolated=None,
        self_loops=None,
        by_out_degree=edge_shares(out_degrees),
        by_in_degree=edge_shares(in_degrees),
    )
    if not same_ends:
        return summary
    # Hashes take two more passes, which unequal degrees save.
    is_even = np.array_equal(in_degrees, out_degrees)
    return replace(
        summary,
        isolated=int(np.count_nonzero((in_degrees == 0) & (out_degrees == 0))),
        self_loops=int(loops),
        both_ways=is_even and _both_ways(indptr, indices, num_src),
    )


def _chunks(indptr: Array, indices: Array, num_src: int) -> Iterator[tuple[Array, Array]]:
    """Sources and destinations of the edges, in order, in chunks of at least ``num_src``."""
    # `bincount` makes an array of all sources per chunk, so smaller chunks would cost more.
    step = max(_CHUNK, num_src)
    for begin in range(0, len(indices), step):
        end = min(begin + step, len(indices))
        first = np.searchsorted(indptr, begin, "right") - 1
        last = np.searchsorted(indptr, end, "left")
        counts = np.diff(np.clip(indptr[first : last + 1], begin, end))
        yield indices[begin:end], np.repeat(np.arange(first, last), counts)


def _both_ways(indptr: Array, indices: Array, num_nodes: int) -> bool:
    """Whether edges and reversed edges are equal, by sums of 64-bit hashes, without sorting."""
    total = 0
    for src, dst in _chunks(indptr, indices, num_nodes):
        total += _hash_sum(src, dst, num_nodes) - _hash_sum(dst, src, num_nodes)
    return total % 2**64 == 0


def _hash_sum(src: Array, dst: Array, num_nodes: int) -> int:
    """Sum of splitmix64 hashes of the pairs."""
    # Equal multisets have equal sums modulo 2**64; others agree with probability about 2**-64.
    x = src.astype(np.uint64) * np.uint64(num_nodes) + dst.astype(np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return int(x.sum())


def edge_shares(degrees: Any, shares: tuple[float, ...] = CACHE_SHARES) -> tuple[float, ...]:
    """Share of the edges at the vertices of highest degree, for each share of the vertices.

    Numbers of vertices are rounded down.

    >>> edge_shares([1, 6, 2, 1], (0.25, 0.5))
    (0.6, 0.8)
    """
    # ranked[k - 1]: edges at the k vertices of highest degree.
    ranked = np.sort(np.asarray(degrees))[::-1].cumsum(dtype=np.int64)
    total = int(ranked[-1]) if len(ranked) else 0
    tops = [int(len(ranked) * share) for share in shares]
    return tuple(int(ranked[top - 1]) / total if top and total else 0.0 for top in tops)


def _mapped(
    folder: Path, owner: str, name: str, kind: str, entry: ArrayEntry
) -> tuple[FieldSummary, Array]:
    """Map the array of an entry and summarise it; ValueError if the file does not match."""
    file = named_path(folder, entry.file, "the manifest")
    stored = stored_dtype(entry.file_dtype)
    shape = entry.file_shape
    if file.stat().st_size != entry.bytes:
        raise ValueError(f"{file} must be a file of {entry.bytes} bytes")
    with open_plain(file) as stream:
        header = read_npy_header(stream)
        header.check_size(stream)
    if header.dtype != stored or header.shape != shape or (header.fortran_order and len(shape) > 1):
        raise ValueError(f"{file} must hold {entry.file_dtype} of shape {shape}")
    empty = 0 in shape
    values: Array = (
        np.empty(shape, stored) if empty else np.memmap(file, stored, "r", header.offset, shape)
    )
    on_disk = values.nbytes > 0 and address_on_disk(values.ctypes.data)
    where = "disk" if on_disk else "memory"
    array = FieldSummary(
        owner,
        name,
        kind,
        entry.dtype,
        entry.shape,
        values.nbytes,
        where,
        stored=entry.stored,
        unit=entry.unit,
        words=entry.words,
    )
    return _looked_into(array, lambda: values), values


def _mapped_fields(
    folder: Path, owner: str, fields: Mapping[str, ArrayEntry]
) -> Iterator[FieldSummary]:
    for name, entry in fields.items():
        array, _ = _mapped(folder, owner, name, "field", entry)
        yield array


def _fields(owner: str, fields: Fields) -> Iterator[FieldSummary]:
    for name, value in fields.items():
        array = _tensor(owner, name, "field", value)
        note = fields.notes.get(name)
        if note is not None:
            array = replace(array, unit=note.unit, words=note.words)
        yield array


def _tensor(owner: str, name: str, kind: str, value: FieldValue) -> FieldSummary:
    from ..features.disk import on_disk
    from ..graph.fields import stored_row_bytes
    from ..graph.stored_rows import NarrowRows

    dtype = str(value.dtype).removeprefix("torch.")
    size = len(value) * stored_row_bytes(value)
    where = "disk" if on_disk(value) else "memory"
    stored = value.form.name if isinstance(value, NarrowRows) else None
    array = FieldSummary(owner, name, kind, dtype, tuple(value.shape), size, where, stored=stored)
    return _looked_into(array, lambda: value[:].cpu().numpy())


def _looked_into(array: FieldSummary, values: Callable[[], Array]) -> FieldSummary:
    """The summary with counts of a mask's or labels' ``values``, which are only read for these."""
    if array.dtype == "bool":
        return replace(array, true=int(np.count_nonzero(values())))
    is_labels = array.kind == "field" and array.name == _LABELS
    if is_labels and len(array.shape) == 1 and "int" in array.dtype:
        return replace(array, classes=_classes(values()))
    return array


def _classes(labels: Array) -> int | None:
    """Count the distinct non-negative values, in blocks and bounded memory."""
    found: Array = np.empty(0, labels.dtype)
    for begin in range(0, len(labels), _CHUNK):
        chunk = labels[begin : begin + _CHUNK]
        found = np.union1d(found, chunk[chunk >= 0])
        if len(found) > _MOST_CLASSES:
            return None
    return len(found)
