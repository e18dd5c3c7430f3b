"""Times of any dtype as ordered integers (*ticks*), time windows, and edges sorted by time."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..errors import FormatError
from ..graph.csc import CSC, check_range
from .edge_values import MadeOfFields, check_column

if TYPE_CHECKING:
    from ..graph.graph import EdgeType

_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, *_UNSIGNED)
_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
MISSING = -(2**63)
"""The ticks of a missing time, like NumPy's NaT."""
_LOW_BITS = 2**63 - 1
_MOST = sys.float_info.max


def as_times(name: str, values: Any, count: int, owner: str) -> Tensor:
    """Times as a 1-D tensor of their own dtype, not copied, one per ``owner``; raises as
    :func:`edge_times`."""
    dtypes = (*_INTEGERS, *_FLOATS)
    check_column(name, values, dtypes, "integers or floats", count, f"time per {owner}")
    return values.detach().reshape(-1)  # type: ignore[no-any-return]


def widened(name: str, times: Tensor) -> Tensor:
    """Times as int64 or float64; the same tensor if they are already.

    Raises:
        ValueError: An integer is 2**63 or more, or a float is so large that its dtype rounds.
    """
    if times.is_floating_point():
        check_unrounded(name, times)
        return times.to(torch.float64)
    wide = times.to(torch.int64)
    if times.dtype in _UNSIGNED and len(wide):
        least = int(wide.min())
        if least < 0:
            raise ValueError(f"{name} must be below 2**63, got {least + 2**64}")
    return wide


def check_unrounded(name: str, times: Tensor) -> None:
    """Check that floats are small enough for their dtype to tell integers apart.

    float32 rounds seconds since 1970 to multiples of 128, so that an edge would be drawn for a seed
    that it follows.

    Raises:
        ValueError: A float is above 2**53 (float64), 2**24 (float32), 2**11 (float16) or 2**8
            (bfloat16) in magnitude. Infinity is allowed, except in float16, where 65520 becomes it.
    """
    if times.dtype not in _FLOATS:
        return
    dtype = str(times.dtype).removeprefix("torch.")
    bits = round(math.log2(2 / torch.finfo(times.dtype).eps))
    is_rounded = times.abs() > 2**bits
    if times.dtype != torch.float16:
        is_rounded &= ~torch.isinf(times)
    if bool(is_rounded.any()):
        exact = "int64" if times.dtype == torch.float64 else "int64 or float64"
        raise ValueError(
            f"{name} must fit into the {bits} bits of {dtype}, which rounds larger times, got "
            f"{times[is_rounded][0].item()}: keep times as {exact} from the start"
        )


def ticks_of(name: str, times: Tensor) -> Tensor:
    """Times as int64 with the same order and the same equalities; NaN becomes ``MISSING``. May be
    the same tensor.

    Integers are unchanged, so the smallest int64 is missing, too. Floats become the bits of their
    float64, flipped for negative ones, which orders them. Raises as :func:`widened`.
    """
    wide = widened(name, times)
    return _ticks_of_floats(wide) if wide.is_floating_point() else wide


def _ticks_of_floats(times: Tensor) -> Tensor:
    bits = (times + 0.0).view(torch.int64)  # + 0.0 turns -0.0 into 0.0
    return _flipped(bits).masked_fill_(torch.isnan(times), MISSING)


def _flipped(bits: Tensor) -> Tensor:
    """Bits of float64 as integers in the order of the floats; its own inverse."""
    return torch.where(bits < 0, bits ^ _LOW_BITS, bits)


def known_ticks(name: str, times: Tensor) -> Tensor:
    """:func:`ticks_of` times of which none may be missing.

    Raises:
        ValueError: One is missing, or 2**63 or more.
    """
    ticks = ticks_of(name, times)
    missing = ticks == MISSING
    if bool(missing.any()):
        raise ValueError(f"{name} must not be missing (NaN or NaT), got {times[missing][0].item()}")
    return ticks


def time_bits(times: Tensor) -> Tensor:
    """Times as int64, to store them in a tensor with ids: integers unchanged, floats as the bits of
    their float64."""
    return widened("times", times).view(torch.int64)


def times_of_bits(bits: Tensor, floats: bool) -> Tensor:
    """The inverse of :func:`time_bits`, as int64 or float64."""
    return bits.contiguous().view(torch.float64) if floats else bits


def one_kind(dtypes: Mapping[str, torch.dtype]) -> bool:
    """Whether times are floats, given their dtypes by name.

    Raises:
        TypeError: Some are floats and others integers. A float cannot represent every integer, so
            comparisons could be wrong.
    """
    kinds = {name: dtype.is_floating_point for name, dtype in dtypes.items()}
    if len(set(kinds.values())) > 1:
        found = {name: str(dtype).removeprefix("torch.") for name, dtype in dtypes.items()}
        got = ", ".join(f"{dtype} in {name}" for name, dtype in found.items())
        raise TypeError(f"times must all be integers or all be floats, got {got}")
    return any(kinds.values())


def as_window(name: str, window: Any) -> float | dict[EdgeType, float] | None:
    """A checked time window: a length, or lengths by edge type, as int or float; None for none.

    Raises:
        TypeError: A length is not a number.
        ValueError: A length is 0, negative or NaN.
    """
    if isinstance(window, Mapping):
        return {etype: _length(f"{name}[{etype!r}]", length) for etype, length in window.items()}
    if window is None:
        return None
    return _length(name, window)


def _length(name: str, length: Any) -> float:
    if isinstance(length, bool) or not isinstance(length, int | float | np.integer | np.floating):
        raise TypeError(f"{name} must be a number, got {length!r}")
    if not length > 0:
        raise ValueError(f"{name} must be positive, got {length}")
    return int(length) if isinstance(length, int | np.integer) else float(length)


def window_starts(ticks: Tensor, length: float | None, floats: bool) -> Tensor | None:
    """Lower limits of time windows: ticks in the window before a time are above its limit.

    Exact, even if ``t - length`` is not representable in the times' dtype: a time is in the window
    if the true difference is below ``length``. So equal times are always in the window.

    Args:
        ticks: Times, shape ``(n,)``, as :func:`ticks_of` returns them.
        length: Length of the window.
        floats: Whether the times were floats.

    Returns:
        Shape ``(n,)``, int64; None if there is no limit.
    """
    if length is None or length == math.inf:
        return None
    if not floats:
        # For integers, t - s < length means s > t - ceil(length). 2**64 steps cover all of int64.
        steps = min(math.ceil(length), 2**64)
        if MISSING + steps > _LOW_BITS:
            return torch.full_like(ticks, MISSING)
        # The steps modulo 2**64 as a signed number; the difference wraps to the right result.
        signed = (steps + 2**63) % 2**64 - 2**63
        return torch.where(ticks < MISSING + steps, MISSING, ticks - signed)
    times = _flipped(ticks).view(torch.float64)
    # If the difference was rounded up, the limit is the next number below.
    most = min(length, _MOST)
    starts, rounded = _sum_with_error(times, torch.full_like(times, -float(most)))
    rest = int(most) - int(float(most)) if isinstance(most, int) else 0
    if rest:  # an integer above 2**53, which float64 has rounded
        exact, rounded = _sum_with_error(starts, rounded - rest)
        starts = torch.where(torch.isinf(starts), starts, exact)
    below = torch.nextafter(starts, torch.full_like(starts, -math.inf))
    starts = torch.where(rounded < 0, below, starts)
    # A length below the resolution of t leaves `starts` at t, which must still be in its window.
    return torch.minimum(_ticks_of_floats(starts), ticks - 1)


def _sum_with_error(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """The sum as float64, and what it lacks of the true one (Knuth's two-sum)."""
    total = first + second
    part = total - first
    return total, (first - (total - part)) + (second - part)


class EdgeTimes:
    """Times of a CSC's edges, as a private copy that later writes to the field do not change.

    Takes 4 bytes per edge if all times are known and fit into 32 bits, else 8, plus a 32nd of that.
    If rows are not in the order of time, a copy of the edges in that order takes another 8 bytes
    per edge, or 16 for int64 ids.

    Args:
        csc: The edges; not kept alive.
        times: Shape ``(num_edges,)``, int64, in CSC order; ``MISSING`` for missing times. May be
            changed.

    Attributes:
        values: Shape ``(num_edges,)``, int32 or int64: the times of each row, ascending, so missing
            ones come first.
        marks: Every 32nd of ``values``.
        edges: Shape ``(num_edges, 2)``, in the dtype of the CSC's ids: source and id of the edge of
            each of ``values``; equal times are in CSC order. In pairs, so that a drawn edge reads
            one cache line. None if rows were in the order of time.
        has_missing: Whether any time is missing.
    """

    def __init__(self, csc: CSC, times: Tensor) -> None:
        from ..graph import _csc
        from .kernels import times as _times

        low = 0
        high = 0
        if len(times):
            low, high = (int(bound) for bound in torch.aminmax(times))
        self.has_missing: bool = low == MISSING
        # 32 bits halve the memory and the cache lines to search. Missing times do not fit.
        fits = low >= -(2**31) and high < 2**31
        self.values: Tensor = times.to(torch.int32) if fits else times
        self.edges: Tensor | None = None
        indptr = csc.indptr.numpy()
        if not _csc.rows_are_sorted(indptr, self.values.numpy()):
            order = torch.empty(len(times), dtype=csc.indices.dtype, device="cpu")
            _times.sort_rows(indptr, self.values.numpy(), order.numpy())
            self.edges = torch.empty((len(times), 2), dtype=order.dtype, device="cpu")
            self.edges[:, 0] = csc.indices[order]
            if csc.edge_ids is not None:
                check_range("edge_ids", csc.edge_ids, csc.num_edges, FormatError)
                order = csc.edge_ids[order]
            self.edges[:, 1] = order
        self.marks: Tensor = self.values[:: _times.BLOCK].clone()

    @property
    def num_edges(self) -> int:
        """Number of edges of the CSC."""
        return len(self.values)

    @property
    def nbytes(self) -> int:
        """Bytes of memory held."""
        in_order = 0 if self.edges is None else self.edges.nbytes
        return self.values.nbytes + self.marks.nbytes + in_order

    def in_order(self, csc: CSC) -> CSC:
        """``csc``, whose times these are, with rows in the order of ``values``."""
        if self.edges is None:
            return csc
        return CSC(csc.indptr, self.edges[:, 0], csc.num_src, self.edges[:, 1])

    def __repr__(self) -> str:
        return f"EdgeTimes(num_edges={self.num_edges}, sorted={self.edges is None})"


_made: MadeOfFields[EdgeTimes] = MadeOfFields()


def edge_times(
    csc: CSC, of_edges: Any = None, of_sources: Any = None, *, name: str = "times"
) -> EdgeTimes:
    """The times of a CSC's edges, cached while CSC and fields are alive; see :class:`MadeOfFields`.

    Args:
        csc: The edges.
        of_edges: Shape ``(num_edges,)`` or ``(num_edges, 1)``, in the order of edge ids, on the
            CPU: integers of any dtype, bfloat16, or floats from float16 to float64. None: edges
            have no times of their own.
        of_sources: The same for the source vertices. If both are given, an edge's time is the later
            one, and missing if either is missing.
        name: Name of the fields, for errors.

    Raises:
        TypeError: Times are not integers or floats, or not on the CPU.
        ValueError: There is not one time per edge or vertex, one is 2**63 or more, or floats are
            rounded, see :func:`check_unrounded`.
        FormatError: The CSC is damaged.
    """
    edge_field = f"edge field {name!r}"
    vertex_field = f"vertex field {name!r}"
    fields = []
    if of_edges is not None:
        fields.append(as_times(edge_field, of_edges, csc.num_edges, "edge"))
    if of_sources is not None:
        fields.append(as_times(vertex_field, of_sources, csc.num_src, "vertex"))

    def make() -> EdgeTimes:
        ticks = []
        if of_edges is not None:
            ticks.append(_by_edge(csc, ticks_of(edge_field, fields[0])))
        if of_sources is not None:
            ticks.append(_by_source(csc, ticks_of(vertex_field, fields[-1])))
        return EdgeTimes(csc, _latest(ticks))

    return _made.get(csc, fields, make, kind=f"{of_edges is not None}, {of_sources is not None}")


def _latest(ticks: Sequence[Tensor]) -> Tensor:
    """The largest of several ticks of each edge; missing if one is missing."""
    latest, *others = ticks
    for other in others:
        missing = (latest == MISSING) | (other == MISSING)
        latest = torch.maximum(latest, other).masked_fill_(missing, MISSING)
    return latest


def _by_edge(csc: CSC, ticks: Tensor) -> Tensor:
    csc.check_rows()
    if csc.edge_ids is None:
        return ticks.clone()
    check_range("edge_ids", csc.edge_ids, csc.num_edges, FormatError)
    return ticks.index_select(0, csc.edge_ids)


def _by_source(csc: CSC, ticks: Tensor) -> Tensor:
    csc.check_rows()
    check_range("indices", csc.indices, csc.num_src, FormatError)
    return ticks.index_select(0, csc.indices)
