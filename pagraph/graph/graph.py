"""Graph: in-edges in CSC form, edge ids and fields, for one or several edge types."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from .._late import call_late
from ..system.checks import StrPath, as_integer
from ..system.units import shortened
from .conversion import dgl_csc, library_of, networkx_edges, number_attributes, way_of
from .csc import CSC, all_scattered, id_dtype
from .fields import Fields, rows_text, unknown_name

if TYPE_CHECKING:
    from ..system.tables import Tabled
    from .conversion import (
        DGLGraph,
        Ids,
        Keys,
        NetworkxGraph,
        OGBDataset,
        PyGData,
        PyGDataset,
        RelBenchDatabase,
        SparseMatrix,
        TablesByName,
        Values,
    )
    from .fields import FieldValue

    Named = Mapping[str, FieldValue | Values]

EdgeType = tuple[str, str, str]
"""(source vertex type, relation, destination vertex type), as in DGL and PyG."""

NODE_TYPE = "_N"
EDGE_TYPE: EdgeType = ("_N", "_E", "_N")

__all__ = ["CSC", "EDGE_TYPE", "NODE_TYPE", "EdgeType", "Graph", "id_dtype"]

V = TypeVar("V")
# Graphs of hundreds of types exist; a repr is for a line of a log.
_LONGEST_REPR = 1000


class GraphTypes(NamedTuple):
    """A graph's types.

    Attributes:
        nodes: The vertex types.
        edges: The edge types.
        sizes: Number of vertices of each type.
    """

    nodes: tuple[str, ...]
    edges: tuple[EdgeType, ...]
    sizes: tuple[int, ...]


class Graph:
    """A directed graph stored by in-edges, with named fields on vertices and edges.

    Args:
        csc: The in-edges, or one ``CSC`` for every edge type. The mapping may be empty only if
            ``num_nodes`` names vertex types.
        num_nodes: Number of vertices, or a mapping from vertex type. Default: taken from ``csc``.
        ndata: Field name to a tensor with one row per vertex, or to ``IndexedRows``; for several
            vertex types, such a mapping per type.
        edata: The same for edges; rows are in the order of the edge ids.

    Raises:
        ValueError: The number of rows of a CSC or a field differs from ``num_nodes``.

    Example:
        >>> graph = Graph.from_coo([0, 1, 1], [1, 2, 2])
        >>> graph
        Graph(num_nodes=3, num_edges=3, ids=int32)
        >>> graph.csc.indptr.tolist(), graph.csc.indices.tolist()
        ([0, 0, 1, 3], [0, 1, 1])
    """

    def __init__(
        self,
        csc: CSC | Mapping[EdgeType, CSC],
        num_nodes: int | Mapping[str, int] | None = None,
        *,
        ndata: Named | Mapping[str, Named] | None = None,
        edata: Named | Mapping[EdgeType, Named] | None = None,
    ) -> None:
        if not isinstance(csc, CSC | Mapping):
            raise TypeError(
                "csc must be a CSC, or a mapping from edge type (see Graph.from_coo), got "
                f"{way_of(csc)}"
            )
        for name, fields in (("ndata", ndata), ("edata", edata)):
            if fields is not None and not isinstance(fields, Mapping):
                raise TypeError(f"{name} must be a mapping from name to rows, got {fields!r}"[:300])
        self._csc: dict[EdgeType, CSC] = {EDGE_TYPE: csc} if isinstance(csc, CSC) else dict(csc)
        for edge_type, arrays in self._csc.items():
            is_type = isinstance(edge_type, tuple) and len(edge_type) == 3
            if not is_type or not isinstance(arrays, CSC):
                got = f"{edge_type!r}: {type(arrays).__name__}"
                raise TypeError(
                    f"csc must map edge types, such as ('a', 'to', 'b'), to CSCs, got {got}"
                )
        if not self._csc and not (isinstance(num_nodes, Mapping) and num_nodes):
            raise ValueError("csc must hold at least 1 edge type, got 0")
        self.tables: Any = None  # the schema of the tables that it was made of
        self._out_csc: dict[EdgeType, CSC] = {}
        # Guards _out_csc. Held while out-edges are built, so that no two threads build the same.
        # Building may take the lock of `mapped`, whose holder takes no other.
        self._lock = threading.Lock()
        self._num_nodes = self._node_counts(num_nodes)
        self._check_counts()
        self._ndata = {t: Fields("vertex", count) for t, count in self._num_nodes.items()}
        self._edata = {t: Fields("edge", csc.num_edges) for t, csc in self._csc.items()}
        # Fields come by type if there are several types, which annotations cannot express.
        nodes: Any = {self.node_types[0]: ndata} if len(self._num_nodes) == 1 else ndata or {}
        edges: Any = {self.edge_types[0]: edata} if len(self._csc) == 1 else edata or {}
        self._set_fields(nodes, edges)

    # -- construction ------------------------------------------------------------------------------

    @classmethod
    def from_coo(
        cls,
        src: Ids,
        dst: Ids,
        num_nodes: int | None = None,
        *,
        ndata: Named | None = None,
        edata: Named | None = None,
    ) -> Graph:
        """Build from the two ends of every edge; edge ``i`` keeps the id ``i``.

        Args:
            src: Source ids, shape ``(num_edges,)``, any integer array or list.
            dst: Destination ids, the same shape.
            num_nodes: Number of vertices. Default: the largest id plus 1.
            ndata: Vertex fields.
            edata: Edge fields, in the order of ``src``.

        Raises:
            TypeError: An array does not hold integers.
            ValueError: The lengths differ, or an id is negative or not below ``num_nodes``.
        """
        return cls(CSC.from_coo(src, dst, num_nodes), ndata=ndata, edata=edata)

    @classmethod
    def from_scipy(
        cls,
        matrix: SparseMatrix,
        *,
        ndata: Named | None = None,
        weight: str | None = None,
    ) -> Graph:
        """Build from a square scipy sparse matrix, ``matrix[src, dst] != 0`` meaning an edge.

        Every stored entry is one edge, explicit zeros and duplicates included; ids follow
        ``matrix.tocoo()``.

        Args:
            matrix: The matrix.
            ndata: Vertex fields.
            weight: Name of an edge field for the entries' values. Default: they are left out.

        Raises:
            TypeError: ``matrix`` is not a scipy sparse matrix.
            ValueError: ``matrix`` is not square.
        """
        if not hasattr(matrix, "tocoo"):
            raise TypeError(f"matrix must be a scipy sparse matrix, got {way_of(matrix)}")
        coo = matrix.tocoo(copy=False)
        if coo.shape[0] != coo.shape[1]:
            raise ValueError(f"matrix must be square, got shape {tuple(coo.shape)}")
        edata = None if weight is None else {weight: coo.data}
        return cls.from_coo(coo.row, coo.col, int(coo.shape[0]), ndata=ndata, edata=edata)

    @classmethod
    def from_networkx(cls, graph: NetworkxGraph, *, ndata: Named | None = None) -> Graph:
        """Build from a networkx graph; vertex ``i`` is the ``i``-th of ``graph.nodes``.

        Attributes that are numbers on all vertices, or on all edges, become fields of bools, int64
        or float64 (NumPy's numbers keep their dtype). The others are left out, and one warning in
        the log names them. An undirected edge becomes two with the same fields, one in each
        direction (a self-loop stays one).

        Args:
            graph: The graph, of any of networkx's classes.
            ndata: Further vertex fields, which replace attributes of the same names.

        Raises:
            TypeError: ``graph`` is something else.
        """
        if library_of(graph) != "networkx":
            raise TypeError(f"graph must be a networkx graph, got {way_of(graph)}")
        src, dst = networkx_edges(graph)
        vertices, edges = number_attributes(graph, "Graph.from_networkx")
        if not graph.is_directed():
            turned = np.flatnonzero(src != dst)
            back = dst[turned], src[turned]
            src = np.concatenate([src, back[0]])
            dst = np.concatenate([dst, back[1]])
            for name, values in edges.items():
                edges[name] = torch.cat([values, values[torch.from_numpy(turned)]])
        ndata = {**vertices, **(ndata or {})}
        return cls.from_coo(src, dst, len(graph.nodes), ndata=ndata, edata=edges)

    @classmethod
    def from_dgl(cls, graph: DGLGraph) -> Graph:
        """Build from a ``dgl.DGLGraph`` on the CPU.

        Fields are shared. The structure is copied, with int32 ids if they fit.

        Raises:
            TypeError: ``graph`` is something else.
            ValueError: The graph is not on the CPU, or is a block.
        """
        if library_of(graph) != "dgl" or not hasattr(graph, "canonical_etypes"):
            raise TypeError(f"graph must be a dgl.DGLGraph, got {way_of(graph)}")
        if graph.device.type != "cpu":
            raise ValueError(f"graph must be on the CPU, got one on {graph.device}")
        if graph.is_block:
            raise ValueError("graph must be a whole graph, got a block")
        csc = {etype: cls.csc_from_dgl(graph, etype, "csc") for etype in graph.canonical_etypes}
        converted = cls(csc, {ntype: int(graph.num_nodes(ntype)) for ntype in graph.ntypes})
        converted._set_fields(
            {t: graph.nodes[t].data for t in graph.ntypes},
            {t: graph.edges[t].data for t in graph.canonical_etypes},
        )
        return converted

    @classmethod
    def from_pyg(cls, data: PyGData | PyGDataset) -> Graph:
        """Build from PyG's ``Data`` or ``HeteroData``, or a dataset with one graph; needs PyG.

        Fields are shared; ids become int32 if they fit. Dense tensors and arrays of vertices and
        edges become fields. A warning names what is left out, except single numbers and words. An
        edge's id is its position in ``edge_index``. Each ``edge_index`` is converted once: all its
        graphs and loaders share the result. A ``Data`` with dicts by type (``edge_index_dict``,
        ``num_nodes_dict``, ``x_dict``) becomes a graph of several types.

        Raises:
            MissingDependencyError: PyG is not installed.
            TypeError: ``data`` is something else.
            ValueError: A dataset does not hold exactly 1 graph; an edge leads out of the graph; a
                vertex type does not say how many vertices it has, or there is no type; there are
                neither edges nor vertices; ``x`` has another number of rows; dicts by type name
                other types than the edges'.
        """
        # Checked here, before PyG is imported: who has a DGL graph may not have PyG.
        if library_of(data) in ("dgl", "networkx", "scipy") or isinstance(data, str | PathLike):
            raise TypeError(f"data must be a Data or HeteroData, got {way_of(data)}")
        graph: Graph = call_late("whole_graph", data)
        return graph

    @classmethod
    def from_ogb(cls, dataset: OGBDataset) -> Graph:
        """Build from a dataset that the ``ogb`` package has loaded, with labels and split masks.

        Vertex fields are ``feat``, ``label`` (1-D if it has one column), ``year`` and the like
        without OGB's prefix, and ``train_mask``, ``val_mask`` and ``test_mask``. The edge field is
        ``feat``. OGB's plain, PyG and DGL datasets give the same graph. The link splits of
        ``ogb.linkproppred`` are left out, with a warning. An edge's id is its position in OGB's
        ``edge_index``.

        Args:
            dataset: A ``NodePropPredDataset``, ``PygNodePropPredDataset`` or
                ``DglNodePropPredDataset``, or one of these for links.

        Raises:
            TypeError: ``dataset`` is something else.
            FormatError: Ids or rows do not fit the graph, or sets have vertices in common.
        """
        graph: Graph = call_late("ogb_graph", dataset)
        return graph

    @staticmethod
    def csc_from_dgl(graph: DGLGraph, etype: EdgeType, layout: str) -> CSC:
        """One edge type of a DGL graph: layout "csc" gives its in-edges, "csr" its out-edges as a
        CSC.

        It is a copy, because DGL returns its own memory, whose rows
        ``global_uniform_negative_sampling`` sorts in place.

        Raises:
            ValueError: An id is outside the graph, for example after ``dgl.load_graphs`` read a
                damaged file.
        """
        return dgl_csc(graph, etype, layout)

    @classmethod
    def open(cls, folder: StrPath, *, verify: bool = False) -> Graph:
        """Open a graph folder, native (memory-mapped) or PaGraph's. See
        ``pagraph.datasets.open_graph``."""
        graph: Graph = call_late("open_graph", folder, verify=verify)
        return graph

    @classmethod
    def from_tables(
        cls,
        tables: TablesByName | RelBenchDatabase,
        *,
        keys: Keys | None = None,
        times: Mapping[str, str | None] | None = None,
        orphans: str = "error",
        missing: float | Mapping[str, Mapping[str, float]] | None = None,
        fields: Mapping[str, Sequence[str]] | None = None,
        words: int | None = None,
        task: str | None = None,
        train: float | None = None,
        val: float | None = None,
        test: float | None = None,
    ) -> Graph:
        """Build from tables with keys: rows become vertices, foreign keys become edges.

        The rows of each table are the vertices of a type, in their order. A foreign key, such as
        ``orders.user_id``, is an edge type ``("orders", "user_id", "users")`` with its reverse
        ``("users", "rev_user_id", "orders")``; the edges have no fields. A table with only two
        foreign keys becomes an edge type with the table's name. The time of a row is the field
        ``time``. The other columns become fields with the columns' names, by the documentation's
        rules for typed columns. Keys and times that are not given are inferred: the log has a line
        for each, and :meth:`schema` shows them all.

        Args:
            tables: Table name to a DataFrame of pandas or polars, an Arrow table, a relation of
                DuckDB, or anything with ``__arrow_c_stream__``; or a ``Database`` of RelBench,
                which knows its keys and times.
            keys: Table name to the primary key's column, or columns, and ``"table.column"`` to the
                table that a foreign key refers to; None for no key. Columns of a composite key are
                separated by commas.
            times: Table name to the column with the time of each row; None for no time.
            orphans: "error", or "drop" to make no edge for foreign keys that match no row.
            missing: Replaces missing integers, dates and booleans: a number for all, or one by
                table and column, where it also replaces missing floats. Else missing floats are
                NaN. Missing words are always -1.
            fields: Table name to the columns that become fields. Default: all that can.
            words: The most words of a column of texts: the most frequent ones are kept, and all
                others are one class. Default: a column of too many words is left out.
            task: "table:label" or "table:label:time". The table's rows are the seeds of training.
                They get the field ``label``, and masks in the order of time. Types without a column
                ``feat`` get one from their numbers and words.
            train: The task's share of rows for training. Default: 0.6, with 0.2 each for the other
                two, if none of the three is given.
            val: The share for validation.
            test: The share for testing.

        Raises:
            FormatError: A key is missing, duplicated or refers to no row; or a column has missing
                values without a replacement, or integers of more than 64 bits.
            TypeError: A table is something else.
            ValueError: The tables are ambiguous; the error names both readings, and the argument
                that decides.
        """
        graph: Graph = call_late(
            "graph_from_tables",
            tables,
            keys=keys,
            times=times,
            orphans=orphans,
            missing=missing,
            fields=fields,
            words=words,
            task=task,
            parts={"train": train, "val": val, "test": test},
        )
        return graph

    def schema(self) -> Tabled:
        """The vertex types, edge types and fields, with dtypes, units and words.

        For a graph from :meth:`from_tables` also keys, times, and columns that were left out. A
        notebook shows it as tables, ``print`` as text.
        """
        shown: Tabled = call_late("schema_of", self)
        return shown

    # -- structure ---------------------------------------------------------------------------------

    @property
    def node_types(self) -> list[str]:
        """Names of the vertex types."""
        return list(self._num_nodes)

    @property
    def edge_types(self) -> list[EdgeType]:
        """Names of the edge types."""
        return list(self._csc)

    @property
    def is_homogeneous(self) -> bool:
        """Whether there is one vertex type and one edge type."""
        return len(self._num_nodes) == 1 and len(self._csc) == 1

    @cached_property
    def types(self) -> GraphTypes:
        """The vertex types, the edge types, and the numbers of vertices."""
        # Cached, since every batch asks for them.
        sizes = tuple(self._num_nodes.values())
        return GraphTypes(tuple(self._num_nodes), tuple(self._csc), sizes)

    @property
    def csc(self) -> CSC:
        """The in-edges of a graph with one edge type."""
        return self.csc_of(self._only("edge", self.edge_types))

    def csc_of(self, edge_type: EdgeType) -> CSC:
        """The in-edges of ``edge_type``."""
        if edge_type not in self._csc:
            raise unknown_name(edge_type, self._csc, "edge_type")
        return self._csc[edge_type]

    @property
    def num_nodes(self) -> int:
        """Number of vertices, over all types."""
        return sum(self._num_nodes.values())

    @property
    def num_edges(self) -> int:
        """Number of edges, over all types."""
        return sum(csc.num_edges for csc in self._csc.values())

    @property
    def num_nodes_by_type(self) -> dict[str, int]:
        """Vertex type to its number of vertices."""
        return dict(self._num_nodes)

    def num_nodes_of(self, node_type: str) -> int:
        """Number of vertices of ``node_type``."""
        return self._of_type(self._num_nodes, node_type)

    @property
    def only_node_type(self) -> str:
        """The name of a graph's one vertex type; ValueError if there are several."""
        return str(self._only("vertex", self.node_types))

    def adjacency(self, edge_dir: str, edge_type: EdgeType | None = None) -> CSC:
        """The in-edges, or for "out" the out-edges, which are built at the first call and kept.

        Raises:
            ValueError: "out" for an edge type between different vertex types, or no ``edge_type``
                although there are several.
        """
        etype = edge_type if edge_type is not None else self._only("edge", self.edge_types)
        if edge_dir == "in":
            return self.csc_of(etype)
        if etype[0] != etype[2]:
            raise ValueError(
                "edge_dir must be 'in' for edges between different vertex types, got 'out' and "
                f"{etype}"
            )
        return self.out_csc_of(etype)

    def scattered(self, edge_dir: str) -> list[CSC]:
        """:meth:`adjacency` of each edge type, for random access."""
        if edge_dir == "in":
            return all_scattered(self._csc.values())
        return all_scattered([self.adjacency(edge_dir, etype) for etype in self._csc])

    def out_csc_of(self, edge_type: EdgeType) -> CSC:
        """The out-edges as a CSC of the reversed graph; built at the first call and kept."""
        csc = self.csc_of(edge_type)
        with self._lock:
            if edge_type not in self._out_csc:
                self._out_csc[edge_type] = csc.transpose()
            return self._out_csc[edge_type]

    def set_out_csc(self, edge_type: EdgeType, csc: CSC) -> None:
        """Let :meth:`out_csc_of` return these, the same edges in another order.

        Copies of the graph do not keep it.

        Raises:
            ValueError: The number of vertices or edges differs.
        """
        own = self.csc_of(edge_type)
        got = (csc.num_src, csc.num_dst, csc.num_edges)
        want = (own.num_dst, own.num_src, own.num_edges)
        if got != want:
            raise ValueError(
                f"csc must have {want} sources, destinations and edges for {edge_type}, got {got}"
            )
        with self._lock:
            self._out_csc[edge_type] = csc

    def in_degrees(self) -> Tensor:
        """In-degree of every vertex of a homogeneous graph, shape ``(num_nodes,)``, int64."""
        return torch.diff(self.csc.indptr).long()

    def out_degrees(self) -> Tensor:
        """Out-degree of every vertex of a homogeneous graph, shape ``(num_nodes,)``, int64."""
        return self.csc.source_counts

    def reverse(self) -> Graph:
        """The graph with every edge reversed; edge ids and fields are kept."""
        transposed = {etype[::-1]: csc.transpose() for etype, csc in self._csc.items()}
        reversed_ = Graph(transposed, self._num_nodes)
        reversed_._set_fields(
            self._ndata, {etype[::-1]: fields for etype, fields in self._edata.items()}
        )
        return reversed_

    # -- fields ------------------------------------------------------------------------------------

    @property
    def ndata(self) -> Fields:
        """Vertex fields of a graph with one vertex type."""
        return self.node_fields(self._only("vertex", self.node_types))

    @property
    def edata(self) -> Fields:
        """Edge fields of a graph with one edge type."""
        return self.edge_fields(self._only("edge", self.edge_types))

    def node_fields(self, node_type: str) -> Fields:
        """Fields of one vertex type."""
        return self._of_type(self._ndata, node_type)

    def edge_fields(self, edge_type: EdgeType) -> Fields:
        """Fields of one edge type."""
        return self._of_type(self._edata, edge_type)

    def fields_named(self, name: str) -> list[FieldValue | None]:
        """The field ``name`` of each vertex type, then of each edge type; None where missing.

        It is one call, since every batch of temporal sampling needs it.
        """
        of_types = [*self._ndata.values(), *self._edata.values()]
        return [fields.get(name) for fields in of_types]

    def _of_type(self, by_type: Mapping[Any, V], key: Any) -> V:
        try:
            return by_type[key]
        except (KeyError, TypeError):
            what = "edge_type" if by_type is self._edata else "node_type"
            raise unknown_name(key, by_type, what) from None

    def set_field(
        self,
        name: str,
        value: FieldValue | Values,
        *,
        node_type: str | None = None,
        edge_type: EdgeType | None = None,
    ) -> None:
        """Attach a field: one row per vertex, or per edge if ``edge_type`` is given.

        Columns of DataFrames, Arrow arrays and relations of DuckDB may also hold times and words,
        which become integers by the documentation's rules for typed columns. Each column of a table
        becomes a number in the row.

        Raises:
            ValueError: The number of rows is not the number of vertices or edges, or integers,
                times or booleans are missing.
            TypeError: The rows cannot be converted to numbers.
            KeyError: The graph has no such type.
        """
        if edge_type is not None:
            self.edge_fields(edge_type)[name] = value
            return
        if node_type is None:
            node_type = self._only("vertex", self.node_types)
        self.node_fields(node_type)[name] = value

    # -- helpers -----------------------------------------------------------------------------------

    def _set_fields(
        self,
        ndata: Mapping[str, Mapping[str, Any] | None],
        edata: Mapping[EdgeType, Mapping[str, Any] | None],
    ) -> None:
        """Attach the fields of each vertex and edge type."""
        for ntype, of_nodes in ndata.items():
            if of_nodes:
                self.node_fields(ntype).update(of_nodes)
        for etype, of_edges in edata.items():
            if of_edges:
                self.edge_fields(etype).update(of_edges)

    def _node_counts(self, num_nodes: int | Mapping[str, int] | None) -> dict[str, int]:
        if isinstance(num_nodes, Mapping):
            return {t: as_integer(f"num_nodes[{t!r}]", n) for t, n in num_nodes.items()}
        if num_nodes is not None:
            only = self._only("vertex", sorted({t for e in self._csc for t in (e[0], e[2])}))
            return {only: as_integer("num_nodes", num_nodes)}
        counts: dict[str, int] = {}
        for (src_type, _, dst_type), csc in self._csc.items():
            counts.setdefault(src_type, csc.num_src)
            counts.setdefault(dst_type, csc.num_dst)
        return counts

    def _check_counts(self) -> None:
        for edge_type, csc in self._csc.items():
            for node_type, what in ((edge_type[0], "num_src"), (edge_type[2], "num_dst")):
                own = self._num_nodes.get(node_type)
                got = getattr(csc, what)
                if own != got:
                    raise ValueError(
                        f"num_nodes must agree with every CSC: {node_type!r} has {own}, a CSC has "
                        f"{what}={got}"
                    )

    @staticmethod
    def _only(what: str, names: list[Any]) -> Any:
        if len(names) != 1:
            raise ValueError(
                f"the graph must have exactly 1 {what} type for this call, got {names}"
            )
        return names[0]

    def __getstate__(self) -> dict[str, Any]:
        """The state to pickle, without the lock and what can be recomputed."""
        return {
            name: value for name, value in vars(self).items() if name not in ("_lock", "_out_csc")
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _out_csc={}, _lock=threading.Lock())

    def __repr__(self) -> str:
        dtype = next(
            (str(csc.indices.dtype).removeprefix("torch.") for csc in self._csc.values()), "int32"
        )
        nodes = f"{self.num_nodes}"
        edges = f"{self.num_edges}"
        if not self.is_homogeneous:
            nodes = shortened(self._num_nodes, _LONGEST_REPR)
            by_type = {"/".join(t): c.num_edges for t, c in self._csc.items()}
            edges = shortened(by_type, _LONGEST_REPR)
        text = f"num_nodes={nodes}, num_edges={edges}, ids={dtype}"
        for name, of_types in (("ndata", self._ndata), ("edata", self._edata)):
            text += self._fields_text(name, of_types)
        return f"Graph({text})"

    @staticmethod
    def _fields_text(name: str, of_types: Mapping[Any, Fields]) -> str:
        """The fields in a repr, by type if there are several; "" if there are no fields."""
        if len(of_types) == 1:
            (fields,) = of_types.values()
            return f", {name}={{{rows_text(fields)}}}" if fields else ""
        parts = [
            f"{'/'.join(t) if isinstance(t, tuple) else t}: {{{rows_text(fields)}}}"
            for t, fields in of_types.items()
            if fields
        ]
        return f", {name}={{{shortened(', '.join(parts), _LONGEST_REPR)}}}" if parts else ""

    def __iter__(self) -> Iterator[EdgeType]:
        raise TypeError("a Graph is not iterable; use graph.edge_types")


def without_fields(graph: Graph) -> Graph:
    """A new graph over the same edges, without fields."""
    csc = {edge_type: graph.csc_of(edge_type) for edge_type in graph.edge_types}
    return Graph(csc, graph.num_nodes_by_type)
