"""PyG batches, joined from sampled vertices and rows that were read ahead.

Changes to attributes of a ``Data`` or ``HeteroData`` are detected by identity and version.
"""

from __future__ import annotations

import copy
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ..cache.fields import FieldSet
from ..features.field import FieldRows, Read
from ..graph.fields import FieldVersion
from ..graph.graph import NODE_TYPE
from .frames import (
    Y,
    dense_part,
    dense_parts,
    is_frame,
    part_name,
    with_rows,
)
from .package import import_pyg
from .padding import PaddedOutput

import_pyg()
from torch_geometric.data import Data, HeteroData  # noqa: E402

Name = tuple[Any, str]
"""Key of a store (None, a vertex type or an edge type), and name of an attribute."""

PartName = tuple[Any, str, str]
"""The same of a ``TensorFrame``, and the name of a part of it."""


def stores_of(data: Any) -> dict[Any, Any]:
    """Stores by key; empty for anything but a ``Data`` or ``HeteroData``."""
    if isinstance(data, Data):
        return {None: data._store}
    if isinstance(data, HeteroData):
        return dict([*data.node_items(), *data.edge_items()])
    return {}


def value_of(data: Any, name: Name) -> Any:
    """The attribute's current value; KeyError without such an attribute or store."""
    key, attribute = name
    if isinstance(data, Data) and key is None:
        return data._store._mapping[attribute]
    if not isinstance(data, HeteroData):
        raise KeyError(key)
    stores = data._node_store_dict if isinstance(key, str) else data._edge_store_dict
    return stores[key]._mapping[attribute]


class Attributes:
    """Snapshot of weak references to all attributes of the user's data.

    Args:
        data: The user's data.
        stores: Stores of a private shallow copy of it.
    """

    def __init__(self, data: Any, stores: Mapping[Any, Any]) -> None:
        self._owner = weakref.ref(data)
        self._held = {
            key: {name: _held(value) for name, value in store.to_dict().items()}
            for key, store in stores.items()
        }

    def are_those_of(self, data: Any, stores: Mapping[Any, Any]) -> bool:
        """Whether ``data`` is the same object, and ``stores`` (or a copy's) hold the same ones."""
        if self._owner() is not data or len(stores) != len(self._held):
            return False
        for key, store in stores.items():
            held = self._held.get(key)
            if held is None:
                return False
            # `to_dict` copies, so it is only called for a `_num_nodes` that was set by hand.
            now = store._mapping
            if "_num_nodes" in store.__dict__:
                now = store.to_dict()
            if len(now) != len(held):
                return False
            for name, value in now.items():
                reference = held.get(name)
                if reference is None or reference() is not value:
                    return False
        return True

    def kept_since(self, earlier: Attributes, key: Any) -> set[str]:
        """Names of the attributes that one store has kept since."""
        before = earlier._held.get(key, {})
        kept = set()
        for name, reference in self._held.get(key, {}).items():
            earlier_reference = before.get(name)
            if earlier_reference is not None and earlier_reference() is reference():
                kept.add(name)
        return kept


def _held(value: Any) -> Any:
    # Weak, so as not to keep large data alive; numbers and lists have no weak references.
    if isinstance(value, Tensor | np.ndarray) or is_frame(value):
        return weakref.ref(value)
    return lambda: value


@dataclass(frozen=True, eq=False)
class Levels:
    """Classification of attributes: whether PyG selects them by vertex or by edge.

    Attributes:
        attributes: The classified attributes.
        known: PyG's memo of the classification, by key of the store.
        fields: Vertex attributes with rows along the first dimension, which may be read as fields.
        selected: All others that PyG selects, except the edges themselves.
        by_edge: Edge attributes among ``selected``.
        frames: ``TensorFrame``s of vertices among ``selected``. Their dense parts may be read as
            fields.
    """

    attributes: Attributes
    known: dict[Any, Any]
    fields: list[Name]
    selected: list[Name]
    by_edge: set[Name]
    frames: list[Name]

    @classmethod
    def of(
        cls, attributes: Attributes, copied: Any, stores: Mapping[Any, Any], earlier: Levels | None
    ) -> Levels:
        """Classify the attributes of ``copied``, a private copy of the data, with its ``stores``.

        ``earlier`` levels matter: PyG remembers the level of an attribute until it is replaced,
        even if the attribute that gave the number of vertices changes.
        """
        known: dict[Any, Any] = {}
        fields: list[Name] = []
        selected: list[Name] = []
        edges: set[Name] = set()
        frames: list[Name] = []
        for key, store in stores.items():
            if earlier is not None and (remembered := earlier.known.get(key)) is not None:
                same = attributes.kept_since(earlier.attributes, key)
                store.__dict__["_cached_attr"] = defaultdict(
                    set, {kind: n & same for kind, n in remembered.items()}
                )
            for name in list(store.keys()):
                by_vertex = store.is_node_attr(name)
                by_edge = store.is_edge_attr(name)
                value = store[name]
                is_array = isinstance(value, Tensor | np.ndarray)
                if by_vertex and is_array and copied.__cat_dim__(name, value, store) == 0:
                    fields.append((key, name))
                elif (by_vertex or by_edge) and name not in ("edge_index", "num_nodes"):
                    selected.append((key, name))
                    # Edges last, in PyG's order of selection.
                    if by_edge:
                        edges.add((key, name))
                    if by_vertex and is_frame(value):
                        frames.append((key, name))
            # Taken out: a store drops entries there as attributes are set.
            known[key] = store.__dict__.pop("_cached_attr", None)
        return cls(attributes, known, fields, selected, edges, frames)

    def tell(self, stores: Mapping[Any, Any]) -> None:
        """Put PyG's memo into the stores of another copy of the data."""
        for key, store in stores.items():
            if self.known[key] is not None:
                store.__dict__["_cached_attr"] = self.known[key]


class _Alias:
    """Writeable alias of an array: torch has no read-only tensors, and warns of them."""

    def __init__(self, array: Any) -> None:
        self._array = array
        interface = dict(array.__array_interface__)
        interface["data"] = interface["data"][0], False
        self.__array_interface__ = interface


def _as_tensor(array: Any) -> Tensor | None:
    try:
        if not array.flags.writeable:
            array = np.asarray(_Alias(array))
        return torch.from_numpy(array)
    except (TypeError, ValueError):  # dtype, byte order or strides: NumPy must select
        return None


def plain_rows(value: Any) -> Tensor | None:
    """The attribute as a dense CPU tensor without gradient that counts its writes, or None.

    That of an array shares its memory. It must not be written: the array may be read-only.
    """
    if isinstance(value, np.ndarray):
        return _as_tensor(value) if value.ndim else None
    is_plain = (
        type(value) in (Tensor, torch.nn.Parameter)
        and value.layout == torch.strided
        and value.device.type == "cpu"
        and not value.requires_grad
        and not value.is_inference()
        and not value.is_quantized
        and not value.is_conj()
        and not value.is_neg()
        and value.dim() > 0
    )
    return value if is_plain else None


def version_of(value: Any) -> Any:
    """A version that stays equal while the attribute's values do; None if unknown."""
    if isinstance(value, np.ndarray):
        return True  # writes through NumPy cannot be seen
    if not isinstance(value, Tensor):
        return _frame_version(value) if is_frame(value) else None
    with torch._C.DisableTorchFunctionSubclass():
        # A tensor that requires gradients belongs to the autograd graph of the reader's step.
        if value.requires_grad or value.is_inference():
            return None
        return FieldVersion.of(value) if value.layout == torch.strided else value._version


class _FrameVersion(NamedTuple):
    """The version of a ``TensorFrame``: its columns' names, and its tensors' versions.

    Parts that are read as fields are left out, since fields have their own versions.
    """

    read: Sequence[Any]
    columns: Any
    versions: Any


def _frame_version(frame: Any, read: Sequence[Any] = ()) -> _FrameVersion | None:
    """The version of a frame whose parts ``read`` are fields; None if unknown."""
    names = frame.col_names_dict
    columns = [tuple(frame.feat_dict), *[(part, tuple(own)) for part, own in names.items()]]
    versions = []
    for part, features in [*frame.feat_dict.items(), (Y, frame.y)]:
        for one in features.values() if isinstance(features, dict) else (features,):
            if isinstance(one, Tensor):
                if part not in read:
                    versions.append(version_of(one))
            elif one is not None:
                # The offsets of an embedding's columns are not in its rows.
                versions.append(version_of(one.offset))
                if part not in read:
                    versions.append(version_of(one.values))
    return None if None in versions else _FrameVersion(read, columns, versions)


@dataclass(eq=False)
class Reading:
    """What is read of the data for a batch.

    Attributes:
        data: A private copy of the user's data; a pair of stores itself.
        stores: The copy's stores by key; empty for a pair of stores.
        levels: Levels of its attributes; None for a pair of stores, or if nothing was read.
        names: Attributes that are read as fields.
        reads: Their reads, in the same order.
        written: Versions of the vertices of each read; None if unknown.
        versions: Versions of those that PyG will select; None if changes cannot be detected.
        is_joined: Whether its data became a batch.
    """

    data: Any
    stores: Mapping[Any, Any] = field(default_factory=dict)
    levels: Levels | None = None
    names: Sequence[Name | PartName] = ()
    reads: Sequence[Read] = ()
    written: Sequence[Any] = ()
    versions: dict[Name, Any] = field(default_factory=dict)
    is_joined: bool = False


Make: TypeAlias = Callable[[Any, Any, "Reading", Mapping[Name, Tensor]], Any]
"""Makes a batch; see :class:`Joiner`."""


class Joiner:
    """Makes batches from sampler outputs. Thread-safe.

    Vertex attributes that are dense CPU tensors or NumPy arrays, also of mapped files, are read
    through fields. PyG selects all others. ``view.data`` is read again for every batch.

    Args:
        view: The loader's current ``data`` and inputs.
        fields: Reads the attributes.
        make: Makes a batch like PyG's class, from a copy of the view, a sampler's output, its
            :class:`Reading` and the rows by name.

    Attributes:
        keys: Keys of the fields that a batch reads, in order. :meth:`declare` sets them first.
    """

    def __init__(self, view: Any, fields: FieldSet, make: Make) -> None:
        self._view = view
        self._fields = fields
        self._make = make
        self._sources: dict[Name | PartName, _Source] = {}
        self.keys: list[Hashable] = []
        # Replaced as a whole, without a lock: threads that find changed attributes concurrently
        # classify the same ones, and each uses its own result.
        self._levels: Levels | None = None
        # Held while a user's stores are read, since these need not be thread-safe. Innermost lock;
        # only code of the user and of PyG runs under it.
        self._one_at_a_time = threading.Lock()

    @property
    def is_remote(self) -> bool:
        """Whether the data is a pair of stores, whose values are read when needed."""
        return isinstance(self._view.data, tuple)

    @property
    def selects(self) -> bool:
        """Whether PyG selects anything but plain tensors by edge, by the latest levels."""
        levels = self._levels
        if self.is_remote or levels is None:
            return True
        if any(name not in levels.by_edge for name in levels.selected):
            return True
        names = [*levels.fields, *levels.by_edge]
        return any(plain_rows(value_of(self._view.data, name)) is None for name in names)

    @property
    def selects_edges(self) -> bool:
        """Whether PyG selects attributes of edges, by the latest levels."""
        return self._levels is not None and bool(self._levels.by_edge)

    def declare(self) -> None:
        """Declare the attributes that will be read, so that one cache is planned for all."""
        if self.is_remote:
            return
        data = self._view.data
        copied = copy.copy(data)
        levels = self._levels_of(data, copied, stores_of(copied))
        for name in levels.fields:
            source = _Source(self._view, name)
            if source.rows_of(value_of(data, name)) is not None:
                self.keys.append(self._add(source).key)
        for name in levels.frames:
            for part, values in dense_parts(value_of(data, name)):
                source = self._part((*name, part_name(part)), part)
                if source.part == part and source.rows_of(values) is not None:
                    self.keys.append(source.key)

    def plan(self, output: Any, hop_ends: Mapping[str, list[int]]) -> Reading:
        """What to read for a sampler's output.

        Args:
            output: The sampler's output.
            hop_ends: Ends of each hop's vertices by vertex type, if known.
        """
        data = self._view.data
        if isinstance(data, tuple):
            return Reading(data)
        copied = copy.copy(data)
        stores = stores_of(copied)
        levels = self._levels_of(data, copied, stores)
        versions: dict[Name, Any] = {}
        for name in levels.selected:
            # The version of a frame depends on the parts that are read.
            if name not in levels.frames:
                versions[name] = version_of(stores[name[0]]._mapping[name[1]])
        names: list[Name | PartName] = []
        reads: list[Read] = []
        writes: list[Any] = []
        # All attributes of a type are read for the same vertices.
        of_type: dict[Any, tuple[Tensor | None, Any, Sequence[int] | None]] = {}
        for name in levels.fields:
            key, attribute = name
            if key not in of_type:
                of_type[key] = self._vertices_of(output, key, hop_ends)
            nodes, written, bounds = of_type[key]
            value = stores[key]._mapping[attribute]
            source = self._sources.get(name) or _Source(self._view, name)
            # As `rows_of` has it, without the call.
            known, rows = source.found
            values = rows()
            if known() is not value or values.requires_grad:
                values = source.rows_of(value)
            if nodes is None or values is None:  # PyG selects it
                versions[name] = version_of(value)
                continue
            if name not in self._sources:
                self._add(source)
            names.append(name)
            writes.append(written)
            padding = output.padding(attribute) if isinstance(output, PaddedOutput) else None
            reads.append(Read(source.key, nodes, bounds, padding, None, values))
        if levels.frames and isinstance(output, PaddedOutput):
            raise ValueError(
                "shapes='fixed' needs attributes that are tensors, got the TensorFrame "
                f"{levels.frames[0][1]!r}"
            )
        for key, attribute in levels.frames:
            if key not in of_type:
                of_type[key] = self._vertices_of(output, key, hop_ends)
            nodes, written, bounds = of_type[key]
            frame = stores[key]._mapping[attribute]
            read: list[Any] = []
            for part, values in dense_parts(frame):
                # As `part_name` has it, without the call.
                name_of_part = key, attribute, getattr(part, "_value_", part)
                source = self._part(name_of_part, part)
                # Two parts of one name would be one field.
                if nodes is None or source.part != part:
                    continue
                is_known = values is source.found[0]() and not values.requires_grad
                if not is_known and source.rows_of(values) is None:
                    continue
                names.append(name_of_part)
                writes.append(written)
                reads.append(Read(name_of_part, nodes, bounds, None, None, values))
                read.append(part)
            versions[key, attribute] = _frame_version(frame, read)
        return Reading(copied, stores, levels, names, reads, writes, versions)

    @staticmethod
    def kept(
        earlier: Reading, rows: Sequence[FieldRows | None], reading: Reading
    ) -> list[FieldRows | None]:
        """Rows of an earlier reading for those vertices of ``reading`` that are the same."""
        known = {}
        for read, written, row in zip(earlier.reads, earlier.written, rows, strict=True):
            known[read.key] = read.ids, written, row
        kept = []
        for read, written in zip(reading.reads, reading.written, strict=True):
            ids, before, row = known.get(read.key, (None, None, None))
            # A transform of the sampler's output may have replaced or written the vertices.
            is_same = ids is read.ids and written is not None and before == written
            kept.append(row if is_same else None)
        return kept

    def join(self, output: Any, reading: Reading, rows: Sequence[Tensor | None]) -> Any:
        """The batch from a reading and its rows, before the user's transforms.

        The reading's data becomes the batch, so to join another the data are read again.
        Attributes without rows are left as they are.
        """
        if reading.is_joined:
            reading = self.plan(output, {})
        reading.is_joined = True
        # `copy.copy` takes 3 us longer.
        view = object.__new__(type(self._view))
        vars(view).update(
            vars(self._view), data=reading.data, transform=None, transform_sampler_output=None
        )
        if reading.levels is None:
            with self._one_at_a_time:  # the user's stores need not be thread-safe
                return self._make(view, output, reading, {})
        known: dict[Name, Tensor] = {}
        of_frames: dict[Name, dict[str, tuple[Any, Tensor]]] = defaultdict(dict)
        for name, tensor in zip(reading.names, rows, strict=True):
            if tensor is None:
                continue
            if len(name) == 3:
                of_frames[name[:2]][name[2]] = self._sources[name].part, tensor
            else:
                known[name] = tensor
        for (key, attribute), of_frame in of_frames.items():
            mapping = reading.stores[key]._mapping
            mapping[attribute] = with_rows(mapping[attribute], of_frame)
        if isinstance(output, PaddedOutput):
            return self._joined_padded(view, output, reading, known)
        return self._make(view, output, reading, known)

    def _joined_padded(
        self, view: Any, output: PaddedOutput, reading: Reading, known: Mapping[Name, Tensor]
    ) -> Any:
        assert reading.levels is not None
        by_edge = [name for key, name in reading.versions if (key, name) in reading.levels.by_edge]
        by_vertex = [name for _, name in reading.versions if name not in by_edge]
        used = output.selectable() if reading.versions else output
        batch = self._make(view, used, reading, known)
        output.finish(batch, used, by_vertex, by_edge)
        return batch

    def is_current(self, reading: Reading) -> bool:
        """Whether the data has the same attributes, with the same values if PyG selects them.

        Values whose changes cannot be detected are selected on delivery.
        """
        data = self._view.data
        if reading.levels is None:
            return data is reading.data
        stores = stores_of(data)
        if not reading.levels.attributes.are_those_of(data, stores):
            return False
        for (key, attribute), version in reading.versions.items():
            value = stores[key]._mapping[attribute]
            if isinstance(version, _FrameVersion):
                if version != _frame_version(value, version.read):
                    return False
            elif version != version_of(value):
                return False
        return True

    def _levels_of(self, data: Any, copied: Any, stores: Mapping[Any, Any]) -> Levels:
        """Levels of the attributes of a copy of the data; made again when these change."""
        levels = self._levels
        if levels is None or not levels.attributes.are_those_of(data, stores):
            attributes = Attributes(data, stores)
            levels = self._levels = Levels.of(attributes, copied, stores, levels)
            for name, source in self._sources.items():
                if name not in levels.fields:
                    source.found = _nothing, _nothing  # lets go of an array
        return levels

    def _vertices_of(
        self, output: Any, key: Any, hop_ends: Mapping[str, list[int]]
    ) -> tuple[Tensor | None, Any, Sequence[int] | None]:
        """The vertices that a type's attributes are read for, their version, and the hops' ends.

        No vertices if PyG must select their rows.
        """
        nodes = getattr(output, "node", None)
        if isinstance(output, PaddedOutput):
            nodes = output.sampled_nodes
        if key is not None:
            nodes = nodes.get(key) if isinstance(nodes, Mapping) else None
        if not isinstance(nodes, Tensor) or nodes.dim() != 1:
            return None, None, None
        accelerator = self._fields.accelerator
        if not nodes.is_cpu and (accelerator is None or nodes.device != accelerator.device):
            return None, None, None
        ends = hop_ends.get(key or NODE_TYPE)
        bounds = ends if ends and ends[-1] == nodes.shape[0] else None
        # For one tensor, its version and address suffice; a FieldVersion takes three calls.
        written = None if nodes.is_inference() else (nodes._version, nodes.data_ptr())
        return nodes, written, bounds

    def _part(self, name: PartName, part: Any) -> _Source:
        """The field of a part of a ``TensorFrame``; of another part if two have one name."""
        return self._sources.get(name) or self._add(_Source(self._view, name, part))

    def _add(self, source: _Source) -> _Source:
        """Make an attribute, or a part of one, a field."""
        row_type = source.name[0] or NODE_TYPE
        self._fields.add_source(source.key, source, row_type=row_type, label=source.label)
        self._sources[source.name] = source  # last: other threads use what they find here
        return source


def _nothing() -> None:
    return None


class _Source:
    """Gives the current tensor of a vertex attribute, or of a part of a ``TensorFrame``.

    A batch looks each up twice, so what was checked is remembered. It holds no joiner: a reference
    cycle would keep caches alive until garbage collection.

    Args:
        view: The loader's.
        name: The attribute, or its part.
        part: PyTorch Frame's semantic type of the part.

    Attributes:
        key: Key of the field. Of a part it is the name, which no other attribute can have.
        label: Its name in the statistics: ``x``, ``paper/x``, ``paper/tf.numerical``.
        found: References to what was found to be plain last, and to its tensor (another for an
            array).
    """

    def __init__(self, view: Any, name: Name | PartName, part: Any = None) -> None:
        key, attribute, *of_part = name
        self.label: str = ".".join([attribute, *of_part])
        if key is not None:
            self.label = f"{key}/{self.label}"
        self.key: Hashable = name if of_part else self.label
        self.name = name
        self.part = part
        self._view = view
        self.found: tuple[Callable[[], Any], Callable[[], Any]] = (_nothing, _nothing)

    def rows_of(self, value: Any) -> Tensor | None:
        """The value as :func:`plain_rows` has it, of an array always the same tensor, so that
        versions can be compared."""
        known, kept = self.found
        if value is not None and known() is value and not kept().requires_grad:
            return kept()  # type: ignore[no-any-return]
        rows = plain_rows(value)
        if rows is value:
            self.found = (weakref.ref(value),) * 2
        elif rows is not None:
            self.found = weakref.ref(value), lambda: rows
        return rows

    def __call__(self) -> Tensor:
        key = self.name[0]
        data = self._view.data
        try:
            store = data._store if key is None else data._node_store_dict[key]
        except AttributeError:
            raise KeyError(self.name) from None
        value: Any = store._mapping[self.name[1]]
        known, kept = self.found
        before: Any = kept()
        is_known = before is not None and not before.requires_grad
        if self.part is None:
            if is_known and known() is value:
                return before  # type: ignore[no-any-return]
        else:
            features: Any = getattr(value, "feat_dict", {}).get(self.part)
            if is_known and before is features:
                count = getattr(value, "_num_rows", None)
                if count is None:
                    # As `len` has it, without four calls of PyTorch Frame's and torch's.
                    first = next(iter(value.feat_dict.values()))
                    count = first.shape[0] if type(first) is Tensor else len(value)
                if features.shape[0] == count:
                    return features  # type: ignore[no-any-return]
            value = dense_part(value, self.part)
        rows = self.rows_of(value)
        if rows is None:
            raise KeyError(self.name)
        return rows
