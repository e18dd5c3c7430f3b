"""Values of edges that are memoized for each version of their fields, and edge weights."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
from torch import Tensor

from ..graph.csc import CSC, check_range
from ..graph.fields import FieldVersion
from ..system.arrays import Array
from ..system.threads import ForkLock

if TYPE_CHECKING:
    from ..graph.graph import EdgeType, Graph

EdgeField = Callable[["EdgeType", str], "Tensor | None"]
"""Gives an edge field by edge type and name, in the order of the edge ids; None where there is
none."""

T = TypeVar("T")
_MOST_VERSIONS = 4  # by CSC: a few fields in turn, without keeping every copy of a changing one


class MadeOfFields(Generic[T]):
    """Memoizes values derived from a CSC and its fields, for the last few of each CSC; safe from
    any number of threads.

    A field that was written in place or replaced gives a new value; a tensor made in inference
    mode, whose writes cannot be seen, at every call.
    """

    def __init__(self) -> None:
        self._lock = ForkLock()
        self._versions: weakref.WeakKeyDictionary[CSC, _Versions[T]] = weakref.WeakKeyDictionary()

    def get(
        self, csc: CSC, fields: Sequence[Tensor], make: Callable[[], T], *, kind: str = ""
    ) -> T:
        """The value that ``make`` derives from the fields; threads that ask meanwhile wait for it.

        ``make`` must not keep the CSC alive; ``kind`` tells several values derived from the same
        fields apart.
        """
        # Held only to look up: what `make` takes long for is made under the lock of its CSC, so that
        # other CSCs do not wait. The two locks are never held at once.
        with self._lock:
            versions = self._versions.setdefault(csc, _Versions())
        return versions.get(kind, fields, make)


class _Versions(Generic[T]):
    """Values derived for one CSC, the newest first."""

    def __init__(self) -> None:
        self._lock = ForkLock()
        self._known: list[tuple[str, list[FieldVersion], T]] = []

    def get(self, kind: str, fields: Sequence[Tensor], make: Callable[[], T]) -> T:
        now = [FieldVersion.of(values) for values in fields]
        with self._lock:
            # What was written over or has gone will not be asked for again.
            self._known = [
                known
                for known in self._known
                if all(_may_return(old, new) for old in known[1] for new in now)
            ]
            for known_kind, known, made in self._known:
                if known_kind == kind and known == now:
                    return made
            fresh = make()
            self._known = [(kind, now, fresh), *self._known][:_MOST_VERSIONS]
            return fresh


def _may_return(known: FieldVersion, now: FieldVersion) -> bool:
    storage = known.storage()
    return storage is not None and (
        known == now or storage is not now.storage() or known.layout != now.layout
    )


class KnownFields(Generic[T]):
    """What a sampler derived from the fields of one name of the graph that it was asked for last:
    derived again when one of them was written or replaced."""

    def __init__(self) -> None:
        self._known: tuple[Any, list[FieldVersion | None], T] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # A sampler goes to other processes without the values, which it derives there.
        return type(self), ()

    def get(
        self, graph: Graph, name: str, field: EdgeField | None, make: Callable[[EdgeField], T]
    ) -> T:
        """What ``make`` derives from the fields ``name``; safe from any thread, of which several
        may derive the same."""
        if field is not None:  # whose values nobody else knows of
            return make(field)
        now = [
            FieldVersion.of(values) if isinstance(values, Tensor) else None
            for values in graph.fields_named(name)
        ]
        known = self._known
        if known is not None and known[0]() is graph and known[1] == now:
            return known[2]
        made = make(lambda edge_type, name: graph.edge_fields(edge_type).get(name))
        self._known = weakref.ref(graph), now, made
        return made


def check_column(
    name: str, values: Any, dtypes: tuple[torch.dtype, ...], kind: str, count: int, owner: str
) -> None:
    """Raise unless the values are ``count`` numbers of these dtypes on the CPU; ``kind`` and
    ``owner`` word errors."""
    if not isinstance(values, Tensor) or values.dtype not in dtypes:
        got = values.dtype if isinstance(values, Tensor) else type(values).__name__
        raise TypeError(f"{name} must be a tensor of {kind}, got {got}")
    if values.device.type != "cpu":
        raise TypeError(f"{name} must be on the CPU, got {values.device}")
    if values.shape not in ((count,), (count, 1)):
        raise ValueError(f"{name} must have one {owner} ({count}), got shape {tuple(values.shape)}")


_NARROW = (
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
)
_WIDE = (torch.float64, torch.int32, torch.int64)
# Keys are quotients of weights, running sums are sums of them: neither may leave the range of
# float64.
_LEAST = 1e-290
_MOST = 1e290


class EdgeWeights:
    """Weights of a CSC's edges: a private copy, which later writes to the field do not reach.

    Edges of weight 0 are set apart. Memory beyond the weights themselves: nothing where all
    positive weights are equal (as in a mask), else 0.75 bytes an edge for the tables that draws
    use, made when first asked for; and with zeros among the weights one position (4 or 8 bytes) for
    each positive one, and an ``indptr``.

    Args:
        csc: The edges; it is not kept.
        weights: Shape ``(num_edges,)``, float32, float64 or bool, in CSC order, finite and not
            negative. It is changed.

    Attributes:
        num_edges: Edges of the CSC, those of weight 0 counted.
        kept: The edges of positive weight, as a CSC whose ``indices`` are positions in the original
            one; None where all are positive.
        values: Shape ``(num_positive,)``, float32 or float64, in the order of the positions; None
            where all positive weights are equal.
    """

    def __init__(self, csc: CSC, weights: Tensor) -> None:
        self.num_edges: int = csc.num_edges
        positive = int(torch.count_nonzero(weights))
        self.kept: CSC | None = (
            None if positive == csc.num_edges else _keep_positive(csc, weights, positive)
        )
        weights = weights if self.kept is None else weights[:positive]
        equal = positive == 0 or weights.dtype == torch.bool or bool(weights.min() == weights.max())
        self.values: Tensor | None = weights
        if equal:
            self.values = None
        elif self.kept is not None:
            # A slice would keep the memory of what was cut off.
            self.values = weights.clone()
        self._indptr = (csc if self.kept is None else self.kept).indptr
        self._lock = ForkLock()
        self._memo: dict[Any, Any] = {}

    @property
    def num_positive(self) -> int:
        """Edges of positive weight."""
        return self.num_edges if self.kept is None else self.kept.num_edges

    @property
    def nbytes(self) -> int:
        """Bytes held now."""
        held = [self.values, *([] if self.kept is None else [self.kept.indptr, self.kept.indices])]
        tables: int = sum(array.nbytes for array in self._memo.get("tables", ()))
        return sum(tensor.nbytes for tensor in held if tensor is not None) + tables

    def tables(self) -> tuple[Array, Array]:
        """Running sums and guide of each row of ``values``, see ``kernels/weighted.py``; made once,
        thread-safe."""
        tables: tuple[Array, Array] = self.memoized("tables", self._fill_tables)
        return tables

    def memoized(self, name: Any, make: Callable[[], Any]) -> Any:
        """The value of ``make``, made once for a name and kept as long as the weights;
        thread-safe."""
        with self._lock:
            if name not in self._memo:
                self._memo[name] = make()
            return self._memo[name]

    def _fill_tables(self) -> tuple[Array, Array]:
        from .kernels import weighted

        assert self.values is not None
        chunks = len(self.values) // weighted.CHUNK
        sums = torch.zeros(chunks, dtype=torch.float64, device="cpu").numpy()
        guide = torch.zeros(chunks, dtype=torch.int32, device="cpu").numpy()
        weighted.fill_tables(self._indptr.numpy(), self.values.numpy(), sums, guide)
        return sums, guide

    @cached_property
    def in_order(self) -> Tensor:
        """A weight for each edge in CSC order, zeros included, shape ``(num_edges,)``, float32 or
        float64.

        Where all positive weights are equal they are 1. Made when first asked for, and kept.
        """
        positive = self.values
        if positive is None:
            positive = torch.ones(self.num_positive, device="cpu")
        if self.kept is None:
            return positive
        weights = torch.zeros(self.num_edges, dtype=positive.dtype, device="cpu")
        weights[self.kept.indices.long()] = positive
        return weights

    def __repr__(self) -> str:
        values = "equal" if self.values is None else str(self.values.dtype).removeprefix("torch.")
        return (
            f"EdgeWeights(num_edges={self.num_edges}, num_positive={self.num_positive}, "
            f"values={values})"
        )


def _keep_positive(csc: CSC, weights: Tensor, count: int) -> CSC:
    """Move the positive weights to the front, and tell where they were."""
    from .kernels import weighted

    dtype = csc.indices.dtype
    indptr = torch.zeros(len(csc.indptr), dtype=dtype, device="cpu")
    positions = torch.empty(count, dtype=dtype, device="cpu")
    weighted.keep_positive(csc.indptr.numpy(), weights.numpy(), indptr.numpy(), positions.numpy())
    return CSC(indptr, positions, csc.num_edges)


_made: MadeOfFields[EdgeWeights] = MadeOfFields()


def edge_weights(csc: CSC, values: Tensor, *, name: str = "values") -> EdgeWeights:
    """The weights of a CSC's edges, memoized as long as both CSC and field live; see
    :class:`MadeOfFields`.

    Args:
        csc: The edges.
        values: Shape ``(num_edges,)`` or ``(num_edges, 1)``, in the order of the edge ids: finite
            and not negative, on the CPU; float16, bfloat16, float32, float64, bool, uint8 or a
            signed integer dtype. Float64 weights above 0 are taken to lie in [1e-290, 1e290].
        name: Name of the values, for errors.

    Raises:
        TypeError: The values have another dtype, or are not on the CPU.
        ValueError: There is not one value per edge, or one is negative, infinite or NaN.
        FormatError: The CSC's ``indptr`` is damaged.
    """
    kind = "floats, bools, uint8 or signed integers"
    check_column(name, values, (*_NARROW, *_WIDE), kind, csc.num_edges, "number per edge")
    return _made.get(csc, [values], lambda: EdgeWeights(csc, _in_csc_order(csc, values, name)))


def _in_csc_order(csc: CSC, values: Tensor, name: str) -> Tensor:
    """A copy of the values in CSC order, as bool, float32 or float64."""
    csc.check_rows()
    values = values.detach().reshape(-1)
    if csc.edge_ids is not None:
        check_range("edge_ids", csc.edge_ids, csc.num_edges)
    # A copy even where nothing moves: the user may write to the field while a batch is being drawn.
    weights = values.clone() if csc.edge_ids is None else values.index_select(0, csc.edge_ids)
    if weights.dtype == torch.bool or len(weights) == 0:
        return weights
    weights = weights.to(torch.float32 if weights.dtype in _NARROW else torch.float64)
    low, high = (float(bound) for bound in torch.aminmax(weights))
    if not (low >= 0 and high < float("inf")):
        wrong = weights[~((weights >= 0) & (weights < float("inf")))]
        raise ValueError(f"{name} must be finite and not negative, got {float(wrong[0])}")
    if weights.dtype == torch.float64 and not (low >= _LEAST and high <= _MOST):
        weights = torch.where(weights > 0, weights.clamp(_LEAST, _MOST), weights)
    return weights.contiguous()
