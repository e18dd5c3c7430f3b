"""Reader of ``dgl.save_graphs`` files, without DGL.

DGL's own reader trusts the file. On a damaged one it may abort the process, write out of bounds, or
return wrong data.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import IO

import numpy as np
import torch
from torch import Tensor

from ..errors import FormatError
from ..graph.csc import CSC, check_range, id_dtype, no_ids
from ..graph.graph import EdgeType, Graph
from ..system.checks import StrPath
from .arrays import bool_mask
from .edges import check_size

# Magic numbers of a file, and of each kind of object in it.
_FILE = 0xDD2E4FF046B4A13F
_TENSORS = 0xDD5A9FBE3FA2443F
_HETEROGRAPH = 0xDD589FBE35224ABF
_IMMUTABLE = 0xDD3C5FFE20046ABF
_RELATION = 0xDD2E60F0F6B4A127
_COO = 0xDD61FFD305DFF127
_CSR = 0xDD6CD31205DFF127
_ARRAY = 0xDD5E40F096B4A13F

_HEADER_BYTES = 4096
_LAYOUTS = {"coo": 1, "csr": 2, "csc": 4}
_OLD_LAYOUTS = {1: 1, 2: 2, 3: 4}  # DGL 0.5 saved only one layout
_DTYPES = {
    (0, 8): torch.int8,
    (0, 16): torch.int16,
    (0, 32): torch.int32,
    (0, 64): torch.int64,
    (1, 8): torch.uint8,
    (2, 16): torch.float16,
    (2, 32): torch.float32,
    (2, 64): torch.float64,
    (4, 16): torch.bfloat16,
}
"""Dtypes by DGL's code of the kind and the bits."""
_CPU = 1

Named = dict[str, Tensor]


def read_dgl(path: StrPath) -> Graph:
    """Read the first graph of a file that ``dgl.save_graphs`` wrote, with all its fields.

    DGL saves bool as uint8, so fields whose names end in ``mask`` become bool again.
    """
    graph = load_saved_graph(path)
    owners = [graph.node_fields(t) for t in graph.node_types] + [
        graph.edge_fields(t) for t in graph.edge_types
    ]
    for fields in owners:
        for name, values in fields.items():
            if values.dtype == torch.uint8:
                fields[name] = bool_mask(name, values)
    return graph


def load_saved_graph(path: StrPath, index: int = 0) -> Graph:
    """Read one graph from a file that ``dgl.save_graphs`` wrote, with its fields unchanged.

    Ids are narrowed to int32 if they fit. Nothing is unpickled, and DGL is not needed.

    Raises:
        FileNotFoundError: There is no such file.
        FormatError: The file is not DGL's, is damaged, or holds no graph ``index``.
    """
    path = os.fspath(path)
    if not os.path.isfile(path):
        raise FileNotFoundError(f"file must exist, got {path}")
    with open(path, "rb") as file:
        saved = _Reader(path, file).graph(index)
    try:
        return _graph(path, saved)
    except (TypeError, ValueError) as error:
        raise FormatError(f"{path} must hold a valid DGL graph: {error}") from error


def load_saved_tensors(path: StrPath) -> Named:
    """Read a file of ``dgl.data.utils.save_tensors``: its tensors by name.

    Raises:
        FileNotFoundError: There is no such file.
        FormatError: The file is not DGL's, or is damaged.
    """
    path = os.fspath(path)
    if not os.path.isfile(path):
        raise FileNotFoundError(f"file must exist, got {path}")
    with open(path, "rb") as file:
        return _Reader(path, file).tensors()


@dataclass(frozen=True)
class _Matrix:
    """Edges as stored: both ends of each (COO), or the other ends by row (CSR)."""

    num_rows: int
    num_cols: int
    rows: Tensor
    cols: Tensor
    ids: Tensor


@dataclass(frozen=True)
class _Saved:
    """A graph as stored; its parts are not checked against each other."""

    types: _Matrix  # an edge for each edge type, between vertex types
    relations: list[dict[str, _Matrix]]
    counts: list[int]
    node_fields: list[Named]
    edge_fields: list[Named]
    node_names: list[str]
    edge_names: list[str]


class _Reader:
    """Reads values of a file in order, each bounded by the rest of the file.

    Args:
        path: The file's name, for errors.
        file: The file, at its beginning.
    """

    def __init__(self, path: str, file: IO[bytes]) -> None:
        self._path = path
        self._file = file
        self._size = os.fstat(file.fileno()).st_size
        self._skips = False

    def graph(self, index: int) -> _Saved:
        """The graph with number ``index``."""
        # A shorter file has no magic number.
        if self._size < 8 or self._number() != _FILE:
            raise self._wrong("it does not begin like one")
        version = self._number()
        if version not in (1, 2):
            raise self._wrong(f"its version is {version}, not 1 or 2")
        self._number()  # the kind of graph, which follows from the version
        count = self._after_header(version)
        if not 0 <= index < count:
            raise FormatError(f"{self._path} must hold graph {index}, it holds {count}")
        # Objects have no length field, so skipping a graph means parsing it, without arrays.
        read = self._graph if version == 2 else self._old_graph
        self._skips = True
        for _ in range(index):
            read()
        self._skips = False
        return read()

    def tensors(self) -> Named:
        """The tensors of a file that holds nothing else."""
        if self._size < 8 or self._number() != _TENSORS:
            raise self._wrong("it does not begin like a file of tensors")
        count = self._number()
        found = self._named()  # repeats their number
        if len(found) != count or self._left():
            raise self._wrong(f"{len(found)} tensors instead of {count}")
        return found

    def _after_header(self, version: int) -> int:
        """The number of graphs; leaves the file at the first of them."""
        if version == 2:
            count = self._number()
            self._seek(_HEADER_BYTES)
            self._seek(self._number())  # skip the labels of graphs
            return count
        self._seek(_HEADER_BYTES)
        count = self._number()
        for _ in range(3):  # places, numbers of vertices and of edges
            self._numbers()
        self._skips = True
        self._named()  # labels of graphs
        return count

    def _graph(self) -> _Saved:
        self._expect(_HETEROGRAPH)
        types = self._types()
        relations = [self._relation() for _ in range(self._length())]
        counts = self._numbers()
        node_fields = [self._named() for _ in range(self._length())]
        edge_fields = [self._named() for _ in range(self._length())]
        node_names = [self._text() for _ in range(self._length())]
        edge_names = [self._text() for _ in range(self._length())]
        return _Saved(types, relations, counts, node_fields, edge_fields, node_names, edge_names)

    def _old_graph(self) -> _Saved:
        """A graph of DGL before 0.5, which knew one type."""
        indptr = self._array()
        indices = self._array()
        ids = self._array()
        count = max(len(indptr) - 1, 0)
        none = no_ids()
        one_edge = torch.tensor([0, 1], device="cpu")
        types = _Matrix(1, 1, one_edge, one_edge[:1], none)
        edges = _Matrix(count, count, indptr, indices, ids)
        return _Saved(
            types, [{"csc": edges}], [count], [self._named()], [self._named()], ["_U"], ["_E"]
        )

    def _types(self) -> _Matrix:
        self._expect(_IMMUTABLE)
        return self._matrix(_CSR)

    def _relation(self) -> dict[str, _Matrix]:
        self._expect(_RELATION)
        code = self._number()
        self._number()  # the layouts that the user allowed
        # If the upper half is set, the lower bits are a set of layouts; else it is a layout's code.
        codes = code & 0xFF if code >> 32 else _OLD_LAYOUTS.get(code, 0)
        if not codes & 7:
            raise self._wrong(f"edges in the layout {code}")
        found = {}
        for layout, bit in _LAYOUTS.items():
            if codes & bit:
                self._types()
                kind = _COO if layout == "coo" else _CSR
                found[layout] = self._matrix(kind)
        return found

    def _matrix(self, kind: int) -> _Matrix:
        self._expect(kind)
        num_cols = self._number()
        num_rows = self._number()
        rows = self._array()
        cols = self._array()
        ids = self._array()
        # Whether the edges are sorted: for COO by rows, and by columns within.
        num_flags = 2 if kind == _COO else 1
        self._take(num_flags)
        return _Matrix(num_rows, num_cols, rows, cols, ids)

    def _named(self) -> Named:
        found: Named = {}
        for _ in range(self._length()):
            name = self._text()
            if name in found:
                raise self._wrong(f"two fields {name!r}")
            found[name] = self._array()
        return found

    def _array(self) -> Tensor:
        self._expect(_ARRAY)
        self._number()  # reserved
        device, _ = self._integers(2, np.int32)
        (dims,) = self._integers(1, np.int32)
        kind, bits = self._take(2)
        (lanes,) = self._integers(1, np.uint16)
        dtype = _DTYPES.get((kind, bits))
        if dtype is None or lanes != 1 or device != _CPU:
            raise self._wrong(
                f"an array of the kind {kind} of {bits} bits, {lanes} times, on device {device}"
            )
        # Bounded by the rest of the file before any allocation, here and below: a tiny file may
        # claim arrays of terabytes.
        if not 0 <= dims <= self._left() // 8:
            raise self._wrong(f"an array of {dims} dimensions")
        shape = self._integers(dims, np.int64)
        length = self._number()
        if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != length:
            raise self._wrong(f"an array of shape {shape} in {length} bytes")
        if length > self._left():
            raise self._wrong("it ends too early")
        if self._skips:
            self._file.seek(length, os.SEEK_CUR)
            return torch.empty(0, dtype=dtype, device="cpu")
        if length == 0:
            return torch.empty(shape, dtype=dtype, device="cpu")
        content = np.fromfile(self._file, dtype=np.uint8, count=length)
        if len(content) != length:
            raise self._wrong("it ends too early")
        return torch.from_numpy(content).view(dtype).reshape(shape)

    def _text(self) -> str:
        content = self._take(self._length())
        try:
            text = content.decode()
        except UnicodeDecodeError:
            text = "\0"  # refused below, as control characters are
        if not text.isprintable():  # others may be control sequences of a terminal
            raise self._wrong(f"the name {content!r}"[:200])
        return text

    def _numbers(self) -> list[int]:
        return self._integers(self._length(8), np.int64)

    def _length(self, item_bytes: int = 1) -> int:
        """The number of items that follow, each of at least ``item_bytes``."""
        count = self._number()
        if count > self._left() // item_bytes:
            raise self._wrong("it ends too early")
        return count

    def _expect(self, magic: int) -> None:
        if self._number() != magic:
            raise self._wrong(f"unknown bytes before byte {self._file.tell()}")

    def _number(self) -> int:
        return int.from_bytes(self._take(8), "little")

    def _integers(self, count: int, dtype: type[np.generic]) -> list[int]:
        content = self._take(count * np.dtype(dtype).itemsize)
        values: list[int] = np.frombuffer(content, np.dtype(dtype).newbyteorder("<")).tolist()
        return values

    def _take(self, count: int) -> bytes:
        content = self._file.read(count) if count <= self._left() else b""
        if len(content) != count:
            raise self._wrong("it ends too early")
        return content

    def _seek(self, place: int) -> None:
        if place > self._size:
            raise self._wrong("it ends too early")
        self._file.seek(place)

    def _left(self) -> int:
        return self._size - self._file.tell()

    def _wrong(self, why: str) -> FormatError:
        return FormatError(f"{self._path} must be a file that DGL wrote: {why}")


def _graph(path: str, saved: _Saved) -> Graph:
    """The stored graph, or ValueError if its parts do not match."""
    names = saved.node_names
    counts = dict(zip(names, saved.counts, strict=True))
    if len(counts) != len(names):
        raise ValueError(f"names of vertex types must differ, got {names}")
    for count in saved.counts:
        check_size(path, count)
    ends = _type_ends(saved)
    edge_types = [
        (names[src], name, names[dst])
        for (src, dst), name in zip(ends, saved.edge_names, strict=True)
    ]
    if len(set(edge_types)) != len(edge_types):
        raise ValueError(f"edge types must differ, got {edge_types}")
    csc: dict[EdgeType, CSC] = {}
    for etype, layouts in zip(edge_types, saved.relations, strict=True):
        csc[etype] = _in_edges(layouts, counts[etype[0]], counts[etype[2]])
    graph = Graph(csc, counts)
    for ntype, fields in zip(names, saved.node_fields, strict=True):
        graph.node_fields(ntype).update(fields)
    for etype, fields in zip(edge_types, saved.edge_fields, strict=True):
        graph.edge_fields(etype).update(fields)
    return graph


def _type_ends(saved: _Saved) -> list[tuple[int, int]]:
    """The numbers of the vertex types at both ends of each edge type."""
    types = _rows("edge types", saved.types, len(saved.node_names), len(saved.node_names))
    src, dst = _by_id(types)
    return list(zip(dst.tolist(), src.tolist(), strict=True))  # rows are the sources


def _in_edges(layouts: dict[str, _Matrix], num_src: int, num_dst: int) -> CSC:
    """The in-edges of one edge type, in DGL's order of neighbours, on which seeded draws depend."""
    made = []
    if "csc" in layouts:
        made.append(_rows("in-edges", layouts["csc"], num_dst, num_src))
    if "coo" in layouts:
        edges = layouts["coo"]
        _check_shape("edges", edges, num_src, num_dst)
        if edges.ids.numel():
            raise ValueError(f"edges by their ends must have no ids, got {edges.ids.numel()}")
        # An edge's id is its position, which `from_coo` keeps.
        made.append(CSC.from_coo(edges.rows, edges.cols, (num_src, num_dst)))
    if "csr" in layouts:
        out_edges = _rows("out-edges", layouts["csr"], num_src, num_dst)
        made.append(_without_counting(out_edges.transpose()))
    # A file may hold the same edges in several layouts. If these differed, the graph would depend
    # on DGL's choice of a layout.
    for other in made[1:]:
        pairs = zip(_by_id(made[0]), _by_id(other), strict=True)
        if not all(torch.equal(one.long(), two.long()) for one, two in pairs):
            raise ValueError("edges must be the same in all layouts, got others")
    return made[0]


def _rows(name: str, matrix: _Matrix, num_rows: int, num_cols: int) -> CSC:
    """The rows of a matrix as a CSC; ids are checked before they are narrowed."""
    _check_shape(name, matrix, num_rows, num_cols)
    ids = matrix.ids if matrix.ids.numel() else None
    wide = CSC(matrix.rows, matrix.cols, num_cols, ids)
    wide.validate()
    if wide.num_dst != num_rows:
        raise ValueError(
            f"indptr of {name} must have {num_rows + 1} entries, got {wide.num_dst + 1}"
        )
    if ids is not None:
        # Must be a permutation: fields are stored by these ids.
        check_range("edge ids", ids, len(ids))
        seen = torch.zeros(len(ids), dtype=torch.bool, device="cpu")
        seen[ids.long()] = True
        if not bool(seen.all()):
            raise ValueError("edge ids must differ, got some twice")
    dtype = id_dtype(max(num_rows, num_cols), wide.num_edges)
    narrow_ids = None if ids is None else ids.to(dtype)
    narrow = CSC(wide.indptr.to(dtype), wide.indices.to(dtype), num_cols, narrow_ids)
    return _without_counting(narrow)


def _without_counting(csc: CSC) -> CSC:
    """The CSC without ids that equal positions, which saves a random read per edge."""
    ids = csc.edge_ids
    if ids is None or bool((ids[1:] < ids[:-1]).any()):
        return csc
    return CSC(csc.indptr, csc.indices, csc.num_src)


def _check_shape(name: str, matrix: _Matrix, num_rows: int, num_cols: int) -> None:
    if (matrix.num_rows, matrix.num_cols) != (num_rows, num_cols):
        got = f"{matrix.num_rows} x {matrix.num_cols}"
        raise ValueError(f"{name} must be between {num_rows} and {num_cols} vertices, got {got}")


def _by_id(csc: CSC) -> tuple[Tensor, Tensor]:
    """Sources and destinations of all edges by their ids."""
    src = csc.indices
    dst = csc.destinations()
    if csc.edge_ids is None:
        return src, dst
    order = csc.edge_ids.long()
    by_id = torch.empty_like(src), torch.empty_like(dst)
    by_id[0][order] = src
    by_id[1][order] = dst
    return by_id
