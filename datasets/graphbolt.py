"""Reader of GraphBolt's ``OnDiskDataset``: ``metadata.yaml`` and its arrays."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..errors import FormatError
from ..graph.csc import id_range
from ..graph.graph import CSC, EDGE_TYPE, NODE_TYPE, EdgeType, Graph
from ..system.checks import StrPath
from ..system.files import load_yaml, named_file
from .arrays import map_or_read, read_array
from .edge_rows import EdgeRows, Reading
from .edge_text import read_integers
from .edges import check_size
from .manifest import take, take_count, take_name, take_optional
from .paths import METADATA

_SETS = {"train_set": "train_mask", "validation_set": "val_mask", "test_set": "test_mask"}
_SEEDS = ("seeds", "seed_nodes")  # since DGL 2.2, and before

_T = TypeVar("_T")

_log = logging.getLogger(__name__)


def read_graphbolt(folder: StrPath) -> Graph:
    """Read an unprocessed GraphBolt dataset with one or several types, without DGL.

    ``feature_data`` becomes fields. The sets of the first task over vertices become the masks
    ``train_mask``, ``val_mask`` and ``test_mask``. Their ``labels`` become the field ``label`` if
    the features have none, with -1 (NaN) for vertices in no set. Tasks over edges and further tasks
    are left out with a warning.

    Raises:
        FormatError: ``metadata.yaml`` does not describe a graph, or one of its files is missing,
            damaged, or does not match.
    """
    path = Path(folder)
    path = path.parent if path.name == METADATA else path
    description = load_yaml(path / METADATA)
    where = str(path / METADATA)
    if "graph" not in description and "graph_topology" in description:
        raise FormatError(
            f"{where} must describe a graph, it describes a preprocessed data set: give the "
            "folder above it"
        )
    reader = _Reader(path, where)
    graph = reader.graph(take(description, "graph", dict, where))
    features = [
        *_items(description["graph"], "feature_data", where),
        *_items(description, "feature_data", where),
    ]
    for feature in features:
        reader.add_feature(graph, feature)
    reader.add_task(graph, _items(description, "tasks", where))
    return graph


def _items(value: Any, key: str, where: str) -> list[Any]:
    """The list ``value[key]``, or an empty list."""
    return _optional(value, key, list, where) or []


def _optional(value: Any, key: str, kind: type[_T], where: str) -> _T | None:
    """Get ``value[key]``, which must be a ``kind``, null or missing, or raise FormatError."""
    if not isinstance(value, dict):
        raise FormatError(f"{where}: {key} must be in a mapping, got {value!r}"[:300])
    return take_optional(value, key, kind, where) if key in value else None


class _Reader:
    """Reader of the dataset of one ``metadata.yaml``."""

    def __init__(self, folder: Path, where: str) -> None:
        self._folder = folder
        self._where = where
        self._labelled: set[str] = set()  # types whose features have labels

    def graph(self, value: dict[str, Any]) -> Graph:
        counts = {}
        csc = {}
        for node in take(value, "nodes", list, self._where):
            ntype = self._node_type(node)
            counts[ntype] = take_count(node, "num", self._where)
            check_size(self._where, counts[ntype])
        for edge in take(value, "edges", list, self._where):
            etype = self._edge_type(edge)
            if not {etype[0], etype[2]} <= set(counts):
                raise FormatError(
                    f"{self._where}: edges must join types of {list(counts)}, got {':'.join(etype)}"
                )
            ends = self._ends(edge)
            try:
                csc[etype] = CSC.from_coo(ends[0], ends[1], (counts[etype[0]], counts[etype[2]]))
            except (TypeError, ValueError) as error:
                raise FormatError(f"{self._where}: edges {':'.join(etype)}: {error}") from error
        if not csc:
            raise FormatError(f"{self._where}: edges must hold at least 1 edge type, got none")
        return Graph(csc, counts)

    def _edge_type(self, value: Any) -> EdgeType:
        if not _has_type(value):
            return EDGE_TYPE
        names = take_name(value, "type", self._where).split(":")
        if len(names) != 3:
            raise FormatError(
                f"{self._where}: type must be source:relation:target, got {':'.join(names)!r}"
            )
        return names[0], names[1], names[2]

    def _path(self, value: Any) -> Path:
        name = take(value, "path", str, self._where)
        return named_file(self._folder, name, f"{self._where}: path")

    def _ends(self, value: Any) -> Any:
        path = self._path(value)
        # Text has a line per edge; arrays have a row of sources and a row of targets.
        if value.get("format") == "csv":
            rows = EdgeRows(path)
            read_integers(Reading(rows))
            return rows.src, rows.dst
        ends = self._array(value)
        if ends.dim() != 2 or len(ends) != 2:
            raise FormatError(f"{path} must have shape [2, edges], got {list(ends.shape)}")
        return ends

    def _array(self, value: Any) -> Tensor:
        path = self._path(value)
        form = take(value, "format", str, self._where)
        if form == "numpy":
            return map_or_read(path)
        if form == "torch":
            return read_array(path, field=str(value.get("name")))
        rule = "format must be 'numpy' or 'torch' ('csv' for edges)"
        raise FormatError(f"{self._where}: {rule}, got {form!r}"[:300])

    def add_feature(self, graph: Graph, value: Any) -> None:
        domain = take(value, "domain", str, self._where)
        if domain == "graph":
            _log.warning(
                "%s: the feature %r of the whole graph is left out", self._where, value.get("name")
            )
            return
        name = take_name(value, "name", self._where)
        rows = self._array(value)
        if domain == "edge":
            self._set(graph, name, rows, edge_type=self._edge_type(value))
        else:
            self._set(graph, name, rows, node_type=self._node_type(value))

    def _node_type(self, value: Any) -> str:
        return take_name(value, "type", self._where) if _has_type(value) else NODE_TYPE

    def _set(self, graph: Graph, name: str, values: Tensor, **owner: Any) -> None:
        try:
            graph.set_field(name, values, **owner)
        except (KeyError, ValueError) as error:
            raise FormatError(f"{self._where}: {error.args[0]}") from error

    def add_task(self, graph: Graph, tasks: list[Any]) -> None:
        """Add fields for the sets of the first task over vertices."""
        done = False
        self._labelled = {t for t in graph.node_types if "label" in graph.node_fields(t)}
        for task in tasks:
            sets = {mask: _items(task, name, self._where) for name, mask in _SETS.items()}
            items = [
                (mask, part, self._data(part)) for mask, parts in sets.items() for part in parts
            ]
            # 2-D seeds are pairs, of a task over edges.
            seeds = [data.get("seeds") for _, _, data in items]
            if done or not all(ids is not None and ids.dim() == 1 for ids in seeds):
                _log.warning("%s: the task %r is left out", self._where, task.get("name"))
                continue
            done = True
            for mask, part, data in items:
                self._add_set(graph, mask, self._node_type(part), data)

    def _data(self, part: Any) -> dict[str, Tensor]:
        """The arrays of a set for one type, by name: "seeds" if any, and others."""
        found = {}
        for item in take(part, "data", list, self._where):
            name = _optional(item, "name", str, self._where)
            found["seeds" if name in _SEEDS or name is None else name] = self._array(item)
        return found

    def _add_set(self, graph: Graph, mask: str, ntype: str, data: dict[str, Tensor]) -> None:
        count = graph.num_nodes_by_type.get(ntype)
        ids = data["seeds"]
        if count is None or not _are_ids(ids, count):
            raise FormatError(
                f"{self._where}: {mask.replace('_mask', '')} set must hold ids of {ntype} below "
                f"{count}"
            )
        fields = graph.node_fields(ntype)
        labels = data.get("labels")
        is_in = torch.zeros(count, dtype=torch.bool, device="cpu")
        fields.setdefault(mask, is_in)[ids.long()] = True
        # Labels among the features take precedence: they are of all vertices.
        if labels is None or ntype in self._labelled:
            return
        labels = labels if labels.dtype.is_signed else labels.long()  # others have no -1
        nothing = float("nan") if labels.is_floating_point() else -1
        empty = torch.full((count, *labels.shape[1:]), nothing, dtype=labels.dtype, device="cpu")
        label = fields.setdefault("label", empty)
        if len(labels) != len(ids) or (label.dtype, label.shape) != (labels.dtype, empty.shape):
            got = f"{labels.dtype} of shape {list(labels.shape)} for {len(ids)} seeds"
            raise FormatError(
                f"{self._where}: labels must be of one kind, one row per seed, got {got}"
            )
        label[ids.long()] = labels


def _are_ids(values: Tensor, count: int) -> bool:
    """Whether values are integers in [0, count)."""
    if values.is_floating_point() or values.is_complex():
        return False
    low, high = id_range(values)
    return low >= 0 and high < count


def _has_type(value: Any) -> bool:
    return isinstance(value, dict) and value.get("type") is not None
