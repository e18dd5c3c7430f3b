"""OGB's binary form: arrays in the ``.npz`` files of the folder ``raw``."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from ..errors import FormatError
from ..graph.graph import EDGE_TYPE, NODE_TYPE, EdgeType
from ..graph.mapped import MappedFile
from ..system.arrays import Array
from .arrays import array_tensor, file_arrays, left_behind, load_npz, one_column, unread_npz
from .column_files import MemoryColumn, Scratch
from .edge_sort import EdgeColumns, GivenEdges
from .paths import COUNTS

_EDGES = "edge_index"
_EDGE_COUNTS = "num_edges_list"
# Suffix of dictionaries by type, such as "node_feat_dict.npz".
_BY_TYPE = "_dict"
_DATA = "data.npz"
_LABELS = "node-label.npz"
_EDGES_BY_TYPE, _COUNTS_BY_TYPE, _EDGE_COUNTS_BY_TYPE = (
    f"{name}{_BY_TYPE}.npz" for name in ("edge_index", "num_nodes", "num_edges")
)


class RawArrays:
    """A graph of one or several types, as arrays.

    Args:
        path: Where they are from, for errors.
        arrays: Arrays by OGB's name and by type.
        is_typed: Whether types have names.
        in_files: Whether the arrays are from :func:`file_arrays`.

    Raises:
        FormatError: The numbers of edges and vertices are missing or wrong.
    """

    def __init__(
        self,
        path: Path | str,
        arrays: dict[str, dict[Any, Array]],
        *,
        is_typed: bool,
        in_files: bool = False,
    ) -> None:
        self.is_typed = is_typed
        self._in_files = in_files
        self._path = path
        self._edges = {etype: self._ends(etype, ends) for etype, ends in arrays.pop(_EDGES).items()}
        self._arrays = arrays
        self.edge_types: list[EdgeType] = list(self._edges)
        counts = arrays.pop(COUNTS)
        self.counts: dict[str, int] = {
            ntype: self._count(COUNTS, number) for ntype, number in counts.items()
        }
        # The counts detect a file of edges that was truncated or replaced.
        for etype, number in arrays.pop(_EDGE_COUNTS, {}).items():
            stated = self._count(_EDGE_COUNTS, number)
            found = len(self._edges[etype][0]) if etype in self._edges else 0
            if stated != found:
                self._refuse(
                    f"must hold the {stated} edges that {_EDGE_COUNTS} says", f"{found}{_of(etype)}"
                )
        for etype in self.edge_types:
            for ntype in (etype[0], etype[2]):
                if ntype not in self.counts:
                    self._refuse(
                        f"must count the vertices of each type, it counts {list(self.counts)}",
                        repr(ntype),
                    )

    @classmethod
    def of(cls, raw: Path, scratch: Scratch | None = None) -> RawArrays:
        """The arrays of a folder, labels included; with ``scratch`` they stay in files."""
        if (raw / _DATA).is_file():
            return cls.of_file(raw / _DATA, raw / _LABELS, scratch)
        arrays: dict[str, dict[Any, Array]] = {
            _EDGES: _read(raw / _EDGES_BY_TYPE, _edge_type, scratch),
            COUNTS: _read(raw / _COUNTS_BY_TYPE, str, scratch),
            _EDGE_COUNTS: _read(raw / _EDGE_COUNTS_BY_TYPE, _edge_type, scratch),
        }
        known = {_EDGES_BY_TYPE, _COUNTS_BY_TYPE, _EDGE_COUNTS_BY_TYPE, _LABELS}
        others = sorted(file for file in raw.glob("*.npz") if file.name not in known)
        # The prefix tells whether rows are of vertices or edges.
        left = [file.name for file in others if not file.name.startswith(("node_", "edge_"))]
        left_behind(raw, left, "names that begin neither with node_ nor with edge_")
        for file in others:
            if file.name not in left:
                name = plain_name(file.stem)
                if name in arrays:
                    raise FormatError(f"{raw} must hold {name} once, got {file.name}, too")
                arrays[name] = _read(
                    file, _edge_type if file.name.startswith("edge_") else str, scratch
                )
        if (raw / _LABELS).is_file():
            arrays["node_label"] = _read(raw / _LABELS, str, scratch)
        return cls(raw, arrays, is_typed=True, in_files=scratch is not None)

    @classmethod
    def of_file(
        cls, file: Path, labels: Path | None = None, scratch: Scratch | None = None
    ) -> RawArrays:
        """The arrays of ``data.npz``, and of the file of labels if any."""
        given: dict[str, Array] = {}
        for path in (file, labels):
            if path is not None and path.is_file():
                given |= _read(path, str, scratch)
        return cls.of_one_graph(file, given, in_files=scratch is not None)

    @classmethod
    def of_one_graph(
        cls, file: Path | str, given: dict[str, Array], *, in_files: bool = False
    ) -> RawArrays:
        """The arrays of a homogeneous graph by name; those without rows of it are left out."""
        for name in (_EDGES, COUNTS):
            if name not in given:
                raise FormatError(f"{file} must hold {name} of numbers, it holds {sorted(given)}")
        counts = (COUNTS, _EDGE_COUNTS)
        left = [
            name for name in given if name not in counts and not name.startswith(("node_", "edge_"))
        ]
        left_behind(file, left, "names that begin neither with node_ nor with edge_")
        arrays: dict[str, dict[Any, Array]] = {}
        for name, array in given.items():
            of_edges = name == _EDGE_COUNTS or name.startswith("edge_")
            if name not in left:
                arrays[name] = {EDGE_TYPE if of_edges else NODE_TYPE: array}
        return cls(file, arrays, is_typed=False, in_files=in_files)

    def edges(self, etype: EdgeType) -> GivenEdges:
        """The edges of a type, with their fields."""
        src, dst = self._edges[etype]
        fields = self._fields("edge", etype, self.edge_types)
        mapping = MappedFile.of(torch.from_numpy(src)) if self._in_files else None
        counts = self.counts[etype[0]], self.counts[etype[2]]
        columns = MemoryColumn.of(src), MemoryColumn.of(dst)
        ends = EdgeColumns(counts, *columns, mapping=mapping)
        return GivenEdges(f"{self._path}{_of(etype)}", ends, fields)

    def node_fields(self, ntype: str) -> dict[str, Tensor]:
        """The fields of the vertices of a type."""
        return self._fields("node", ntype, list(self.counts))

    def _fields(self, owner: str, kind: Any, kinds: list[Any]) -> dict[str, Tensor]:
        fields = {}
        for name, by_type in self._arrays.items():
            if not name.startswith(f"{owner}_"):
                continue
            unknown = [other for other in by_type if other not in kinds]
            if unknown:
                self._refuse(f"must hold {name} by types among {kinds}", repr(unknown[0]))
            if kind in by_type:
                rows = self._tensor(by_type[kind])
                ours = name.removeprefix(f"{owner}_")
                fields[ours] = rows if ours == "feat" else one_column(rows)
        return fields

    def _tensor(self, array: Array) -> Tensor:
        # From files, rows in Fortran order are only gathered when they are written.
        if self._in_files:
            return torch.from_numpy(array)
        return array_tensor(self._path, array)

    def _ends(self, etype: EdgeType, ends: Array) -> tuple[Array, Array]:
        if ends.dtype.kind not in "iu" or ends.ndim != 2 or len(ends) != 2:
            got = f"{ends.dtype} of shape {list(ends.shape)}{_of(etype)}"
            self._refuse(f"must hold {_EDGES} of integers and shape [2, edges]", got)
        src, dst = ends
        return src, dst

    def _count(self, name: str, number: Array) -> int:
        if number.dtype.kind not in "iu" or number.size != 1:
            got = f"{number.dtype} of shape {list(number.shape)}"
            self._refuse(f"must hold 1 graph, whose {name} is 1 integer", got)
        return int(number.reshape(-1)[0])

    def _refuse(self, rule: str, got: str) -> NoReturn:
        raise FormatError(f"{self._path} {rule}, got {got}")


def plain_name(name: str) -> str:
    """OGB's name of an array without the suffix: "node_feat" for "node_feat_dict"."""
    return name.removesuffix(_BY_TYPE)


def _read(file: Path, kind: Callable[[str], Any], scratch: Scratch | None) -> dict[Any, Array]:
    """The numeric arrays of a file, by type or name; others are left out."""
    if not file.is_file():
        raise FormatError(f"{os.fspath(file)} is missing")
    found = load_npz(file) if scratch is None else file_arrays(file, scratch)
    arrays = {name: array for name, array in found.items() if array.dtype.kind in "biuf"}
    left_behind(file, unread_npz(file, arrays), "no numbers")
    return {kind(name): array for name, array in arrays.items()}


def _edge_type(name: str) -> EdgeType:
    words = tuple(name.split("___"))
    if len(words) != 3:
        raise FormatError(
            f"arrays of edges must be named SOURCE___RELATION___DESTINATION, got {name!r}"
        )
    return words


def _of(etype: EdgeType) -> str:
    return "" if etype == EDGE_TYPE else f" of {'/'.join(etype)}"
