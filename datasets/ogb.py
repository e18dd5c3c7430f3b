"""OGB's folders: reader of tables or arrays in ``raw/``, and writer of tables."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import FormatError
from ..graph.fields import Fields, FieldValue, mask_of
from ..graph.graph import EDGE_TYPE, NODE_TYPE, EdgeType, Graph
from ..system.atomic import new_folder
from ..system.checks import StrPath
from ..system.files import check_inside, check_links
from ..system.progress import Progress
from ..system.torch_file import load_saved
from .arrays import left_behind, one_column
from .column_files import Scratch
from .edge_rows import EdgeRows, Reading
from .edge_sort import EdgeColumns, GivenEdges, InFiles
from .edge_text import read_integers
from .ogb_arrays import RawArrays
from .ogb_graph import LINKS_LEFT, SETS, graph_of, set_masks
from .paths import OGB_TABLES, PARTS
from .tables.number_tables import read_numbers
from .text_blocks import read_blocks

# OGB's names of its tables, and of its splits.
_EDGES = "edge"
_TRIPLETS = "triplet-type-list"
_COUNT = "num-node-list"
_COUNTS = "num-node-dict"
_SPLIT = "random"  # the split that is written; OGB's own are "time", "sales_ranking" etc.
_SPLIT_DICT = "split_dict.pt"
_EDGE_COUNT = "num-edge-list"
_SPECIES = "species"
# Keys of a set of links in OGB's link prediction datasets.
_LINK_KEYS = {"edge", "edge_neg", "head", "source_node"}
# Rows that are formatted at once: 32 MiB for 128 float32 each.
_CHUNK_ROWS = 65536
# Valid names of folders: no separators, and no dot at the end.
_PLAIN = re.compile(r"[A-Za-z0-9_.+-]*[A-Za-z0-9_+-]")
# All significant digits, and a point that marks floats.
_FORMATS = {torch.int64: "%d", torch.float32: "%.8e"}


def _table(folder: Path, name: str) -> Path:
    return folder / f"{name}.csv.gz"


class _Places:
    """Folders of the tables of each type; separate ones if there are several types."""

    def __init__(self, folder: Path, *, typed: bool) -> None:
        self.raw = folder / "raw"
        self._root = folder
        self._typed = typed

    def nodes(self, ntype: str) -> Path:
        return self.raw / "node-feat" / ntype if self._typed else self.raw

    def labels(self, ntype: str) -> Path:
        return self.raw / "node-label" / ntype if self._typed else self.raw

    def edges(self, etype: EdgeType) -> Path:
        return self.raw / "relations" / "___".join(etype) if self._typed else self.raw

    def split(self, name: str, ntype: str) -> Path:
        return self._root / "split" / name / (ntype if self._typed else "")

    def splits(self) -> list[str]:
        folder = self._root / "split"
        if not folder.is_dir():
            return []
        return sorted(path.name for path in folder.iterdir() if path.is_dir())


class _RawTables:
    """The tables of ``raw/`` by type; for arrays, see ``RawArrays`` in ``ogb_arrays``."""

    def __init__(self, folder: Path, progress: Progress | None, scratch: Scratch | None) -> None:
        self.is_typed = _table(folder / "raw", _TRIPLETS).is_file()
        self._places = _Places(folder, typed=self.is_typed)
        self._progress = progress
        self._scratch = scratch
        if self.is_typed:
            self.counts, self.edge_types = _types(self._places.raw)
        else:
            self.counts = {NODE_TYPE: _single_count(self._places.raw)}
            self.edge_types = [EDGE_TYPE]

    def edges(self, etype: EdgeType) -> GivenEdges:
        """The edges of a type, with their fields."""
        folder = self._places.edges(etype)
        table = _table(folder, _EDGES)
        if not table.is_file():
            raise FormatError(f"{table} is missing")
        fields = _fields(folder, "edge", self._scratch)
        rows = EdgeRows(table, self._scratch)
        read_integers(Reading(rows, header=False, progress=self._progress))
        _check_count(_table(folder, _EDGE_COUNT), table, len(rows))
        counts = self.counts[etype[0]], self.counts[etype[2]]
        return GivenEdges(str(table), EdgeColumns(counts, *rows.ends), fields)

    def node_fields(self, ntype: str) -> dict[str, Tensor]:
        """The fields of the vertices of a type."""
        fields = _fields(self._places.nodes(ntype), "node", self._scratch)
        return fields | _labels(self._places.labels(ntype), self._scratch)


def read_ogb(
    source: StrPath,
    *,
    files: InFiles | None = None,
    split: str = "",
    undirected: bool = False,
    progress: Progress | None = None,
) -> Graph:
    """Read the graph of an OGB node dataset: the folder with ``raw/`` and ``split/``.

    Or only ``raw/data.npz``, which has no labels and splits. ``node-feat`` becomes the field
    ``feat``, ``node-label`` becomes ``label`` (1-D if it has one column), ``edge-feat`` the edge
    field ``feat``. Tables such as ``node_year`` become fields without the prefix, and the split
    becomes the three masks. Tables of integers are int64. Fractions of ``feat`` are float32; other
    tables get the dtype that holds all numbers. Several types (``triplet-type-list.csv.gz``) are
    supported, and so is the binary form (``data.npz`` or ``edge_index_dict.npz``), whose arrays
    keep their dtypes.

    Args:
        source: The dataset's folder, which holds ``raw``, or a file of arrays.
        files: For edges and fields larger than memory, with their own progress.
        split: Name of the folder in ``split/``. Default: the only one.
        undirected: Each edge is listed once (as in ogbn-products): add the other direction.
        progress: Called with the bytes of edges read and the file's size.

    Raises:
        FormatError: A table is missing, damaged, or does not match the others, or there are several
            graphs.
        ValueError: ``split`` does not exist, or is missing if there are several; ``undirected``
            with several types.
    """
    path = Path(source)
    scratch = None if files is None else files.scratch
    if path.is_file():
        arrays = RawArrays.of_file(path, scratch=scratch)
        return graph_of(arrays, str(path), undirected=undirected, files=files)
    # Symbolic links must not lead out of an untrusted folder.
    for part in ("raw", "split"):
        check_inside(path, path / part)
        check_links(path / part)
    raw: _RawTables | RawArrays
    if any((path / "raw" / name).is_file() for name in OGB_TABLES):
        raw = _RawTables(path, progress, scratch)
    else:
        raw = RawArrays.of(path / "raw", scratch)
    places = _Places(path, typed=raw.is_typed)
    splits = places.splits()
    if split not in splits and (split or len(splits) > 1):
        raise ValueError(f"split must be one of {splits}, got {split!r}")
    if undirected and raw.is_typed:
        raise ValueError(f"undirected=True must not be given for {path}, which has several types")
    graph = graph_of(raw, str(places.raw), undirected=undirected, files=files)
    for one in [split] if split else splits:
        _set_split(graph, places, one, files)
    return graph


def _types(raw: Path) -> tuple[dict[str, int], list[EdgeType]]:
    """Number of vertices of each type, and the edge types."""
    names, *rows = _lines(_table(raw, _COUNTS))
    if (
        len(rows) != 1
        or len(rows[0]) != len(names)
        or not all(word.isdecimal() for word in rows[0])
    ):
        raise FormatError(
            f"{_table(raw, _COUNTS)} must name the types of 1 graph and count their vertices"
        )
    triplets = list(dict.fromkeys(map(tuple, _lines(_table(raw, _TRIPLETS)))))
    for triplet in triplets:
        if len(triplet) != 3 or triplet[0] not in names or triplet[2] not in names:
            raise FormatError(
                f"{_table(raw, _TRIPLETS)} must hold triples of types of {names}, got "
                f"{list(triplet)}"
            )
    words = [*names, *(word for triplet in triplets for word in triplet)]
    if not triplets or not all(map(_PLAIN.fullmatch, words)):
        raise FormatError(f"{raw} must have types of plain names, got {names} and {triplets}"[:300])
    return dict(zip(names, map(int, rows[0]), strict=True)), triplets  # type: ignore[return-value]


def _lines(table: Path) -> list[list[str]]:
    """The words of each line of a small table."""
    if not table.is_file():
        raise FormatError(f"{table} is missing")
    text = b"".join(block.data for block in read_blocks(table)).decode("utf-8", "replace")
    lines = [line for line in text.splitlines() if line.strip()]
    return [[word.strip() for word in line.split(",")] for line in lines] or [[]]


def _single_count(raw: Path) -> int:
    counts = _lines(_table(raw, _COUNT))
    if len(counts) != 1 or len(counts[0]) != 1 or not counts[0][0].isdecimal():
        raise FormatError(
            f"{_table(raw, _COUNT)} must hold the number of vertices of 1 graph, got {len(counts)} "
            "lines"
        )
    return int(counts[0][0])


def _check_count(counts: Path, table: Path, found: int) -> None:
    """Raise FormatError if a table of edges was truncated, by the stated number of edges."""
    if counts.is_file() and _lines(counts) != [[str(found)]]:
        stated = " ".join(word for line in _lines(counts)[:3] for word in line)
        raise FormatError(
            f"{table} must hold the edges that {counts.name} says, {stated!r}, got {found}"
        )


def _fields(folder: Path, owner: str, scratch: Scratch | None) -> dict[str, Tensor]:
    """The tables of a type's vertices or edges: ``node-feat``, ``node_year``..."""
    fields = {}
    if (table := _table(folder, f"{owner}-feat")).is_file():
        fields["feat"] = read_numbers(table, scratch, field="feat")
    tables = {
        file.name[len(owner) + 1 : -len(".csv.gz")]: file
        for file in sorted(folder.glob(f"{owner}_*.csv.gz"))
    }
    # OGB's own reader renames this table of ogbn-proteins on first use.
    if owner == "node" and _table(folder, _SPECIES).is_file():
        tables.setdefault(_SPECIES, _table(folder, _SPECIES))
    for name, table in tables.items():
        if not name.isprintable():
            raise FormatError(f"{folder} must hold tables of printable names, got {table.name!r}")
        fields[name] = one_column(read_numbers(table, scratch, field=name))
    return fields


def _labels(folder: Path, scratch: Scratch | None) -> dict[str, Tensor]:
    table = _table(folder, "node-label")
    if not table.is_file():
        return {}
    return {"label": one_column(read_numbers(table, scratch, field="label"))}


def _set_split(graph: Graph, places: _Places, name: str, files: InFiles | None) -> None:
    """Set the masks of a split from its tables or ``split_dict.pt``; sets of links are left out."""
    folder = places.split(name, "")
    left = [f"{part}.pt" for part in SETS.values() if (folder / f"{part}.pt").is_file()]
    saved = folder / _SPLIT_DICT
    known = _split_dict(saved) if saved.is_file() else None
    if known is not None and any(map(_is_of_links, known.values())):
        left.append(saved.name)
        known = {}
    for ntype in graph.node_types:
        sets: dict[str, tuple[Path, Any]] = {}
        if known is None:
            tables = {part: _table(places.split(name, ntype), word) for part, word in SETS.items()}
            for part, file in tables.items():
                if file.is_file():
                    sets[part] = (file, read_numbers(file, field=f"{part}_mask"))
        for part, given in (known or {}).items():
            ids = _ids_of(saved, given, ntype)
            if ids is not None:
                sets[part] = (saved, ids)
        set_masks(graph, ntype, sets, files)
    left_behind(folder, left, LINKS_LEFT)


def _is_of_links(ids: Any) -> bool:
    return isinstance(ids, dict) and not _LINK_KEYS.isdisjoint(ids)


def _split_dict(file: Path) -> dict[str, Any]:
    """The split of OGB's ``DatasetSaver``: ids, or ids by vertex type, by name of the set."""
    content = load_saved(file, arrays=True)
    if not isinstance(content, dict) or not set(content) <= set(SETS.values()):
        raise FormatError(f"{file} must hold a dict of {list(SETS.values())}")
    return {part: content[name] for part, name in SETS.items() if name in content}


def _ids_of(file: Path, ids: Any, ntype: str) -> Any:
    """Ids of one vertex type in a file's content, or None."""
    if ntype == NODE_TYPE:
        return ids
    if not isinstance(ids, dict):
        raise FormatError(f"{file} must hold ids by vertex type, got a {type(ids).__name__}")
    return ids.get(ntype)


def write_ogb(graph: Graph, out: StrPath) -> None:
    """Write a graph for :func:`read_ogb`, atomically; OGB's own readers also accept ``raw``.

    Raises:
        FileExistsError: ``out`` exists.
        ValueError: The tables cannot hold a type or field. Names have letters, digits and
            ``_.+-``. Dtypes are int64 and float32, except for the three masks. ``feat`` has the
            shape ``(rows, columns)``, other fields ``(rows,)`` or at least two columns. There are
            rows.
    """
    typed = (graph.node_types, graph.edge_types) != ([NODE_TYPE], [EDGE_TYPE])
    _check(graph)
    with new_folder(out) as folder:
        places = _Places(folder, typed=typed)
        places.raw.mkdir()
        if typed:
            counts = graph.num_nodes_by_type
            _write_lines(
                _table(places.raw, _COUNTS), [",".join(counts), ",".join(map(str, counts.values()))]
            )
            _write_lines(
                _table(places.raw, _TRIPLETS), [",".join(etype) for etype in graph.edge_types]
            )
        else:
            _write_lines(_table(places.raw, _COUNT), [str(graph.num_nodes)])
        for etype in graph.edge_types:
            _write_edges(graph, etype, places.edges(etype))
        for ntype in graph.node_types:
            for table, values in _node_tables(graph, ntype, places):
                _write(table, values)
        if typed:
            _write_who_has(graph, places)


def _write_who_has(graph: Graph, places: _Places) -> None:
    """Write which types have labels and a split, for OGB's own datasets."""
    fields = {ntype: graph.node_fields(ntype) for ntype in graph.node_types}
    for folder, what, field in (
        (places.raw, "label", "label"),
        (places.split(_SPLIT, ""), "split", "train_mask"),
    ):
        if folder.is_dir():
            has = ",".join(str(field in of_type) for of_type in fields.values())
            _write_lines(_table(folder, f"nodetype-has-{what}"), [",".join(fields), has])


def _write_edges(graph: Graph, etype: EdgeType, folder: Path) -> None:
    csc = graph.csc_of(etype)
    _write(_table(folder, _EDGES), csc.ends_by_id().T)
    _write_lines(_table(folder, _EDGE_COUNT), [str(csc.num_edges)])
    for name, values in graph.edge_fields(etype).items():
        _write(_field_table(folder, "edge", name), values)


def _node_tables(graph: Graph, ntype: str, places: _Places) -> Iterator[tuple[Path, Any]]:
    masks = {f"{part}_mask": name for part, name in SETS.items()}
    for name, values in graph.node_fields(ntype).items():
        if name in masks and values.dtype == torch.bool:
            yield _table(places.split(_SPLIT, ntype), masks[name]), values[:].nonzero()
        elif name == "label":
            yield _table(places.labels(ntype), "node-label"), values
        else:
            yield _field_table(places.nodes(ntype), "node", name), values


def _field_table(folder: Path, owner: str, field: str) -> Path:
    """The table of a field of vertices ("node") or edges ("edge")."""
    mark = "-" if field == "feat" else "_"
    return _table(folder, f"{owner}{mark}{field}")


def _check_apart(owner: str, fields: Fields) -> None:
    """Refuse overlapping sets, which the reader would refuse."""
    taken: dict[str, Tensor] = {}
    for name in (f"{part}_mask" for part in PARTS):
        mask = mask_of(fields, name)
        if mask is None:
            continue
        for other, before in taken.items():
            count = int((mask & before).sum())
            if count:
                raise ValueError(
                    f"{owner}/{name} must have no vertex in common with {other} for OGB's form, "
                    f"got {count}"
                )
        taken[name] = mask


def _check(graph: Graph) -> None:
    """Raise ValueError for types and fields that the tables cannot hold."""
    words = [*graph.node_types, *(word for etype in graph.edge_types for word in etype)]
    masks = {f"{part}_mask" for part in PARTS}
    owners = [(f"vertex field {t}", graph.node_fields(t)) for t in graph.node_types]
    owners += [(f"edge field {'/'.join(t)}", graph.edge_fields(t)) for t in graph.edge_types]
    for word in words:
        # Three underscores separate the words of an edge type in its folder's name.
        if not _PLAIN.fullmatch(word) or "___" in word:
            raise ValueError(
                "types must have names of letters, digits and single _.+- for OGB's form, got "
                f"{word!r}"
            )
    for owner, fields in owners:
        if owner.startswith("vertex"):
            _check_apart(owner, fields)
        for name, values in fields.items():
            if not _PLAIN.fullmatch(name):
                raise ValueError(
                    f"{owner}/{name!r} must have a name of letters, digits and _.+- for OGB's form"
                )
            is_mask = name in masks and values.dtype == torch.bool
            if not is_mask or not owner.startswith("vertex"):
                _check_rows(f"{owner}/{name}", name, values)


def _check_rows(shown: str, name: str, values: FieldValue) -> None:
    """Raise ValueError for rows of a field that a table cannot hold."""
    if values.dtype not in _FORMATS:
        raise ValueError(f"{shown} must be int64 or float32 for OGB's form, got {values.dtype}")
    shape = list(values.shape)
    if name == "feat":
        rule = "rows and columns"
        is_sound = len(shape) == 2
    else:
        rule = "rows of one number, or several columns"
        is_sound = len(shape) == 1 or (len(shape) == 2 and shape[1] > 1)
    if not is_sound or 0 in shape:
        raise ValueError(f"{shown} must have {rule} for OGB's form, got shape {shape}")


def _write(table: Path, values: Any) -> None:
    table.parent.mkdir(parents=True, exist_ok=True)
    # No time in the header, so that equal graphs have equal bytes. Not level 9, Python's default,
    # which is much slower for little gain.
    with gzip.GzipFile(table, "wb", compresslevel=6, mtime=0) as file:
        for begin in range(0, values.shape[0], _CHUNK_ROWS):
            rows: Any = values[begin : begin + _CHUNK_ROWS].numpy()
            np.savetxt(file, rows, fmt=_FORMATS[values.dtype], delimiter=",")


def _write_lines(table: Path, lines: list[str]) -> None:
    table.parent.mkdir(parents=True, exist_ok=True)
    with gzip.GzipFile(table, "wb", mtime=0) as file:
        file.write("".join(f"{line}\n" for line in lines).encode())
