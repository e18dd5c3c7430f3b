"""Times of any dtype as ordered integers (*ticks*), time windows, edges sorted by time, and the
time limits of a batch's trees."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..errors import FormatError
from ..graph.csc import CSC, check_range, no_ids
from ..system.arrays import Array, Int64Array
from .edge_values import MadeOfFields, check_column
from .hop import IDS, KNOWN_EDGES, KNOWN_IDS

if TYPE_CHECKING:
    from ..graph.graph import EdgeType, Graph
    from .edge_values import EdgeField

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


def check_time_fields(
    graph: Graph,
    name: str,
    field: EdgeField,
    window: float | Mapping[EdgeType, float] | None = None,
) -> dict[str, torch.dtype]:
    """The dtypes of all vertex and edge fields of this name, by a description of each.

    Raises:
        TypeError: Some are floats and others integers.
        ValueError: There is no such field; ``window`` has an edge type without times; or fields are
            known to have different units.
    """
    of_edges = {etype: field(etype, name) for etype in graph.edge_types}
    of_nodes = {ntype: graph.node_fields(ntype).get(name) for ntype in graph.node_types}
    fields = {
        f"vertex field {name!r} of {t!r}": values
        for t, values in of_nodes.items()
        if values is not None
    }
    fields |= {
        f"edge field {name!r} of {t!r}": values
        for t, values in of_edges.items()
        if values is not None
    }
    if not fields:
        raise ValueError(f"time must be the name of a vertex or edge field, got {name!r}")
    for etype in window if isinstance(window, Mapping) else ():
        if etype not in of_edges:
            raise ValueError(
                f"time_window must name edge types among {graph.edge_types}, got {etype!r}"
            )
        if of_edges.get(etype) is None and of_nodes.get(etype[0]) is None:
            raise ValueError(f"time_window must name edge types with times, got {etype!r} without")
    dtypes = {owner: values.dtype for owner, values in fields.items() if isinstance(values, Tensor)}
    one_kind(dtypes)
    _check_units(graph, name)
    return dtypes


def _check_units(graph: Graph, name: str) -> None:
    """Raise ValueError if fields are known to have different units, such as seconds and
    microseconds."""
    notes = {t: graph.node_fields(t).notes.get(name) for t in graph.node_types}
    notes |= {"/".join(t): graph.edge_fields(t).notes.get(name) for t in graph.edge_types}
    units = {owner: note.unit for owner, note in notes.items() if note is not None and note.unit}
    if len(set(units.values())) > 1:
        got = ", ".join(f"{unit} of {owner!r}" for owner, unit in units.items())
        raise ValueError(f"times must all be in one unit, got {name!r} in {got}")


@dataclass(frozen=True, eq=False)
class TreeTimes:
    """The times of a batch's trees.

    Attributes:
        until: Shape ``(num_trees,)``, int64: upper limit of the ticks in each tree.
        of_seeds: Shape ``(num_seeds,)``, int64: the tree of each seed, over all types in the
            graph's order.
        floats: Whether the times were floats.
    """

    until: Tensor
    of_seeds: Tensor
    floats: bool

    @classmethod
    def of(
        cls,
        graph: Graph,
        name: str,
        dtypes: Mapping[str, torch.dtype],
        seeds: Mapping[str, Tensor],
        seed_times: Any,
        *,
        share: bool,
    ) -> TreeTimes:
        """One tree per seed, or with ``share`` one per time, in the order of time.

        Raises as ``SubgraphSampler.sample``.

        Args:
            graph: The graph.
            name: The vertex field with the seeds' own times.
            dtypes: Dtypes of the graph's times, see :func:`check_time_fields`.
            seeds: Seeds by type.
            seed_times: The seeds' times; None: their own.
            share: Whether seeds with the same time share a tree.
        """
        if seed_times is not None and not isinstance(seed_times, Tensor | Mapping):
            got = type(seed_times).__name__
            raise TypeError(f"seed_times must be a tensor or a mapping from vertex type, got {got}")
        given = (
            {graph.only_node_type: seed_times}
            if isinstance(seed_times, Tensor)
            else seed_times or {}
        )
        for ntype in given:
            if ntype not in seeds:
                raise KeyError(
                    f"seed_times must name types of seeds among {list(seeds)}, got {ntype!r}"
                )
        ticks = [no_ids()]
        kinds = dict(dtypes)
        for ntype in (t for t in graph.node_types if t in seeds):
            owner, times = _times_of(graph, name, ntype, seeds[ntype], given.get(ntype))
            ticks.append(known_ticks(owner, times))
            kinds[owner] = times.dtype
        floats = one_kind(kinds)
        until = torch.cat(ticks)
        if share:
            until, of_seeds = torch.unique(until, return_inverse=True)
        else:
            of_seeds = torch.arange(len(until), device="cpu")
        return cls(until, of_seeds, floats)

    def limits(self, trees: Array, window: float | None) -> dict[str, Array]:
        """The time limits of the edges of vertices in these trees, as arguments of ``Hop``."""
        limits = {"until": self.until.numpy()[trees]}
        since = self.starts(window)
        if since is not None:
            limits["since"] = since[trees]
        return limits

    @cached_property
    def _starts(self) -> dict[float | None, Array | None]:
        return {}

    def starts(self, length: float | None) -> Array | None:
        """Lower limit of each tree's ticks for a window of this length; None if there is none."""
        if length not in self._starts:
            starts = window_starts(self.until, length, self.floats)
            self._starts[length] = None if starts is None else starts.numpy()
        return self._starts[length]


@dataclass(frozen=True, eq=False)
class TimedEdges:
    """Times of all edges that a sampler draws from, as the kernels take them.

    Attributes:
        table: The table in the kernels' ``timed``, shape ``(num_edge_types, 4)``, int64.
        like: An empty array of the times' dtype.
        windows: Lengths of the time windows; window ``i`` is row ``i + 1`` of ``limits``. None: all
            known times.
        dtypes: Dtypes of the time fields, see ``check_time_fields``.
        held: Keeps the memory at the table's addresses alive.
    """

    table: Int64Array
    like: Array
    windows: Sequence[float | None]
    dtypes: Mapping[str, torch.dtype]
    held: Sequence[Any]

    @classmethod
    def of(cls, sampler: Any, graph: Graph, fanouts: Array, field: EdgeField) -> TimedEdges:
        """The times of the edge types that any hop draws from; raises as ``sample``.

        ``fanouts`` are those of the sampler's plan.
        """
        name = sampler.time or ""
        dtypes = check_time_fields(graph, name, field, sampler.time_window)
        edge_types = graph.types.edges
        drawn = [bool(of_type.any()) for of_type in fanouts.T]
        known: dict[int, EdgeTimes] = {}
        for place, etype in enumerate(edge_types):
            times = sampler.times(graph, etype, field) if drawn[place] else None
            if times is not None and times.num_edges:
                known[place] = times
        # The kernels take one dtype; if dtypes differ, narrow ones are converted.
        dtype = torch.int32
        if any(times.values.dtype == torch.int64 for times in known.values()):
            dtype = torch.int64
        table = np.zeros((len(edge_types), 4), dtype=np.int64)
        windows: dict[float | None, int] = {}
        held: list[Any] = []
        for place, times in known.items():
            values = times.values.to(dtype)
            marks = times.marks.to(dtype)
            held += [values, marks, times.edges]
            length = sampler.window(edge_types[place])
            row = 0
            if length is not None or times.has_missing:
                row = windows.setdefault(length, 1 + len(windows))
            table[place] = values.data_ptr(), marks.data_ptr(), 0, row
            if times.edges is not None:
                table[place, 2] = times.edges.data_ptr()
        like = torch.empty(0, dtype=dtype, device="cpu").numpy()
        return cls(table, like, list(windows), dtypes, held)

    @cached_property
    def _paired(self) -> list[int]:
        return [place for place, row in enumerate(self.table.tolist()) if row[2]]

    def leave_ids(self, csc: Any) -> None:
        """Note in the kernels' ``csc`` which types' sources and ids are read from pairs, which are
        not on disk; the positions of these edges become their ids."""
        # One number at a time is faster than NumPy's masks, since there are few types.
        for place in self._paired:
            csc[place, IDS] = 0
            csc[place, KNOWN_EDGES] = 0
            csc[place, KNOWN_IDS] = 0

    def limits(self, trees: TreeTimes) -> Int64Array:
        """The kernels' ``limits`` for a batch's trees, shape ``(1 + windows, trees)``, int64."""
        limits = np.empty((1 + len(self.windows), len(trees.until)), dtype=np.int64)
        limits[0] = trees.until.numpy()
        for row, length in enumerate(self.windows, 1):
            starts = trees.starts(length)
            limits[row] = MISSING if starts is None else starts
        return limits


def _times_of(graph: Graph, name: str, ntype: str, seeds: Tensor, times: Any) -> tuple[str, Tensor]:
    """The seeds' times, and their name for errors."""
    owner = f"seed_times[{ntype!r}]"
    if times is not None:
        return owner, as_times(owner, times, len(seeds), "seed")
    values = graph.node_fields(ntype).get(name)
    if values is None:
        raise ValueError(
            f"seed_times must be given for seeds of type {ntype!r}, which has no vertex field "
            f"{name!r}"
        )
    values = as_times(f"vertex field {name!r}", values, graph.num_nodes_of(ntype), "vertex")
    return f"vertex field {name!r} of the seeds", values[seeds]
