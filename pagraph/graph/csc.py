"""CSC: the in-edges of one edge type, made from edge lists."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..errors import FormatError
from ..system.arrays import Array
from ..system.threads import fork_lock
from .csc_pages import CSCPages, scattered
from .mapped import MappedFile

if TYPE_CHECKING:
    from collections.abc import Iterable

_INT32_MAX = 2**31 - 1
# Guards the making of every CSC's _scattered. Held while files are mapped again, which takes the
# lock of `mapped` and no other.
_lock = fork_lock()
# How often a CSC checks whether its files were changed. A check takes 5 us, a small batch 50 us.
_CHECK_SECONDS = 0.05
_CHECKED = attrgetter("checked")
# `_page_starts` keeps the first edge of every block of this many rows: a page of int32 offsets.
_ROWS_PER_BLOCK = 1024
_ID_DTYPES = (torch.int32, torch.int64)
# Attributes that can be recomputed, or that belong to this process's mappings.
_NOT_PICKLED = ("_ascending", "_files", "_page_starts", "_scattered", "pages")
_NO_IDS = {
    torch.bool,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
}


def id_dtype(num_nodes: int, num_edges: int) -> torch.dtype:
    """The narrowest id dtype that holds every vertex id and every edge position.

    >>> id_dtype(10, 100)
    torch.int32
    >>> id_dtype(10, 2**31)
    torch.int64
    """
    return torch.int32 if max(num_nodes, num_edges) <= _INT32_MAX else torch.int64


@dataclass(frozen=True, eq=False, repr=False)
class CSC:
    """The in-edges of one edge type, compressed by destination.

    The in-neighbours of ``v`` are ``indices[indptr[v]:indptr[v + 1]]``. Self-loops and parallel
    edges are kept.

    Args:
        indptr: Shape ``(num_dst + 1,)``, int32 or int64, non-decreasing from 0 to the number of
            edges.
        indices: Shape ``(num_edges,)``, the same dtype, source ids.
        num_src: Number of source vertices; ``indices`` are below it.
        edge_ids: Shape ``(num_edges,)``, int32 or int64: the caller's id of each edge. Default:
            its position.
        pages: Pages of the arrays on disk, which batches request before they read; see
            :attr:`scattered`. Default: no array is on disk.

    Raises:
        TypeError: An array is not a 1-D int32 or int64 CPU tensor.
        ValueError: ``indptr`` does not fit ``indices``, or ``edge_ids`` has another length.
    """

    indptr: Tensor
    indices: Tensor
    num_src: int
    edge_ids: Tensor | None = None
    pages: CSCPages | None = None

    def __post_init__(self) -> None:
        _check_ids("indptr", self.indptr)
        _check_ids("indices", self.indices)
        if self.edge_ids is not None:
            _check_ids("edge_ids", self.edge_ids)
        if self.indices.dtype != self.indptr.dtype:
            raise TypeError(
                f"indices must have indptr's dtype {self.indptr.dtype}, got {self.indices.dtype}"
            )
        if len(self.indptr) == 0:
            raise ValueError("indptr must have at least 1 element, got 0")
        first = int(self.indptr[0])
        last = int(self.indptr[-1])
        if first != 0 or last != len(self.indices):
            raise ValueError(
                f"indptr must run from 0 to the number of edges {len(self.indices)}, got {first} "
                f"to {last}"
            )
        if self.edge_ids is not None and len(self.edge_ids) != len(self.indices):
            raise ValueError(
                f"edge_ids must have one entry per edge ({len(self.indices)}), got "
                f"{len(self.edge_ids)}"
            )

    @classmethod
    def from_coo(
        cls,
        src: Any,
        dst: Any,
        num_nodes: int | tuple[int, int] | None = None,
        *,
        names: tuple[str, str] = ("src", "dst"),
    ) -> CSC:
        """Build from the two ends of every edge; see ``Graph.from_coo``.

        ``num_nodes`` may be a pair, the numbers of sources and of destinations, for ends of
        different types. ``names`` are the names of the ends in errors.
        """
        src = as_ids(names[0], src)
        dst = as_ids(names[1], dst)
        if len(src) != len(dst):
            raise ValueError(
                f"{names[0]} and {names[1]} must have the same length, got {len(src)} and "
                f"{len(dst)}"
            )
        if num_nodes is None:
            num_nodes = 1 + max(id_range(src)[1], id_range(dst)[1])
        num_src, num_dst = num_nodes if isinstance(num_nodes, tuple) else (num_nodes, num_nodes)
        if min(num_src, num_dst) < 0:
            raise ValueError(f"num_nodes must be at least 0, got {num_nodes}")
        check_width("num_nodes", [num_src, num_dst], ValueError)
        check_range(names[0], src, num_src)
        check_range(names[1], dst, num_dst)
        return _compress(src, dst, num_src, num_dst)

    def __repr__(self) -> str:
        dtype = str(self.indices.dtype).removeprefix("torch.")
        counts = f"num_src={self.num_src}, num_dst={self.num_dst}, num_edges={self.num_edges}"
        return f"CSC({counts}, ids={dtype})"

    @property
    def num_dst(self) -> int:
        """Number of destination vertices."""
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        """Number of edges."""
        return len(self.indices)

    @property
    def arrays(self) -> tuple[Array, Array]:
        """``indptr`` and ``indices`` as NumPy arrays, for kernels."""
        return self.indptr.numpy(), self.indices.numpy()

    @property
    def scattered(self) -> CSC:
        """The same edges for random access: with :attr:`pages` if large arrays must be read from
        disk.

        Passes over all edges use this CSC itself, for which the system reads ahead. The arrays must
        not be written to.

        Raises:
            FormatError: A file was changed since it was opened.
        """
        files = self._files
        if files and time.monotonic() - min(map(_CHECKED, files)) > _CHECK_SECONDS:
            self.check_files()
        own = self._scattered
        if own is None:
            return self
        if own.pages is not None:
            own.pages.look()
        return own

    @property
    def disk_pages(self) -> CSCPages | None:
        """Pages of the :attr:`scattered` arrays; None if no large array is in a file."""
        own = self._scattered
        return self.pages if own is None else own.pages

    @cached_property
    def _files(self) -> list[MappedFile]:
        """The mapped files that the arrays lie in."""
        arrays = [self.indptr, self.indices, *([] if self.edge_ids is None else [self.edge_ids])]
        return [file for file in map(MappedFile.of, arrays) if file is not None]

    def check_files(self) -> None:
        """Raise FormatError if a file of the arrays was changed since it was opened."""
        for file in self._files:
            file.check()

    @cached_property
    def _scattered(self) -> CSC | None:
        with _lock:
            # cached_property takes no lock itself. All threads must get the same CSC, because the
            # pages that are kept in memory belong to it.
            if "_scattered" not in vars(self):
                vars(self)["_scattered"] = self._map_scattered()
            made: CSC | None = vars(self)["_scattered"]
            return made

    def _map_scattered(self) -> CSC | None:
        if self.pages is not None:
            return None  # this is the scattered one
        arrays = (self.indptr, self.indices, self.edge_ids)
        if not all(array is None or array.is_contiguous() for array in arrays):
            # Kernels of batches read the arrays by their addresses.
            indptr, indices, edge_ids = (
                None if array is None else array.contiguous() for array in arrays
            )
            assert indptr is not None and indices is not None
            return CSC(indptr, indices, self.num_src, edge_ids)
        found = scattered(self.indptr, self.indices, self.edge_ids)
        if found is None:
            return None
        indptr, indices, edge_ids, pages = found
        return CSC(indptr, indices, self.num_src, edge_ids, pages)

    def __getstate__(self) -> dict[str, Any]:
        """The state to pickle; mapped arrays are pickled once, as plain memory."""
        state = dict(vars(self))
        for name in _NOT_PICKLED:
            state.pop(name, None)
        return state

    def validate(self) -> None:
        """Check every id, at the first call only. Called before all edges are counted or moved.

        Raises:
            FormatError: A file of the arrays was changed since it was opened.
            ValueError: ``indptr`` decreases somewhere, or a source id is outside ``[0, num_src)``.
        """
        self.check_files()
        _ = self._is_valid

    def check_rows(self) -> None:
        """Raise FormatError if ``indptr`` decreases; unlike :meth:`validate` at every call."""
        from . import _csc

        self.check_files()
        if not _csc.is_sorted(self.indptr.numpy()):
            raise FormatError("the graph's indptr must be non-decreasing: damaged file?")

    @cached_property
    def _is_valid(self) -> bool:
        from . import _csc

        # Kernels index by ids: with those of a corrupt file they would write out of bounds.
        if not _csc.is_sorted(self.indptr.numpy()):
            raise ValueError("indptr must be non-decreasing, got a decreasing entry")
        check_range("indices", self.indices, self.num_src)
        return True

    def destinations(self) -> Tensor:
        """Destination of every edge in CSC order, shape ``(num_edges,)``."""
        from . import _csc

        self.validate()
        out = torch.empty(self.num_edges, dtype=self.indices.dtype, device="cpu")
        _csc.expand_indptr(self.indptr.numpy(), out.numpy())
        return out

    def transpose(self) -> CSC:
        """The out-edges as a CSC: the graph reversed."""
        flipped = _compress(self.destinations(), self.indices, self.num_dst, self.num_src)
        if self.edge_ids is None:
            return flipped
        # Without edge_ids the sources were in order already, so every edge kept its position.
        ids = self.edge_ids if flipped.edge_ids is None else self.edge_ids[flipped.edge_ids.long()]
        return CSC(flipped.indptr, flipped.indices, flipped.num_src, ids)

    @property
    def with_ascending_rows(self) -> CSC:
        """The same edges, each row sorted by source; built at the first call and kept."""
        made = self._ascending
        return self if made is None else made

    @cached_property
    def _ascending(self) -> CSC | None:
        from . import _csc

        self.validate()
        if _csc.rows_are_sorted(*self.arrays):
            return None  # not self, which would be a reference cycle
        return self.transpose().transpose()  # two stable counting sorts, by destination and source

    def positions_of(self, edge_ids: Tensor) -> Tensor:
        """Positions in ``indices`` of edges, given by id: shape ``(n,)``, the dtype of ``indices``.

        The first call inverts ``edge_ids``, and keeps 4 or 8 bytes an edge.

        Raises:
            IndexError: A given id is outside ``[0, num_edges)``.
            ValueError: Two edges of the graph have the same id, or one has an id outside of that.
        """
        check_range("edge ids", edge_ids, self.num_edges, IndexError)
        if self.edge_ids is None:
            return edge_ids.to(self.indices.dtype)
        return self._position_by_id[edge_ids.long()]

    @cached_property
    def _position_by_id(self) -> Tensor:
        inverse = torch.empty(self.num_edges, dtype=self.indices.dtype, device="cpu")
        inverse[self.places()] = torch.arange(self.num_edges, dtype=inverse.dtype, device="cpu")
        return inverse

    def places(self) -> Tensor:
        """A copy of the edge ids, int64, checked to be a permutation.

        Raises:
            ValueError: An id is outside ``[0, num_edges)``, or two edges have the same.
        """
        if self.edge_ids is None:
            return torch.arange(self.num_edges, device="cpu")
        ids = self.edge_ids.to(torch.int64, copy=True)
        check_range("edge_ids", ids, self.num_edges)
        is_taken = torch.zeros(self.num_edges, dtype=torch.bool, device="cpu")
        is_taken[ids] = True
        if not is_taken.all():
            free = int((~is_taken).nonzero()[0])
            raise ValueError(
                f"edge_ids must be distinct, got one of them twice and none equal to {free}"
            )
        return ids

    def ends_by_id(self) -> Tensor:
        """Both ends of every edge in the order of the edge ids, shape ``(2, num_edges)``, int64.

        Raises:
            ValueError: As :meth:`validate` and :meth:`places`.
        """
        ends = torch.empty((2, self.num_edges), dtype=torch.int64, device="cpu")
        places = slice(None) if self.edge_ids is None else self.places()
        ends[0, places] = self.indices.long()
        ends[1, places] = self.destinations().long()
        return ends

    def copy(self, dtype: torch.dtype | None = None) -> CSC:
        """The same edges, without ids, in new memory and checked: for libraries that check nothing.

        Raises:
            ValueError: As :meth:`validate`.
        """
        dtype = self.indptr.dtype if dtype is None else dtype
        indptr = self.indptr.to(dtype, copy=True)
        made = CSC(indptr, self.indices.to(dtype, copy=True), self.num_src)
        made.validate()
        return made

    def ids_at(self, positions: Tensor) -> Tensor:
        """Ids of the edges at ``positions``, int32 or int64."""
        own = self.scattered
        if own.edge_ids is None:
            return positions
        if own.pages is not None:
            own.pages.need_ids(positions.numpy())
        return own.edge_ids[positions.long()]

    def ends_at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Source and destination ids of the edges at ``positions``, both in the dtype of
        ``indices``."""
        positions = positions.to(self.indptr.dtype)
        own = self.scattered
        if own.pages is not None:
            return self._ends_on_disk(own, own.pages, positions)
        dst = torch.searchsorted(self.indptr, positions, right=True) - 1
        return self.indices[positions.long()], dst.to(self.indices.dtype)

    def _ends_on_disk(self, own: CSC, pages: CSCPages, positions: Tensor) -> tuple[Tensor, Tensor]:
        """:meth:`ends_at` from disk.

        A bisection of all offsets would read a dozen pages for each edge, one after the other. So
        it bisects the first edges of the blocks, which are in memory, and then one block.
        """
        from . import _csc

        pages.need_edges(positions.numpy())
        blocks = torch.searchsorted(self._page_starts, positions, right=True) - 1
        begins = (blocks * _ROWS_PER_BLOCK).numpy()
        pages.need_offsets(begins, _ROWS_PER_BLOCK + 1)
        dst = torch.empty(len(positions), dtype=self.indices.dtype, device="cpu")
        _csc.find_rows(own.indptr.numpy(), positions.numpy(), begins, _ROWS_PER_BLOCK, dst.numpy())
        return own.indices[positions.long()], dst

    @cached_property
    def _page_starts(self) -> Tensor:
        """First edge of each block of rows."""
        return self.indptr[::_ROWS_PER_BLOCK].clone()

    @cached_property
    def longest_row(self) -> int:
        """Most in-edges of one vertex."""
        return int(torch.diff(self.indptr).max()) if self.num_dst else 0

    @cached_property
    def source_counts(self) -> Tensor:
        """Out-degree of each source vertex, shape ``(num_src,)``, int64."""
        self.validate()
        return _count(self.indices, self.num_src)

    @cached_property
    def loop_counts(self) -> Tensor:
        """Number of self-loops of each vertex, shape ``(num_dst,)``, int32."""
        from . import _csc

        self.validate()
        counts = torch.zeros(self.num_dst, dtype=torch.int32, device="cpu")
        _csc.count_loops(*self.arrays, counts.numpy())
        return counts


def all_scattered(cscs: Iterable[CSC]) -> list[CSC]:
    """:attr:`CSC.scattered` of each, without a call for those that are in memory."""
    found = []
    for csc in cscs:
        known = vars(csc)
        # Both are cached properties. Where one has no value yet, `scattered` computes it.
        in_memory = known.get("_scattered", csc) is None and not known.get("_files", True)
        found.append(csc if in_memory else csc.scattered)
    return found


def _check_ids(name: str, value: Any) -> None:
    if not isinstance(value, Tensor) or value.dtype not in _ID_DTYPES:
        got = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(f"{name} must be an int32 or int64 tensor, got {got}")
    if value.dim() != 1:
        raise ValueError(f"{name} must be 1-D, got shape {tuple(value.shape)}")
    if value.device.type != "cpu":
        raise TypeError(f"{name} must be on the CPU, got {value.device}")


def check_width(name: str, value: Any, error: type[Exception]) -> None:
    """Raise ``error`` for an integer beyond 64 bits, of which NumPy makes a float or an object.

    Called once other checks have failed, or for unsigned integers.
    """
    array = np.asarray(value)
    if array.dtype.kind == "u":
        numbers = [int(array.max())] if array.size else []
    else:
        numbers = [each for each in np.asarray(value, object).flat if isinstance(each, int)]
    for number in numbers:
        if not -(2**63) <= number < 2**63:
            bits = number.bit_length()
            # Python writes no integer of more than 4300 digits.
            got = str(number) if bits < 1000 else f"one of {bits:,} bits"
            raise error(f"{name} must fit into 64 bits, got {got}")


def as_ids(name: str, value: Any, error: type[Exception] = ValueError) -> Tensor:
    """An integer array or list as a 1-D contiguous int32 or int64 tensor.

    Raises TypeError for anything else, and ``error`` for an integer beyond 64 bits.
    """
    if isinstance(value, Tensor) and value.dtype == torch.uint64:
        value = value.cpu().numpy()
    if not isinstance(value, Tensor):
        try:
            array: Array = np.asarray(value)
        except (RuntimeError, ValueError) as found:  # tensors in a list, rows of several lengths
            raise TypeError(
                f"{name} must hold integers, got a {type(value).__name__}: {found}"
            ) from None
        if array.size == 0:
            array = array.astype(np.int64)
        if array.dtype.kind != "i":
            check_width(name, value, error)
        if array.dtype.kind not in "iu":
            raise TypeError(f"{name} must hold integers, got {array.dtype}")
        dtype = np.int32 if array.dtype == np.int32 else np.int64
        array = np.ascontiguousarray(array, dtype=dtype)
        value = torch.from_numpy(writeable(array))
    elif value.dtype not in _ID_DTYPES:
        if value.is_floating_point() or value.dtype == torch.bool or value.is_complex():
            raise TypeError(f"{name} must hold integers, got {value.dtype}")
        value = value.long()
    tensor: Tensor = value.contiguous()
    if tensor.dim() != 1:
        raise ValueError(f"{name} must be 1-D, got shape {tuple(tensor.shape)}")
    return tensor


def no_ids() -> Tensor:
    """No ids at all, shape ``(0,)``, int64."""
    return torch.empty(0, dtype=torch.int64, device="cpu")


def writeable(array: Array) -> Array:
    """The array, or a copy if it is read-only, since torch has no read-only tensors."""
    return array if array.flags.writeable else array.copy()


def id_range(ids: Tensor) -> tuple[int, int]:
    """Smallest and largest id; ``(0, -1)`` if there are no ids."""
    if len(ids) == 0:
        return 0, -1
    low, high = torch.aminmax(ids)
    return int(low), int(high)


def check_range(name: str, ids: Tensor, limit: int, error: type[Exception] = ValueError) -> None:
    """Raise ``error`` unless every id is in ``[0, limit)``.

    Raises TypeError for anything but integers, ValueError unless they are 1-D.
    """
    if not isinstance(ids, Tensor) or ids.dtype in _NO_IDS:
        got = ids.dtype if isinstance(ids, Tensor) else type(ids).__name__
        raise TypeError(f"{name} must be a tensor of integers, got {got}")
    if ids.dim() != 1:
        raise ValueError(f"{name} must be 1-D, got shape {tuple(ids.shape)}")
    low, high = id_range(ids)
    if low < 0 or high >= limit:
        raise error(f"{name} must be in [0, {limit}), got {low if low < 0 else high}")


def _count(ids: Tensor, limit: int) -> Tensor:
    from . import _csc

    counts = torch.zeros(limit, dtype=torch.int64, device="cpu")
    _csc.count_degrees(ids.numpy(), counts.numpy())
    return counts


FEW_EDGES = 2**15
"""Up to this many edges are sorted by torch, with the same bits as the kernels'. Torch takes 1 ms
for them and the kernels 0.1 ms, but importing the kernels takes half a second."""


def _compress_few(src: Tensor, dst: Tensor, num_src: int, num_dst: int, dtype: torch.dtype) -> CSC:
    # A copy, because a mapped file may change between the check and the use.
    dst = dst.clone()
    low, high = id_range(dst)
    if low < 0 or high >= num_dst:
        raise FormatError("the graph's ids must be below the number of its vertices: damaged file?")
    order = torch.argsort(dst, stable=True)
    indptr = torch.zeros(num_dst + 1, dtype=dtype, device="cpu")
    indptr[1:] = torch.cumsum(torch.bincount(dst, minlength=num_dst), 0)
    # Edge ids of sorted edges would only count 0, 1, 2...
    in_order = bool((dst[1:] >= dst[:-1]).all())
    edge_ids = None if in_order else order.to(dtype)
    return CSC(indptr, src[order].to(dtype), num_src, edge_ids)


def _compress(src: Tensor, dst: Tensor, num_src: int, num_dst: int) -> CSC:
    """Stable counting sort of checked edges by destination."""
    dtype = id_dtype(max(num_src, num_dst), len(src))
    if len(src) <= FEW_EDGES:
        return _compress_few(src, dst, num_src, num_dst, dtype)
    from . import _csc

    indptr = torch.zeros(num_dst + 1, dtype=dtype, device="cpu")
    indptr[1:] = torch.cumsum(_count(dst, num_dst), 0)
    cursor = indptr[:-1].clone()
    indices = torch.empty(len(src), dtype=dtype, device="cpu")
    edge_ids = torch.empty(len(src), dtype=dtype, device="cpu")
    _csc.fill_csc(src.numpy(), dst.numpy(), cursor.numpy(), indices.numpy(), edge_ids.numpy())
    # Edge ids of sorted edges would only count 0, 1, 2...
    in_order = bool(_csc.is_sorted(dst.numpy()))
    return CSC(indptr, indices, num_src, None if in_order else edge_ids)
