"""PyG batches, joined from sampled vertices and rows that were read ahead.

Changes to attributes of a ``Data`` or ``HeteroData`` are detected by identity and version.
"""

from __future__ import annotations

import copy
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor

from ..cache.fields import FieldSet
from ..features.field import Read
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

R = TypeVar("R")

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
    # Each field is looked up twice a batch, so PyG's slower calls are avoided.
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


class Arrays:
    """Memo of tensors that share memory with NumPy arrays, so that versions can be compared."""

    def __init__(self) -> None:
        # Innermost lock, held for one dict look-up.
        self._lock = threading.Lock()
        self._tensors: dict[Name, tuple[Any, Tensor | None]] = {}

    def tensor(self, name: Name, array: Any) -> Tensor | None:
        """The tensor of an array, or None if torch has none for it.

        It must not be written: the array may be read-only.
        """
        with self._lock:
            known = self._tensors.get(name)
            if known is None or known[0] is not array:
                known = self._tensors[name] = array, _as_tensor(array)
            return known[1]

    def keep(self, names: Collection[Name]) -> None:
        """Drop all others."""
        with self._lock:
            self._tensors = {name: known for name, known in self._tensors.items() if name in names}


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


def plain_rows(name: Name, value: Any, arrays: Arrays | None) -> Tensor | None:
    """The attribute as a dense CPU tensor without gradient that counts its writes, or None.

    NumPy arrays need ``arrays``.
    """
    if isinstance(value, np.ndarray):
        return arrays.tensor(name, value) if arrays is not None and value.ndim else None
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


class _Wanted(NamedTuple):
    """An attribute that is read as a field: its values, the wanted vertices and their version."""

    name: Name | PartName
    values: Tensor
    nodes: Tensor
    written: Any


@dataclass(frozen=True, eq=False)
class Reading:
    """What is read of the data for a batch.

    Attributes:
        data: A private copy of the user's data; a pair of stores itself.
        stores: The copy's stores by key; empty for a pair of stores.
        levels: Levels of its attributes; None for a pair of stores, or if nothing was read.
        wanted: Attributes that are read as fields.
        reads: Their reads, in the same order.
        versions: Versions of those that PyG will select; None if changes cannot be detected.
    """

    data: Any
    stores: Mapping[Any, Any] = field(default_factory=dict)
    levels: Levels | None = None
    wanted: Sequence[_Wanted] = ()
    reads: Sequence[Read] = ()
    versions: dict[Name, Any] = field(default_factory=dict)


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
        self._arrays = Arrays()
        self._labels: dict[Name, str] = {}
        self._parts: dict[PartName, _PartSource] = {}
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
        values = [(name, value_of(self._view.data, name)) for name in names]
        return any(plain_rows(name, value, self._arrays) is None for name, value in values)

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
            if plain_rows(name, value_of(data, name), self._arrays) is not None:
                self.keys.append(self._add(name))
        for name in levels.frames:
            for part, values in dense_parts(value_of(data, name)):
                source = self._add_part((*name, part_name(part)), part)
                if source.part == part and source.can_read(values):
                    self.keys.append((*name, part_name(part)))

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
        wanted: list[_Wanted] = []
        reads: list[Read] = []
        # All attributes of a type are read for the same vertices.
        of_type: dict[Any, tuple[Tensor | None, Any, Sequence[int] | None]] = {}
        for name in levels.fields:
            key, attribute = name
            if key not in of_type:
                of_type[key] = self._vertices_of(output, key, hop_ends)
            nodes, written, bounds = of_type[key]
            value = stores[key]._mapping[attribute]
            values = plain_rows(name, value, self._arrays)
            if nodes is None or values is None:  # PyG selects it
                versions[name] = version_of(value)
                continue
            label = self._labels.get(name) or self._add(name)
            wanted.append(_Wanted(name, values, nodes, written))
            padding = output.padding(attribute) if isinstance(output, PaddedOutput) else None
            reads.append(Read(label, nodes, bounds, padding, None, values))
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
                source = self._parts.get(name_of_part) or self._add_part(name_of_part, part)
                # Two parts of one name would be one field.
                if nodes is None or source.part != part:
                    continue
                is_known = values is source.known() and not values.requires_grad
                if not is_known and not source.can_read(values):
                    continue
                wanted.append(_Wanted(name_of_part, values, nodes, written))
                reads.append(Read(name_of_part, nodes, bounds, None, None, values))
                read.append(part)
            versions[key, attribute] = _frame_version(frame, read)
        return Reading(copied, stores, levels, wanted, reads, versions)

    @staticmethod
    def still_right(earlier: Reading, rows: Sequence[R], reading: Reading) -> dict[int, R]:
        """Rows of an earlier reading for the same vertices, by position in ``reading``."""
        known = {
            wanted.name: (wanted, tensor)
            for wanted, tensor in zip(earlier.wanted, rows, strict=True)
        }
        right = {}
        for place, (name, _, nodes, written) in enumerate(reading.wanted):
            before, tensor = known.get(name, (None, None))
            # A transform of the sampler's output may have replaced or written the vertices.
            if before is None or tensor is None or written is None:
                continue
            if before.nodes is nodes and before.written == written:
                right[place] = tensor
        return right

    def join(self, output: Any, reading: Reading, rows: Sequence[Tensor]) -> Any:
        """The batch from a reading and its rows, before the user's transforms.

        A reading can be joined once, since its data becomes the batch.
        """
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
        for (name, _, _, _), tensor in zip(reading.wanted, rows, strict=True):
            if len(name) == 3:
                of_frames[name[:2]][name[2]] = self._parts[name].part, tensor
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
        """Whether the data has the same attributes, with the same values if PyG selects them."""
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
            elif version is None or version != version_of(value):
                return False
        return True

    def _levels_of(self, data: Any, copied: Any, stores: Mapping[Any, Any]) -> Levels:
        """Levels of the attributes of a copy of the data; made again when these change."""
        levels = self._levels
        if levels is None or not levels.attributes.are_those_of(data, stores):
            attributes = Attributes(data, stores)
            levels = self._levels = Levels.of(attributes, copied, stores, levels)
            self._arrays.keep(levels.fields)
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

    def _add(self, name: Name) -> str:
        """Make the attribute a field; returns its key."""
        label = _label(name)
        if name not in self._labels:
            source = partial(_present, self._view, self._arrays, name)
            self._fields.add_source(label, source, row_type=name[0] or NODE_TYPE)
            self._labels[name] = label  # last: other threads use what they find here
        return label

    def _add_part(self, name: PartName, part: Any) -> _PartSource:
        """Make a part of a ``TensorFrame`` a field, if it is none; its key is the name, which no
        other attribute can have."""
        source = self._parts.get(name)
        if source is None:
            key, attribute, called = name
            label = f"{_label((key, attribute))}.{called}"
            source = _PartSource(self._view, name, part)
            self._fields.add_source(name, source, row_type=key or NODE_TYPE, label=label)
            self._parts[name] = source
        return source


def _label(name: Name) -> str:
    """Name of an attribute in the statistics: ``x``, ``paper/x``."""
    return name[1] if name[0] is None else f"{name[0]}/{name[1]}"


def _present(view: Any, arrays: Arrays, name: Name) -> Tensor:
    """The current attribute.

    Not a method: a reference cycle would keep caches alive until garbage collection.
    """
    rows = plain_rows(name, value_of(view.data, name), arrays)
    if rows is None:
        raise KeyError(name)
    return rows


class _PartSource:
    """The current part of a ``TensorFrame``; see :func:`_present`.

    A batch looks up each part of each type twice, so the tensor that was checked is remembered.
    """

    def __init__(self, view: Any, name: PartName, part: Any) -> None:
        self._view = view
        self._name = name
        self.part = part
        # Gives the tensor that was found plain.
        self.known: Callable[[], Tensor | None] = lambda: None

    def can_read(self, values: Tensor) -> bool:
        """Whether fields can read a part's tensor."""
        if values is self.known():
            return not values.requires_grad
        if plain_rows(self._name[:2], values, None) is None:
            return False
        self.known = weakref.ref(values)
        return True

    def __call__(self) -> Tensor:
        key, attribute, _ = self._name
        data = self._view.data
        try:
            # `value_of` and `dense_part` inlined.
            store = data._store if key is None else data._node_store_dict[key]
            frame = store._mapping[attribute]
            features = frame.feat_dict.get(self.part)
            known = self.known()
            if known is not None and known is features and not known.requires_grad:
                count = getattr(frame, "_num_rows", None)
                if count is None:
                    # As `len(frame)` has it, without four calls of PyTorch Frame's and torch's.
                    first = next(iter(frame.feat_dict.values()))
                    count = first.shape[0] if type(first) is Tensor else len(frame)
                if known.shape[0] == count:
                    return known
        except AttributeError:
            frame = value_of(data, (key, attribute))
        values = dense_part(frame, self.part)
        if values is None or not self.can_read(values):
            raise KeyError(self._name)
        return values
