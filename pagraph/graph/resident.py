"""Keeps the most read pages of a graph's edges in memory while the rest is read from disk."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from ..system.checks import as_integer
from ..system.threads import fork_lock

if TYPE_CHECKING:
    from .csc import CSC
    from .csc_pages import FilePages
    from .graph import EdgeType, Graph

Array = Any  # a NumPy array; its element type is a matter of the kernels

_PAGE = mmap.PAGESIZE
_CHUNK = 4096  # pages requested while the chunk before is copied: 16 MiB
_PICKS = 10.0  # edges read per visit if the sampler does not say: a common fan-out
_NO_VISITS: Array = np.empty(0, dtype=np.float32)
# One call at a time, since two would both spend the same budget. It is held while pages are read
# from disk. Only keep_resident and release_resident take it, batches never do.
_lock = fork_lock()


def topology_bytes(graph: Graph) -> int:
    """Bytes of the edge arrays that batches read from disk, the most that can be kept resident."""
    return sum(pages.pages.num_pages * _PAGE for _, _, pages in _files(graph))


def resident_bytes(graph: Graph) -> int:
    """Bytes of the graph's edges that :func:`keep_resident` keeps in memory now."""
    return sum(pages.pages.num_kept * _PAGE for _, _, pages in _files(graph))


def keep_resident(
    graph: Graph, nbytes: int, visits: Mapping[str, Tensor] | None = None, *, picks: float = _PICKS
) -> int:
    """Keep the pages of the graph's edges that batches read most in memory, up to ``nbytes``.

    They become private memory of this process at the same addresses. The system never drops them,
    and all loaders of the graph share them. Pages that are already kept count towards ``nbytes``; a
    call with fewer bytes than these changes nothing. Batches may be sampled meanwhile. The call
    reads the offsets of all rows, then the chosen pages in file order.

    Args:
        graph: The graph. Arrays in memory, or mapped by the user, are left alone.
        nbytes: Bytes in total; pages of 4 KiB are kept whole.
        visits: Vertex type to how often batches expand each vertex, on any scale, shape
            ``(num_nodes,)``. Default: in proportion to its in-degree.
        picks: Edges read when a vertex is expanded: the sampler's fan-out, infinity for all.

    Returns:
        Bytes that are now kept.

    Raises:
        ValueError: ``nbytes`` is negative, or the visits are not one number per vertex.
        FormatError: A file was changed since it was opened, or is damaged.
    """
    budget = as_integer("nbytes", nbytes, least=0) // _PAGE
    with _lock:
        files = list(_files(graph))
        budget -= sum(pages.pages.num_kept for _, _, pages in files)
        if budget <= 0 or not files:
            return resident_bytes(graph)
        scores = [_scores(edge_type, csc, pages, visits, picks) for edge_type, csc, pages in files]
        chosen = _largest(np.concatenate(scores), budget)
        begin = 0
        for (_, _, pages), of_array in zip(files, scores, strict=True):
            inside = chosen[(chosen >= begin) & (chosen < begin + len(of_array))]
            _take(pages, inside - begin)
            begin += len(of_array)
    return resident_bytes(graph)


def release_resident(graph: Graph) -> None:
    """Free the memory of :func:`keep_resident`; batches read these pages from disk again."""
    with _lock:
        for _, _, pages in _files(graph):
            if pages.file is not None and len(pages.pages.kept):
                pages.pages.kept = np.empty(0, dtype=np.uint8)
                pages.file.madvise(mmap.MADV_DONTNEED)
                pages.pages.forget()


def _files(graph: Graph) -> Iterator[tuple[EdgeType, CSC, FilePages]]:
    """The arrays on disk, except those that the user mapped."""
    for edge_type in graph.edge_types:
        csc = graph.csc_of(edge_type)
        own = csc.disk_pages
        for pages in () if own is None else own.files:
            if pages.file is not None:
                yield edge_type, csc, pages


def _scores(
    edge_type: EdgeType,
    csc: CSC,
    pages: FilePages,
    visits: Mapping[str, Tensor] | None,
    picks: float,
) -> Array:
    """Expected reads of each page of an array, 0 if it is already kept; shape ``(num_pages,)``,
    float32."""
    from . import _csc

    csc.check_rows()  # else kernels that index by it would write out of bounds
    weights = _NO_VISITS if visits is None else _weights(edge_type[2], visits, csc.num_dst)
    scores = np.zeros(pages.pages.num_pages, dtype=np.float32)
    array = pages.array
    indptr = csc.indptr.numpy()
    # The array begins within its first page, after the file's header.
    before = array.data_ptr() % _PAGE // array.element_size()
    per_page = _PAGE // array.element_size()
    if len(array) == len(indptr) and csc.scattered.indptr is array:
        _csc.score_offsets(indptr, weights, before, per_page, scores)
    else:
        _csc.score_edges(indptr, weights, float(picks), before, per_page, scores)
    if len(pages.pages.kept):
        scores[pages.pages.kept != 0] = 0.0
    return scores


def _weights(node_type: str, visits: Mapping[str, Tensor], count: int) -> Array:
    values = visits[node_type]
    if values.shape != (count,):
        raise ValueError(
            f"visits[{node_type!r}] must have shape ({count},), got {tuple(values.shape)}"
        )
    return values.float().contiguous().numpy()


def _largest(scores: Array, count: int) -> Array:
    """Positions of the ``count`` largest scores above 0, ascending."""
    places = np.flatnonzero(scores > 0.0)
    if len(places) > count:
        places = places[np.argpartition(scores[places], len(places) - count)[-count:]]
        places.sort()
    return places


def _take(pages: FilePages, chosen: Array) -> None:
    """Turn pages, given in ascending order, into private memory.

    The system copies a page of a private mapping when it is written. So this writes the first byte
    of each page over itself.
    """
    if len(chosen) == 0:
        return
    assert pages.file is not None
    pages.file.check()
    flat = pages.array.numpy().view(np.uint8)
    chunks = [chosen[at : at + _CHUNK] for at in range(0, len(chosen), _CHUNK)]
    pages.pages.ask_pages(chunks[0])
    for chunk, ahead in zip(chunks, [*chunks[1:], None], strict=True):
        if ahead is not None:
            pages.pages.ask_pages(ahead)
        at = np.maximum(chunk * _PAGE - pages.array.data_ptr() % _PAGE, 0)
        flat[at] = flat[at]
    # Batches read `kept` meanwhile: they must see the old array or the new one.
    kept = pages.pages.kept.copy()
    if len(kept) == 0:
        kept = np.zeros(pages.pages.num_pages, dtype=np.uint8)
    kept[chosen] = 1
    pages.pages.kept = kept
    pages.pages.known[chosen] = 1
