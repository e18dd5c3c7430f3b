"""Conversion between PyG's data and core graphs, in memory and in files."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from torch.utils.weak import WeakTensorKeyDictionary

from ..errors import FormatError
from ..graph.conversion import way_of
from ..graph.csc import CSC, check_range, id_dtype, writeable
from ..graph.fields import FieldNote, FieldVersion, is_single, materialized
from ..graph.graph import EDGE_TYPE, NODE_TYPE, EdgeType, Graph
from ..graph.minibatch import plain_tensor
from ..system.atomic import new_file
from ..system.budget import check_fits
from ..system.checks import StrPath, as_flag
from ..system.threads import fork_lock
from ..system.torch_file import load_saved
from .columns import FrameColumns, frames_of, import_frame, parts_of
from .frames import is_frame
from .package import import_pyg
from .stores import (
    check_one_type,
    has_edges,
    has_type_dicts,
    held_words,
    is_typed,
    store_graph,
    typed_data,
)
from .times import remember_unit

import_pyg()
from torch_geometric.data import Data, Dataset, EdgeAttr, HeteroData, TensorAttr  # noqa: E402
from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr  # noqa: E402
from torch_geometric.data.graph_store import EdgeLayout  # noqa: E402
from torch_geometric.data.storage import (  # noqa: E402
    BaseStorage,
    EdgeStorage,
    GlobalStorage,
    NodeStorage,
)

# torch-sparse's; without torch-sparse a class of PyG's that has no objects.
from torch_geometric.typing import SparseTensor  # noqa: E402

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from .typing import GraphData

    D = TypeVar("D", GraphData, Data, HeteroData, default=GraphData)

_log = logging.getLogger(__name__)


def core_graph(data: Any) -> Graph:
    """The structure of a ``Data`` or ``HeteroData``, as a graph without fields.

    Edge ids are positions in ``edge_index``. The arrays are made once for each ``edge_index`` and
    shared by all its graphs. As in PyG, a ``SparseTensor`` ``adj``, or else ``adj_t``, takes
    precedence; edge ids are then positions in it. A pair of a ``FeatureStore`` and a ``GraphStore``
    is converted by ``store_graph``.

    Raises:
        TypeError: ``data`` is something else, or ``adj_t`` is a torch tensor.
        ValueError: An edge has an end outside the graph, a vertex type has no number of vertices,
            or a ``Data`` has neither edges nor vertices, or holds several types in dicts.
    """
    if isinstance(data, Data):
        check_one_type(data)
        count = int(data.num_nodes or 0)
        return Graph({EDGE_TYPE: csc_of(data, count, count)}, {NODE_TYPE: count})
    if isinstance(data, tuple):
        return store_graph(data)
    if not isinstance(data, HeteroData):
        raise TypeError(f"data must be a Data or HeteroData, got {type(data).__name__}")
    node_types, edge_types = data.metadata()
    counts: dict[str, int] = {}
    for ntype in (*node_types, *(end for etype in edge_types for end in etype[::2])):
        if ntype in counts:
            continue
        # Looking it up would add it to the data.
        stated = data[ntype].num_nodes if ntype in node_types else None
        if stated is None:
            raise ValueError(
                f"data[{ntype!r}] must have a number of vertices: set num_nodes or a feature"
            )
        counts[ntype] = int(stated)
    csc: dict[EdgeType, CSC] = {
        etype: csc_of(data[etype], counts[etype[0]], counts[etype[2]], f"data[{etype!r}].")
        for etype in edge_types
    }
    return Graph(csc, counts)


def has_types(data: Any) -> bool:
    """Whether samples are by vertex and edge type."""
    return is_typed(data) if isinstance(data, tuple) else isinstance(data, HeteroData)


def local_dtype(data: Any) -> torch.dtype:
    """The dtype of vertex ids in batches: int32 if every ``edge_index`` is int32, else int64."""
    if not isinstance(data, Data | HeteroData):
        return torch.int64
    dtypes = set()
    for store in data.edge_stores:
        if _sparse(store) is not None:
            dtypes.add(torch.int64)
        elif store.get("edge_index", None) is not None:
            dtypes.add(store["edge_index"].dtype)
    return torch.int32 if dtypes == {torch.int32} else torch.int64


class _Conversions:
    """Memo of the CSC of each live tensor, by its version."""

    def __init__(self) -> None:
        # Held while arrays are made, so that concurrent loaders make them once. A fork lock:
        # torch forks workers while other threads may convert.
        self._lock = fork_lock()
        self._known: Any = WeakTensorKeyDictionary()

    def get(self, tensor: Tensor, counts: tuple[int, int], make: Callable[[Tensor], CSC]) -> CSC:
        """The CSC for these numbers of vertices; other threads wait while it is made."""
        plain = plain_tensor(tensor)
        with self._lock:
            version, made = self._known.get(tensor, (None, {}))
            # Writes through an EdgeIndex raise only its own version.
            now = FieldVersion.of(plain), None if tensor.is_inference() else tensor._version
            if version != now:
                made = {}
                self._known[tensor] = now, made
            if counts not in made:
                made[counts] = make(plain)
            csc: CSC = made[counts]
            return csc


_conversions = _Conversions()


def csc_of(store: Any, num_src: int, num_dst: int, where: str = "") -> CSC:
    """The in-edges of a ``Data`` or an edge type's store.

    Raises TypeError or ValueError, with ``where`` in the message, if they are invalid.
    """
    counts = num_src, num_dst
    sparse = _sparse(store, where)
    if sparse is not None:
        indptr, indices = sparse
        name = f"{where}adj_t"
        return _conversions.get(
            indices, counts, lambda plain: _compressed(indptr, plain, counts, name)
        )
    edge_index = store.get("edge_index", None)
    if edge_index is None:
        return CSC(
            torch.zeros(num_dst + 1, dtype=torch.int32, device="cpu"),
            torch.empty(0, dtype=torch.int32, device="cpu"),
            num_src,
        )
    name = f"{where}edge_index"
    if not isinstance(edge_index, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(edge_index).__name__}")
    if isinstance(edge_index, WaitingEdges):
        known = edge_index.csc
        if known is not None and (known.num_src, known.num_dst) == counts:
            return known
        edge_index = edge_index.plain
    return _conversions.get(edge_index, counts, lambda plain: _from_coo(plain, counts, name))


def _from_coo(edge_index: Tensor, counts: tuple[int, int], name: str) -> CSC:
    if edge_index.dim() != 2 or len(edge_index) != 2:
        raise ValueError(f"{name} must have shape [2, num_edges], got {list(edge_index.shape)}")
    src, dst = edge_index.detach().cpu()
    return CSC.from_coo(src, dst, counts, names=(f"{name}[0]", f"{name}[1]"))


def _sparse(store: Any, where: str = "") -> tuple[Tensor, Tensor] | None:
    """``indptr`` and ``indices`` of a store's ``SparseTensor``, or None. ``where`` names it."""
    adj = store.get("adj", None)
    adj_t = store.get("adj_t", None)
    if isinstance(adj, SparseTensor):
        indptr, indices, _ = adj.csc()
    elif isinstance(adj_t, SparseTensor):
        indptr, indices, _ = adj_t.csr()
    elif adj_t is not None:
        got = adj_t.layout if isinstance(adj_t, Tensor) else type(adj_t).__name__
        raise TypeError(
            f"{where}adj_t must be a SparseTensor of torch-sparse, got {got}: keep edge_index, and "
            "pass transform=T.ToSparseTensor() to the loader, so that every batch gets its adj_t"
        )
    else:
        return None
    return indptr, indices


def _compressed(indptr: Tensor, indices: Tensor, counts: tuple[int, int], name: str) -> CSC:
    """The arrays of a ``SparseTensor`` with narrow ids."""
    num_src, num_dst = counts
    if len(indptr) != num_dst + 1:
        raise ValueError(
            f"{name} must have a row for each destination ({num_dst}), got {len(indptr) - 1}"
        )
    check_range(f"{name}'s columns", indices, num_src)
    dtype = id_dtype(max(counts), len(indices))
    return CSC(indptr.detach().cpu().to(dtype), indices.detach().cpu().to(dtype), num_src)


_NO_FIELDS = ("edge_index", "adj", "adj_t", "num_nodes")

_NAMES = {"feat": "x", "label": "y"}
"""Vertex fields of DGL and our graph folders, to their names in PyG."""


def to_pyg(graph: Graph, *, frames: bool = False) -> D:  # type: ignore[type-var]  # as asked
    """A ``Data``, or for several types a ``HeteroData``, with the same vertices, edges and fields.

    Edge ``i`` of ``edge_index`` (int64) has the edge id ``i``. For edges on disk, ``edge_index`` is
    made when it is first read, which our loaders never do. Fields share memory, except
    ``IndexedRows`` and ``NarrowRows``, which are gathered. Vertex fields ``feat`` and ``label``
    become ``x`` and ``y``, unless these exist. In a ``Data``, vertices and edges share names. So an
    edge field ``w`` becomes ``edge_w``, with a warning, if ``w`` is a vertex field, or if there are
    as many edges as vertices, so that PyG would treat it as one.

    Type checkers assume a ``Data``. Otherwise annotate: ``data: HeteroData = to_pyg(graph)``.

    Args:
        graph: The graph.
        frames: Give each vertex type a ``TensorFrame`` of PyTorch Frame, ``tf``, instead of its
            fields, and the statistics of the columns, ``col_stats``. Numbers become numerical
            columns, words and booleans categorical ones, times with a unit timestamps, and rows of
            several numbers embeddings. ``feat``, ``label``, ``original_id`` and masks stay fields;
            ``time`` is both. A type without columns gets a constant one.

    Raises:
        TypeError: ``graph`` is not a ``Graph``.
        ValueError: PyG uses the name of a field for something else.
        MissingDependencyError: ``frames`` is set, and PyTorch Frame is not installed.
    """
    if not isinstance(graph, Graph):
        raise TypeError(f"graph must be a pagraph.Graph, got {way_of(graph)}")
    if as_flag("frames", frames):
        import_frame()
    data: Any = Data() if graph.is_homogeneous else HeteroData()
    filled: D = _filled(data, graph, frames=frames)
    return filled


def _filled(data: Data | HeteroData, graph: Graph, *, frames: bool = False) -> Data | HeteroData:
    """Put the vertices, edges and fields of ``graph`` into empty data."""
    for ntype in graph.node_types:
        (data if isinstance(data, Data) else data[ntype]).num_nodes = graph.num_nodes_of(ntype)
    for etype in graph.edge_types:
        store = data if isinstance(data, Data) else data[etype]
        csc = graph.csc_of(etype)
        store.edge_index = csc.ends_by_id() if csc.disk_pages is None else WaitingEdges.of(csc)
    for ntype in graph.node_types:
        store = data._store if isinstance(data, Data) else data[ntype]
        fields = graph.node_fields(ntype)
        moved: set[str] = set()
        stored = frames_of(fields)
        for attribute, (frame, stats) in stored.items():
            store[attribute] = frame
            store.col_stats = stats
        if stored:
            moved = {name for name, note in fields.notes.items() if note.frame}
        elif frames:
            columns = FrameColumns.of(fields, graph.num_nodes_of(ntype))
            store.tf, store.col_stats = columns.frame()
            moved = columns.moved
        for name, values in fields.items():
            if name in moved:
                continue
            theirs = _NAMES.get(name, name)
            if theirs in fields:  # a graph with both "feat" and "x" keeps both
                theirs = name
            _put(store, theirs, values, store.is_node_attr, f"vertex field {name!r}")
            _keep_unit(store[theirs], fields.notes.get(name))
    for etype in graph.edge_types:
        store = data._store if isinstance(data, Data) else data[etype]
        of_edges = graph.edge_fields(etype)
        for name, values in of_edges.items():
            # PyG tells a Data's attributes apart by length, and then by "edge" in the name.
            taken = isinstance(data, Data) and (name in store or data.num_nodes == data.num_edges)
            theirs = f"edge_{name}" if taken and "edge" not in name else name
            if theirs != name:
                warnings.warn(
                    f"the edge field {name!r} is named {theirs!r} in the Data, in which vertices "
                    "and edges share names",
                    stacklevel=3,
                )
            _put(store, theirs, values, store.is_edge_attr, f"edge field {name!r}")
            _keep_unit(store[theirs], of_edges.notes.get(name))
    return data


def _keep_unit(values: Tensor, note: FieldNote | None) -> None:
    if note is not None and note.unit:
        remember_unit(values, note.unit)


def save_data(graph: Graph, path: StrPath) -> None:
    """Save a graph with ``torch.save`` as a ``Data``, or a ``HeteroData`` if its types have names.

    Raises:
        ValueError: PyG uses a field's name for something else, or vertices and edges would share
            it; see :func:`to_pyg`.
    """
    has_names = (graph.node_types, graph.edge_types) != ([NODE_TYPE], [EDGE_TYPE])
    data = HeteroData() if has_names else Data()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        try:
            _filled(data, graph)
        except UserWarning as warning:
            raise ValueError(f"fields must keep their names in PyG's form: {warning}") from None
    with new_file(path) as file:
        torch.save(data, file)


def _put(store: Any, name: str, values: Any, is_theirs: Callable[[str], bool], of: str) -> None:
    """Add a field to a store; ValueError if PyG would not see it as one of vertices or edges."""
    sound = name not in store
    if sound:
        store[name] = materialized(values)
        sound = is_theirs(name)
        store.__dict__.pop("_cached_attr", None)  # PyG's memo of the answer
    if not sound:
        raise ValueError(
            f"the {of} must have another name: PyG tells attributes apart by name and shape, and "
            f"uses {name!r} for something else"
        )


def whole_graph(data: Any, where: str = "data") -> Graph:
    """See ``Graph.from_pyg``; a warning begins with ``where``."""
    if isinstance(data, Dataset):
        if len(data) != 1:
            raise ValueError(
                f"data must be a dataset of 1 graph, or one of its graphs, got {len(data)} graphs"
            )
        data = data[0]
    if not isinstance(data, Data | HeteroData):
        raise TypeError(f"data must be a Data or HeteroData, got {way_of(data)}")
    if has_type_dicts(data):
        data = typed_data(data)
    graph = core_graph(data)
    left = []
    for store in data.stores:
        for name, value in list(store.items()):
            if is_frame(value) and store.is_node_attr(name):
                ntype = graph.node_types[0] if isinstance(data, Data) else store._key
                left += _put_frame(graph, ntype, name, value, store.get("col_stats", None))
                continue
            values = _rows(data, store, name, value)
            if values is not None and isinstance(store, NodeStorage) and store.is_node_attr(name):
                graph.set_field(
                    name,
                    values,
                    node_type=graph.node_types[0] if isinstance(data, Data) else store._key,
                )
            elif values is not None and isinstance(store, EdgeStorage) and store.is_edge_attr(name):
                graph.set_field(
                    name,
                    values,
                    edge_type=graph.edge_types[0] if isinstance(data, Data) else store._key,
                )
            elif name == "col_stats" and any(map(is_frame, store.values())):
                continue  # kept with the frame's parts
            elif name not in _NO_FIELDS and not is_single(value):
                left.append(_checked_label(store, name, values))
    if left:
        _log.warning(
            "%s: left out: %s (no dense rows of vertices or edges)", where, ", ".join(left)
        )
    return graph


def _put_frame(graph: Graph, ntype: str, name: str, frame: Any, stats: Any) -> list[str]:
    """Put the dense parts of a frame into a graph's fields; returns the names of the others."""
    fields = graph.node_fields(ntype)
    parts, left = parts_of(frame, stats)
    for part, (rows, note) in parts.items():
        fields[f"{name}.{part}"] = rows.detach()
        fields.notes[f"{name}.{part}"] = note
    return [f"{name}.{part}" for part in left]


def _checked_label(store: Any, name: str, values: Tensor | None) -> str:
    """A warning's name for an attribute that is not a field.

    Raises ValueError for features with a wrong number of rows.
    """
    key = getattr(store, "_key", None)
    owner = "/".join(key) if isinstance(key, tuple) else key
    label = name if owner is None else f"{owner}.{name}"
    if name == "x" and values is not None:
        raise ValueError(
            f"{label} must have a row per vertex ({store.num_nodes}), got {len(values)}"
        )
    return label


def _rows(data: Any, store: Any, name: str, value: Any) -> Tensor | None:
    """An attribute as a dense tensor with a row per vertex or edge, sharing memory, or None."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        value = torch.from_numpy(writeable(value))
    if (
        not isinstance(value, Tensor)
        or value.layout != torch.strided
        or hasattr(value, "as_tensor")
        or not value.dim()
    ):
        return None
    return value.detach() if data.__cat_dim__(name, value, store) == 0 else None


# Classes in a Data or HeteroData that PyG 2.0 or newer saved; none runs code when it is loaded.
# OGB's binary form has the number of vertices as a NumPy number.
_CLASSES: list[Any] = [
    np.int64(0).__reduce__()[0],
    np.dtype,
    type(np.dtype(np.int64)),
    Data,
    HeteroData,
    BaseStorage,
    GlobalStorage,
    NodeStorage,
    EdgeStorage,
    DataEdgeAttr,
    DataTensorAttr,
    EdgeAttr,
    TensorAttr,
    EdgeLayout,
]


def load_saved_data(path: StrPath) -> Graph:
    """Read the one graph of a file that ``torch.save`` wrote, with its attributes as fields.

    The file holds a ``Data`` or ``HeteroData``, its ``to_dict()``, or the ``processed/data.pt`` of
    a PyG dataset. Without ``num_nodes`` or features, a ``Data`` has one more vertex than its
    largest id.

    Raises:
        FileNotFoundError: There is no such file.
        FormatError: The file has another format, other objects, or not exactly 1 graph; or the
            graph is invalid.
    """
    path = os.fspath(path)
    if not os.path.isfile(path):
        raise FileNotFoundError(f"file must exist, got {path}")
    content = load_saved(path, classes=_CLASSES, advice="save data.to_dict()")
    try:
        with warnings.catch_warnings():
            # PyG warns of a Data without num_nodes.
            warnings.simplefilter("ignore", UserWarning)
            data = _data_of(content)
            check_fits(path, 8 * int(data.num_nodes or 0), "the vertices' index")
            return whole_graph(data, path)
    except Exception as error:  # in a file, anything may be wrong
        raise FormatError(f"{path} must hold one valid PyG graph: {error}") from error


def _data_of(content: Any) -> Data | HeteroData:
    """The graph in a file's content, unwrapped."""
    if isinstance(content, list) and len(content) == 1:
        return _data_of(content[0])
    # InMemoryDataset saves (data, slices, class).
    if isinstance(content, tuple) and len(content) in (2, 3):
        count = _count_graphs(content[1])
        if count != 1:
            raise ValueError(f"the file holds {count} graphs")
        return _data_of(content[0])
    if isinstance(content, Mapping):
        of_one = "edge_index_dict" in content or not any(
            isinstance(value, Mapping) for value in content.values()
        )
        if of_one and not {"edge_index", "edge_index_dict"} & set(content):
            raise ValueError("the file holds a dict without edge_index")
        content = (Data if of_one else HeteroData).from_dict(dict(content))
    if not isinstance(content, Data | HeteroData):
        raise TypeError(f"the file holds a {type(content).__name__}")
    if not has_edges(content):
        raise ValueError(
            f"the file holds a {type(content).__name__} without edges: {held_words(content)}"
        )
    return content


def _count_graphs(slices: Any) -> int:
    """Number of graphs that a dataset concatenates; slices of None mean one."""
    while isinstance(slices, Mapping) and slices:
        slices = next(iter(slices.values()))
    return 1 if slices is None or isinstance(slices, Mapping) else len(slices) - 1


_TENSOR_PROPERTIES = [
    *("shape", "dtype", "device", "layout", "ndim", "nbytes", "requires_grad"),
    *(
        name
        for name in dir(Tensor)
        if name.startswith("is_") and not callable(getattr(Tensor, name))
    ),
]
_WITHOUT_VALUES = {
    *(getattr(Tensor, name).__get__ for name in _TENSOR_PROPERTIES),
    *(Tensor.size, Tensor.dim, Tensor.numel, Tensor.nelement, Tensor.element_size),
    *(Tensor.__len__, Tensor.is_floating_point, Tensor.is_complex, Tensor.is_inference),
}
"""Properties and methods of a tensor that need no values."""


class WaitingEdges(Tensor):
    """The ``edge_index`` of a CSC; values are made on first use, and kept.

    Torch raises if its memory is accessed by other means than torch's functions.
    """

    _csc: CSC
    _made: Tensor | None
    _seen: FieldVersion
    _lock: Any

    @staticmethod
    def of(csc: CSC) -> WaitingEdges:
        """The edges of ``csc``, without values yet."""
        shape = (2, csc.num_edges)
        cpu = torch.device("cpu")
        edges: WaitingEdges = Tensor._make_wrapper_subclass(
            WaitingEdges, shape, dtype=torch.int64, device=cpu
        )
        edges._csc = csc
        edges._made = None
        edges._lock = fork_lock()
        return edges

    @property
    def csc(self) -> CSC | None:
        """The compressed edges; None after a write to the plain tensor."""
        return (
            self._csc if self._made is None or FieldVersion.of(self._made) == self._seen else None
        )

    @property
    def plain(self) -> Tensor:
        """The plain tensor, made on first use."""
        with self._lock:
            if self._made is None:
                with torch._C.DisableTorchFunctionSubclass():
                    made = self._csc.ends_by_id()
                    self._seen = FieldVersion.of(made)
                    self._made = made
            return self._made

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call a torch function with the plain tensor, so that its version counts writes."""
        if function not in _WITHOUT_VALUES:
            args, kwargs = _with_plain(args, kwargs)
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, op: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """The same for operators that bypass :meth:`__torch_function__`."""
        args, kwargs = _with_plain(args, kwargs)
        return op(*args, **kwargs)

    def __repr__(self) -> str:  # type: ignore[override]
        return f"WaitingEdges(num_edges={self.shape[1]})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.plain.__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

    def __deepcopy__(self, memo: Any) -> Tensor:
        return self.plain.clone()


def _with_plain(args: Any, kwargs: Any) -> Any:
    return tree_map_only(WaitingEdges, lambda edges: edges.plain, (args, kwargs or {}))
