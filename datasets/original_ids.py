"""The field ``original_id``, with vertices' ids in the source: numbers, or bytes of words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..errors import FormatError
from ..graph.csc import as_ids
from ..system.arrays import Array

if TYPE_CHECKING:
    from ..graph.graph import EdgeType, Graph

ORIGINAL_ID = "original_id"
"""Name of the field with original ids."""


def id_field(words: Iterable[str]) -> Tensor | None:
    """The field of original ids: int64, or zero-padded UTF-8 bytes; None if they are 0, 1, 2..."""
    words = list(words)
    try:
        numbers = [int(word) for word in words]
    except ValueError:
        numbers = []
    # Only if they round-trip: "007" and "+7" are words.
    if list(map(str, numbers)) != words or any(abs(number) >= 2**63 for number in numbers):
        check_words(words)
        return word_rows(np.array([word.encode() for word in words]))
    if numbers == list(range(len(words))):
        return None
    return torch.tensor(numbers, dtype=torch.int64, device="cpu")


def check_words(words: Iterable[str]) -> None:
    """Raise FormatError if a word cannot be kept as a zero-padded row of bytes."""
    for word in words:
        if "\0" in word:
            raise zero_byte(word)


def zero_byte(word: str) -> FormatError:
    """The error for an id that zero padding would make ambiguous."""
    return FormatError(f"ids must have no zero byte in them, got {word[:80]!r}")


def word_rows(words: npt.NDArray[np.bytes_]) -> Tensor:
    """Words as rows of bytes, padded with zeros."""
    return torch.from_numpy(words.view(np.uint8).reshape(len(words), words.dtype.itemsize))


def words_of(rows: Tensor) -> npt.NDArray[np.bytes_]:
    """The words of rows from :func:`word_rows`."""
    return np.ascontiguousarray(rows.numpy()).view(f"S{max(rows.shape[1], 1)}").reshape(-1)


def new_ids(
    graph: Graph, original: Any, *, node_type: str | None = None, edge_type: EdgeType | None = None
) -> Tensor:
    """Convert ids in a graph's source to ids of its vertices or edges, as seeds for its loaders.

    For a graph with the field ``original_id``, which was reordered or relabelled on import. Loaders
    always take the graph's own ids.

    Args:
        graph: The graph.
        original: Ids in the source: integers, or words where the source has words.
        node_type: Type of the vertices. Default: the only one.
        edge_type: Type of the edges, if edges are meant.

    Returns:
        Shape ``(n,)``, int64, in the order of ``original``.

    Raises:
        KeyError: The graph lacks the type, or the type lacks ``original_id``.
        TypeError: The ids are not integers, or not words.
        ValueError: An id has no row, or several.

    Example:
        >>> from pagraph import Graph
        >>> graph = Graph.from_coo([0], [1], ndata={"original_id": torch.tensor([70, 30])})
        >>> new_ids(graph, [30, 70])
        tensor([1, 0])
    """
    if edge_type is not None and node_type is not None:
        raise ValueError(
            f"node_type must not be given with edge_type, got {node_type!r} and {edge_type!r}"
        )
    if edge_type is not None:
        fields = graph.edge_fields(edge_type)
        what = "edges"
    else:
        if node_type is None:
            node_type = graph.only_node_type
        fields = graph.node_fields(node_type)
        what = "vertices"
    if ORIGINAL_ID not in fields:
        raise KeyError(
            f"graph must have the field {ORIGINAL_ID} of {what}: ids are its own, and those of its "
            "source"
        )
    kept = fields[ORIGINAL_ID][:]
    if kept.dim() == 1:
        return places_of("original", as_ids("original", original).numpy(), kept.numpy())
    if isinstance(original, str) or not all(isinstance(word, str) for word in original):
        raise TypeError(
            f"original must be a list of words, as the source's ids are, got {original!r}"[:300]
        )
    return places_of(
        "original", np.array([word.encode() for word in original], np.bytes_), words_of(kept)
    )


def places_of(name: str, ids: Array, originals: Array) -> Tensor:
    """The rows with these original ids, shape ``(n,)``, int64; ValueError for unknown ids."""
    order = np.argsort(originals, kind="stable")
    # An id's rows are `first` to `last` in sorted order; there must be exactly one.
    first, last = (
        np.searchsorted(originals, ids, side, sorter=order) for side in ("left", "right")
    )
    for wrong, rule in (
        (first == last, "hold ids of the source"),
        (last > first + 1, "hold ids that one row has"),
    ):
        if wrong.any():
            shown = ids[wrong][0]
            if isinstance(shown, bytes):
                shown = repr(shown.decode("utf-8", "replace")[:80])
            raise ValueError(f"{name} must {rule}, got {shown}")
    return torch.from_numpy(order[first])
