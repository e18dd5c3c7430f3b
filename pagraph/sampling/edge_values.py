"""Edge weights, and caches of values derived from edge fields."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
from torch import Tensor

from ..graph.csc import CSC, check_range
from ..graph.fields import FieldVersion, check_files
from ..system.arrays import Array
from ..system.threads import fork_lock

if TYPE_CHECKING:
    from ..graph.graph import EdgeType, Graph

EdgeField = Callable[["EdgeType", str], "Tensor | None"]
"""Returns an edge field by edge type and name, in the order of edge ids; None if there is none."""

T = TypeVar("T")
_MOST_VERSIONS = 4  # values kept per CSC: for a few fields in turn, or copies of a changing one


class MadeOfFields(Generic[T]):
    """Caches values derived from a CSC and its fields, the last few for each CSC; thread-safe.

    A value is derived again if a field was written in place or replaced; at every call if a field
    is an inference tensor, whose writes are not tracked.
    """

    def __init__(self) -> None:
        self._lock = fork_lock()
        self._versions: weakref.WeakKeyDictionary[CSC, _Versions[T]] = weakref.WeakKeyDictionary()

    def get(
        self, csc: CSC, fields: Sequence[Tensor], make: Callable[[], T], *, kind: str = ""
    ) -> T:
        """The value that ``make`` derives from the fields; other threads wait while it is made.

        ``make`` must not keep the CSC alive. ``kind`` distinguishes values derived from the same
        fields.
        """
        # For the look-up alone: `make` runs under the lock of its CSC, so that other CSCs do not
        # wait. The two locks are never held at once.
        with self._lock:
            versions = self._versions.setdefault(csc, _Versions())
        return versions.get(kind, fields, make)


class _Versions(Generic[T]):
    """Values derived for one CSC, the newest first."""

    def __init__(self) -> None:
        self._lock = fork_lock()
        self._known: list[tuple[str, list[FieldVersion], T]] = []

    def get(self, kind: str, fields: Sequence[Tensor], make: Callable[[], T]) -> T:
        now = [FieldVersion.of(values) for values in fields]
        with self._lock:
            # Drop values whose fields were written or freed; they cannot be asked for again.
            self._known = [known for known in self._known if _may_return(known[1], now)]
            for known_kind, known, made in self._known:
                if known_kind == kind and known == now:
                    return made
            for values in fields:
                check_files(values)
            fresh = make()
            self._known = [(kind, now, fresh), *self._known][:_MOST_VERSIONS]
            return fresh


def _may_return(known: Sequence[FieldVersion], now: Sequence[FieldVersion]) -> bool:
    """Whether fields of these versions may be asked for again, as none was written or freed."""
    for old in known:
        storage = old.storage()
        if storage is None:
            return False
        for new in now:
            is_same_tensor = storage is new.storage() and old.layout == new.layout
            if is_same_tensor and old != new:
                return False
    return True


class KnownFields(Generic[T]):
    """Caches what a sampler derived from the fields of one name, for the last graph.

    Derived again if one of them was written or replaced.
    """

    def __init__(self) -> None:
        self._known: tuple[Any, list[FieldVersion | None], T] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # Without the values: a sampler in another process derives them again.
        return type(self), ()

    def get(
        self, graph: Graph, name: str, field: EdgeField | None, make: Callable[[EdgeField], T]
    ) -> T:
        """The value that ``make`` derives from the fields ``name``.

        Thread-safe; several threads may derive it at once.
        """
        if field is not None:  # its values may change unseen, so nothing is cached
            return make(field)
        fields = graph.fields_named(name)
        now = [FieldVersion.of(values) if isinstance(values, Tensor) else None for values in fields]
        known = self._known
        if known is not None and known[0]() is graph and known[1] == now:
            return known[2]
        for values in fields:
            if values is not None:
                check_files(values)
        made = make(lambda edge_type, name: graph.edge_fields(edge_type).get(name))
        self._known = weakref.ref(graph), now, made
        return made


def check_column(
    name: str, values: Any, dtypes: tuple[torch.dtype, ...], kind: str, count: int, owner: str
) -> None:
    """Check that values are ``count`` numbers of these dtypes on the CPU.

    ``kind`` and ``owner`` are words for errors.

    Raises:
        TypeError: They are of another type or dtype, or not on the CPU.
        ValueError: They have another shape.
    """
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
# Bounds of float64 weights, so that neither keys, which divide by them, nor running sums overflow.
_LEAST = 1e-290
_MOST = 1e290


class EdgeWeights:
    """Weights of a CSC's edges, as a private copy that later writes to the field do not change.

    Edges of weight 0 are left out. If all positive weights are equal (as in a mask), no weights are
    kept. Else the tables for draws take another 0.75 bytes per edge; they are made on first use.
    With zeros among the weights, the positions of positive ones take 4 or 8 bytes each, plus an
    ``indptr``.

    Args:
        csc: The edges; not kept alive.
        weights: Shape ``(num_edges,)``, float32, float64 or bool, in CSC order, finite and not
            negative. It is changed.

    Attributes:
        num_edges: Number of edges of the CSC, including those of weight 0.
        kept: The edges of positive weight, as a CSC whose ``indices`` are positions in the original
            one; None if all weights are positive.
        values: Shape ``(num_positive,)``, float32 or float64, by position; None if all positive
            weights are equal.
    """

    def __init__(self, csc: CSC, weights: Tensor) -> None:
        self.num_edges: int = csc.num_edges
        positive = int(torch.count_nonzero(weights))
        self.kept: CSC | None = None
        if positive < csc.num_edges:
            self.kept = _keep_positive(csc, weights, positive)
            weights = weights[:positive]
        equal = positive == 0 or weights.dtype == torch.bool or bool(weights.min() == weights.max())
        self.values: Tensor | None = weights
        if equal:
            self.values = None
        elif self.kept is not None:
            # Not a slice, which would keep the memory of all weights.
            self.values = weights.clone()
        self._indptr = (csc if self.kept is None else self.kept).indptr
        self._lock = fork_lock()
        self._memo: dict[Any, Any] = {}

    @property
    def num_positive(self) -> int:
        """Number of edges of positive weight."""
        return self.num_edges if self.kept is None else self.kept.num_edges

    @property
    def nbytes(self) -> int:
        """Bytes of memory held now."""
        held = [self.values]
        if self.kept is not None:
            held += [self.kept.indptr, self.kept.indices]
        tables: int = sum(array.nbytes for array in self._memo.get("tables", ()))
        return sum(tensor.nbytes for tensor in held if tensor is not None) + tables

    def tables(self) -> tuple[Array, Array]:
        """Running sums and guide of the rows of ``values``, see ``kernels/weighted.py``; made on
        first use, thread-safe."""
        tables: tuple[Array, Array] = self.memoized("tables", self._fill_tables)
        return tables

    def memoized(self, name: Any, make: Callable[[], Any]) -> Any:
        """The value of ``make``, made once per name and kept with the weights; thread-safe."""
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
        """The weights of all edges in CSC order, including zeros, shape ``(num_edges,)``, float32
        or float64.

        If all positive weights are equal, they are 1. Made on first use, and kept.
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
    """Move the positive weights to the front; returns their edges as a CSC of positions."""
    from .kernels import weighted

    dtype = csc.indices.dtype
    indptr = torch.zeros(len(csc.indptr), dtype=dtype, device="cpu")
    positions = torch.empty(count, dtype=dtype, device="cpu")
    weighted.keep_positive(csc.indptr.numpy(), weights.numpy(), indptr.numpy(), positions.numpy())
    return CSC(indptr, positions, csc.num_edges)


_made: MadeOfFields[EdgeWeights] = MadeOfFields()


def edge_weights(csc: CSC, values: Tensor, *, name: str = "values") -> EdgeWeights:
    """The weights of a CSC's edges, cached while both CSC and field are alive; see
    :class:`MadeOfFields`.

    Args:
        csc: The edges.
        values: Shape ``(num_edges,)`` or ``(num_edges, 1)``, in the order of edge ids, on the CPU;
            float16, bfloat16, float32, float64, bool, uint8 or a signed integer dtype. Finite and
            not negative. Positive float64 weights are clamped to [1e-290, 1e290].
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
    # Always a copy: the user may write to the field while a batch is sampled.
    weights = values.clone() if csc.edge_ids is None else values.index_select(0, csc.edge_ids)
    if weights.dtype == torch.bool or len(weights) == 0:
        return weights
    dtype = torch.float32 if weights.dtype in _NARROW else torch.float64
    weights = weights.to(dtype)
    low, high = (float(bound) for bound in torch.aminmax(weights))
    # Negated, so that NaN is refused.
    if not (low >= 0 and high < float("inf")):
        is_right = (weights >= 0) & (weights < float("inf"))
        wrong = weights[~is_right]
        raise ValueError(f"{name} must be finite and not negative, got {float(wrong[0])}")
    if weights.dtype == torch.float64 and not (low >= _LEAST and high <= _MOST):
        weights = torch.where(weights > 0, weights.clamp(_LEAST, _MOST), weights)
    return weights.contiguous()
