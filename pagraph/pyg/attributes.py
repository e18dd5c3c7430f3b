"""Attributes in the stores of a Data or HeteroData: their identities, versions, and which have a row a vertex."""

from __future__ import annotations

import threading
import weakref
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..graph.field_version import FieldVersion
from .package import import_pyg

import_pyg()
from torch_geometric.data import Data, HeteroData  # noqa: E402

__all__ = ["Arrays", "Attributes", "Levels", "Name", "plain_rows", "store_of", "value_of", "version_of"]

Name = tuple[Any, str]
"""Key of a store (None, a vertex type or an edge type), name of an attribute."""


def _stores(data: Any) -> list[tuple[Any, Any]]:
    """Stores with their keys; none for anything but a ``Data`` or ``HeteroData``."""
    if isinstance(data, Data):
        return [(None, data._store)]
    return [*data.node_items(), *data.edge_items()] if isinstance(data, HeteroData) else []


def store_of(data: Any, name: Name) -> Any:
    """The store of an attribute; KeyError for an unknown vertex or edge type."""
    for key, store in _stores(data):
        if key == name[0]:
            return store
    raise KeyError(name[0])


def value_of(data: Any, name: Name) -> Any:
    """The attribute's present value; KeyError if there is none."""
    return store_of(data, name)[name[1]]


class Attributes:
    """Weak references to all attributes that the user's data, of which ``copied`` is a shallow copy, held at once."""

    def __init__(self, data: Any, copied: Any) -> None:
        self._owner = weakref.ref(data)
        self._held = {key: {name: _held(x) for name, x in store.to_dict().items()} for key, store in _stores(copied)}

    def are_those_of(self, data: Any, copied: Any = None) -> bool:
        """Whether the data is the same and it, or a copy of it, holds the very same objects."""
        if self._owner() is not data:
            return False
        now = _stores(data if copied is None else copied)
        return len(now) == len(self._held) and all(_are_same(self._held.get(key), store) for key, store in now)

    def kept_since(self, earlier: Attributes, key: Any) -> set[str]:
        """Names of what one store held before and still holds."""
        before, now = earlier._held.get(key, {}), self._held.get(key, {})
        return {name for name, ref in now.items() if name in before and before[name]() is ref()}


def _held(value: Any) -> Any:
    if isinstance(value, Tensor | np.ndarray):
        return weakref.ref(value)
    return lambda: value


def _are_same(held: dict[str, Any] | None, store: Any) -> bool:
    if held is None:
        return False
    now = store.to_dict()
    return len(now) == len(held) and all(name in held and held[name]() is value for name, value in now.items())


@dataclass(frozen=True, eq=False)
class Levels:
    """Attributes that PyG selects by vertex or by edge.

    Attributes:
        attributes: Attributes that were looked at.
        known: Key of each store to what PyG memoizes on the store itself, as only looking at them all tells.
        fields: Vertex attributes that may be read as fields: those with rows along their first dimension.
        selected: All others that PyG selects, but not the edges themselves.
    """

    attributes: Attributes
    known: dict[Any, Any]
    fields: list[Name]
    selected: list[Name]

    @classmethod
    def of(cls, attributes: Attributes, copied: Any, earlier: Levels | None) -> Levels:
        """Classify the attributes of ``copied``, a copy of the data that nobody else uses.

        ``earlier`` levels count: PyG remembers whose an attribute is until another takes its place, whatever becomes of
        the attribute by which the vertices were counted.
        """
        known: dict[Any, Any] = {}
        fields: list[Name] = []
        selected: list[Name] = []
        for key, store in _stores(copied):
            if earlier is not None and (remembered := earlier.known.get(key)) is not None:
                same = attributes.kept_since(earlier.attributes, key)
                store.__dict__["_cached_attr"] = defaultdict(set, {kind: n & same for kind, n in remembered.items()})
            for name in list(store.keys()):
                by_vertex, by_edge = store.is_node_attr(name), store.is_edge_attr(name)
                if by_vertex and _has_rows(copied, store, name):
                    fields.append((key, name))
                elif (by_vertex or by_edge) and name not in ("edge_index", "num_nodes"):
                    selected.append((key, name))
            known[key] = store.__dict__.pop("_cached_attr", None)  # the store forgets what is set
        return cls(attributes, known, fields, selected)

    def tell(self, copied: Any) -> None:
        """Put PyG's memo into another copy of the same data."""
        for key, store in _stores(copied):
            if self.known[key] is not None:
                store.__dict__["_cached_attr"] = self.known[key]


def _has_rows(data: Any, store: Any, name: str) -> bool:
    value = store[name]
    return isinstance(value, Tensor | np.ndarray) and data.__cat_dim__(name, value, store) == 0


class Arrays:
    """Memoizes NumPy arrays as tensors over the same memory, so that versions can be compared."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tensors: dict[Name, tuple[Any, Tensor | None]] = {}

    def tensor(self, name: Name, array: Any) -> Tensor | None:
        """The tensor, which must not be written: the array may be read-only. None if torch cannot hold it."""
        with self._lock:
            known = self._tensors.get(name)
            if known is None or known[0] is not array:
                known = self._tensors[name] = array, _as_tensor(array)
            return known[1]

    def keep(self, names: Collection[Name]) -> None:
        """Forget all others."""
        with self._lock:
            self._tensors = {name: known for name, known in self._tensors.items() if name in names}


class _Alias:
    """Writeable alias of an array: torch has no read-only tensors, and warns of such arrays."""

    def __init__(self, array: Any) -> None:
        self._array = array
        interface = dict(array.__array_interface__)
        interface["data"] = interface["data"][0], False
        self.__array_interface__ = interface


def _as_tensor(array: Any) -> Tensor | None:
    try:
        return torch.from_numpy(array if array.flags.writeable else np.asarray(_Alias(array)))
    except (TypeError, ValueError):  # its dtype, byte order or strides: NumPy's to select
        return None


def plain_rows(name: Name, value: Any, arrays: Arrays) -> Tensor | None:
    """The attribute as a dense tensor on the CPU that needs no gradient and counts its writes; None if it is none."""
    if isinstance(value, np.ndarray):
        return arrays.tensor(name, value) if value.ndim else None
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
    """Equals a later one if the attribute's values are the same; None where nobody can tell."""
    if isinstance(value, np.ndarray):
        return True  # writes through NumPy are nobody's to see
    if not isinstance(value, Tensor):
        return None
    with torch._C.DisableTorchFunctionSubclass():
        if value.requires_grad or value.is_inference():
            return None
        return FieldVersion.of(value) if value.layout == torch.strided else value._version
