"""Conversion between DGL's graphs and ours, and of excluded edges to positions."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .._late import call_late
from ..graph.conversion import way_of
from ..graph.csc import as_ids, no_ids
from ..graph.fields import FieldValue, FieldVersion
from ..graph.graph import EdgeType, Graph, without_fields
from ..graph.stored_rows import NarrowRows
from ..sampling.drawing import ExcludedEdges
from ..system.atomic import new_file
from ..system.checks import StrPath
from ..system.threads import fork_lock
from .deferred import NarrowColumn, frame_of, waiting_column
from .graphbolt import import_dgl
from .saving import save_whole_graph
from .typing import NodeGraph

dgl = import_dgl()
from dgl.frame import Frame  # noqa: E402

# Both have weak keys, so that a graph's arrays are freed with the graph.
_core_graphs: weakref.WeakKeyDictionary[Any, tuple[Any, dict[str, Graph]]] = (
    weakref.WeakKeyDictionary()
)
_dgl_graphs: weakref.WeakKeyDictionary[Graph, tuple[Any, dict[Any, FieldValue]]] = (
    weakref.WeakKeyDictionary()
)
# Guards both dictionaries, also while arrays are made, so that loaders that are created at the same
# time share them. It is re-entrant, because `dgl_graph` and `core_graph_both_ways` call other
# conversions. DGL is called while it is held, and a WaitingGraph's lock may be taken.
_lock = threading.RLock()


def core_graph(graph: Any, edge_dir: str = "in") -> Graph:
    """The structure of a DGL graph as ours, converted once and kept as long as the graph lives.

    For "out" the result is reversed: its in-edges are the out-edges, and edge type (a, r, b)
    becomes (b, r, a). All loaders of a graph share the result. If the graph's structure is changed
    in place, it is converted again. Fields are not converted; they stay in the DGL graph.
    """
    with _lock:
        index, by_direction = _core_graphs.get(graph, (None, {}))
        if index is not structure_mark(graph):
            index = structure_mark(graph)
            by_direction = {}
            _core_graphs[graph] = (index, by_direction)
        if edge_dir not in by_direction:
            layout, turn = {"in": ("csc", 1), "out": ("csr", -1)}[edge_dir]
            csc = {
                etype[::turn]: Graph.csc_from_dgl(graph, etype, layout)
                for etype in graph.canonical_etypes
            }
            by_direction[edge_dir] = Graph(csc, {t: int(graph.num_nodes(t)) for t in graph.ntypes})
        return by_direction[edge_dir]


def core_graph_both_ways(graph: Any) -> Graph:
    """The result of :func:`core_graph`, with out-edges in the order of ``DGLGraph.subgraph``.

    For a :class:`WaitingGraph` the out-edges are built from the in-edges, as DGL would build them.
    """
    core = core_graph(graph)
    if not isinstance(graph, WaitingGraph):
        turned = core_graph(graph, "out")
        for etype in core.edge_types:
            core.set_out_csc(etype, turned.csc_of(etype[::-1]))
    return core


def structures_of(graph: Any) -> dict[str, Graph]:
    """The results of :func:`core_graph` so far, by direction, to go with a pickled or copied graph.

    DGL's copies order their rows differently, and another order of neighbours makes other draws.
    """
    with _lock:
        index, by_direction = _core_graphs.get(graph, (None, {}))
        return dict(by_direction) if index is structure_mark(graph) else {}


def restore_structures(graph: Any, by_direction: Mapping[str, Graph]) -> None:
    """Give a copy of a graph the :func:`structures_of` the original."""
    with _lock:
        _core_graphs[graph] = structure_mark(graph), dict(by_direction)


def by_edge_type(graph: Any, what: str, numbers: Mapping[Any, Any]) -> dict[EdgeType, Any]:
    """A mapping by triple or relation, keyed by canonical type; DGLError if a type is missing."""
    by_type = {graph.to_canonical_etype(etype): number for etype, number in numbers.items()}
    missing = [etype for etype in graph.canonical_etypes if etype not in by_type]
    if missing:
        raise dgl.DGLError(
            f"{what} given as a dict must name every edge type, {missing} are missing"
        )
    return by_type


def to_dgl(graph: Graph) -> NodeGraph:
    """A ``dgl.DGLGraph`` with the same vertices, edges, edge ids and fields (fields share memory).

    Ids are int64, DGL's default. Edge ids are given even if they only count 0, 1, 2...: without
    them DGL's libxsmm kernels fail on edge features.

    Fields that are ``IndexedRows`` become columns like those of a DGL subgraph: DGL gathers the
    whole column when it is first read as ``ndata[...]``, but our loaders, and the columns of
    blocks, read single rows. ``NarrowRows`` work in the same way, and also DGL's own loader reads
    single rows of them.

    Raises:
        TypeError: ``graph`` is something else.
        ValueError: An id is outside the graph, or two edges have the same, as in a damaged folder.
    """
    if not isinstance(graph, Graph):
        raise TypeError(f"graph must be a pagraph.Graph, got {way_of(graph)}")
    result: NodeGraph = _structure(graph)
    _set_columns(result, _fields(graph))
    return result


def _structure(graph: Graph) -> Any:
    """A ``dgl.DGLGraph`` of the edges, without fields."""
    data = {}
    for etype in graph.edge_types:
        csc = graph.csc_of(etype)
        own = csc.copy(torch.int64)  # always a copy, because DGL sorts rows in place
        data[etype] = ("csc", (own.indptr, own.indices, csc.places()))
    return dgl.heterograph(data, num_nodes_dict=graph.num_nodes_by_type)


def dgl_graph(graph: Graph) -> Any:
    """Memoized :func:`to_dgl`, kept as long as ``graph`` lives.

    Fields that were set since the last call become columns. Loaders of the result sample from
    ``graph``'s arrays; DGL's structure is made when something needs it. Columns that were set on
    the result are kept, unless ``graph`` has a new field with that name.
    """
    with _lock:
        known = _dgl_graphs.get(graph)
        fields = _fields(graph)
        if known is None:
            own = without_fields(graph)
            result = WaitingGraph(own, _structure)
            before: dict[Any, FieldValue] = {}
            # So loaders of the result sample these arrays, and not copies of DGL's.
            _core_graphs[result] = (structure_mark(result), {"in": own})
        else:
            result, before = known
        new = {key: values for key, values in fields.items() if before.get(key) is not values}
        _set_columns(result, new)
        _dgl_graphs[graph] = (result, fields)
        return result


class WaitingGraph(dgl.DGLGraph):  # type: ignore[name-defined]
    """A DGL graph that has only types, counts and columns until its structure is needed.

    Args:
        core: The graph. Its fields are not used.
        make: Makes the DGL graph with the structure, at the first access to it.
    """

    def __init__(self, core: Graph, make: Callable[[Graph], Any]) -> None:
        nothing = no_ids()
        outline = dgl.heterograph(
            dict.fromkeys(core.edge_types, (nothing, nothing)), core.num_nodes_by_type
        )
        self._core = core
        self._make = make
        # Held while the structure is made, so that it is made once. It is a fork lock, because a
        # worker process may be forked meanwhile.
        self._lock = fork_lock()
        self._counts = [core.csc_of(etype).num_edges for etype in outline.canonical_etypes]
        self._outline = self._structure = outline._graph
        counts = [outline.num_nodes(t) for t in outline.ntypes], self._counts
        frames = ([Frame(num_rows=count) for count in of_kind] for of_kind in counts)
        # DGL's constructor asks the structure for its types. After that it is dropped.
        super().__init__(outline._graph, outline.ntypes, outline.etypes, *frames)
        self._structure = None

    @property
    def _graph(self) -> Any:
        """DGL's index; assignments, such as ``add_edges`` makes, replace it."""
        with self._lock:
            if self._structure is None:
                self._structure = self._made = self._make(self._core)._graph
            return self._structure

    @_graph.setter
    def _graph(self, index: Any) -> None:
        self._structure = index
        self._mark = self._outline if self._unchanged else index  # see mark_name

    @property
    def _unchanged(self) -> bool:
        return self._structure is None or self._structure is vars(self).get("_made")

    def num_nodes(self, ntype: str | None = None) -> int:
        """See ``DGLGraph.num_nodes``."""
        if not self._unchanged:
            return int(super().num_nodes(ntype))
        types = self.ntypes if ntype is None else [ntype]
        return int(sum(self._outline.num_nodes(self.get_ntype_id(t)) for t in types))

    def num_edges(self, etype: Any = None) -> int:
        """See ``DGLGraph.num_edges``."""
        if not self._unchanged:
            return int(super().num_edges(etype))
        return sum(self._counts) if etype is None else self._counts[self.get_etype_id(etype)]

    @property
    def idtype(self) -> torch.dtype:
        """See ``DGLGraph.idtype``."""
        return torch.int64 if self._unchanged else super().idtype

    @property
    def device(self) -> torch.device:
        """See ``DGLGraph.device``."""
        return torch.device("cpu") if self._unchanged else super().device

    def is_pinned(self) -> bool:
        """See ``DGLGraph.is_pinned``."""
        return self._structure is not None and bool(super().is_pinned())

    def __reduce__(self) -> tuple[Any, ...]:
        parts = self._graph, self.ntypes, self.etypes, self._node_frames, self._edge_frames
        return dgl.DGLGraph, parts


def mark_name(graph: Any) -> str:
    """The attribute whose object is replaced when the graph's structure is changed in place."""
    return "_mark" if isinstance(graph, WaitingGraph) else "_graph"


def structure_mark(graph: Any) -> Any:
    """The object at :func:`mark_name`."""
    return getattr(graph, mark_name(graph))


def _fields(graph: Graph) -> dict[Any, FieldValue]:
    """All fields by ("nodes", type, name) or ("edges", type, name)."""
    found = {
        ("nodes", t, name): v for t in graph.node_types for name, v in graph.node_fields(t).items()
    }
    return found | {
        ("edges", t, name): v for t in graph.edge_types for name, v in graph.edge_fields(t).items()
    }


def _set_columns(graph: Any, fields: Mapping[Any, FieldValue]) -> None:
    for (kind, type_, name), values in fields.items():
        if isinstance(values, Tensor):
            frame_of(graph, kind[:-1], type_).update({name: values})
            continue
        # Bypasses DGL's setter, which would read all rows.
        columns = frame_of(graph, kind[:-1], type_)._columns
        if isinstance(values, NarrowRows):
            columns[name] = NarrowColumn(values)
        else:
            columns[name] = waiting_column(values)


def load_saved_graph(path: StrPath, index: int = 0) -> Graph:
    """Read one graph from a file that ``dgl.save_graphs`` wrote; see
    ``pagraph.datasets.dgl_file``."""
    graph: Graph = call_late("saved_dgl_graph", path, index)
    return graph


_SAVED = {
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.float32, torch.float64, torch.bfloat16),
}


def save_graph(graph: Graph, path: StrPath) -> None:
    """Save a graph by ``dgl.save_graphs``.

    DGL saves bools as uint8. So a field must have a name that ends in ``mask`` if it is bool, and
    must not if it is uint8.

    Raises:
        ValueError: A field has a dtype that DGL does not save, or breaks this rule.
        OSError: The file cannot be written, for example as the disk is full.
    """
    for (_, type_, name), values in _fields(graph).items():
        if values.dtype not in _SAVED:
            raise ValueError(
                f"field {name!r} of {type_} must have a dtype that DGL can save, got {values.dtype}"
            )
        is_bool = values.dtype == torch.bool
        may_be_bool = is_bool or values.dtype == torch.uint8
        if may_be_bool and is_bool != name.endswith("mask"):
            raise ValueError(
                f"field {name!r} of {type_} must be named ..._mask if and only if it is bool, as "
                f"DGL saves bool as uint8, got {values.dtype}"
            )
    with new_file(path) as file:
        save_whole_graph(Path(file.name), to_dgl(graph))


Sets = dict[EdgeType, ExcludedEdges]


def excluded_sets(graph: Any, core: Graph, exclude: Any) -> Sets:
    """Excluded edges as positions in ``core``, the sampled graph, by canonical edge type.

    ``exclude`` is ids of the DGL graph's edges, a mapping from edge type to ids, or None. As in
    DGL, ids outside the graph exclude nothing; so -1 may be given for an edge without a reverse.

    Raises:
        DGLError: There are several edge types but ``exclude`` is no mapping, or a type is unknown.
        TypeError: Ids are not integers.
        ValueError: Ids are not 1-D.
    """
    sets = {}
    for etype, ids in _by_type(graph, exclude).items():
        canonical = graph.to_canonical_etype(etype)
        csc = core.csc_of(canonical)
        ids = as_ids("ids of excluded edges", ids)
        sets[canonical] = ExcludedEdges(csc.positions_of(ids[(ids >= 0) & (ids < csc.num_edges)]))
    return sets


class FixedExclusion:
    """Memoizes :func:`excluded_sets` until the tensors are written or replaced; thread-safe."""

    def __init__(self) -> None:
        self._known: tuple[dict[Any, FieldVersion], Sets] | None = None

    def sets(self, graph: Any, core: Graph, exclude: Any) -> Sets:
        """The sets of :func:`excluded_sets`; ids are tensors."""
        versions = {etype: FieldVersion.of(ids) for etype, ids in _by_type(graph, exclude).items()}
        # No lock is needed: threads that come at once make equal sets, and the last one's stay.
        known = self._known
        if known is None or known[0] != versions:
            known = self._known = versions, excluded_sets(graph, core, exclude)
        return known[1]


def _by_type(graph: Any, exclude: Any) -> Mapping[Any, Any]:
    if exclude is None:
        return {}
    if isinstance(exclude, Mapping):
        return exclude
    if len(graph.canonical_etypes) != 1:
        raise dgl.DGLError(
            "excluded edges must be a mapping from edge type for a graph of "
            f"{graph.canonical_etypes}, got ids alone"
        )
    return {graph.canonical_etypes[0]: exclude}
