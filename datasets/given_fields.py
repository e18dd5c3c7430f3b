"""Fields of a graph from separate files: features, labels, and train, val and test sets."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..graph.csc import id_range
from ..graph.graph import Graph
from ..system.arrays import Array
from ..system.checks import StrPath
from .arrays import has_ending, one_column, read_array
from .column_files import Scratch
from .original_ids import ORIGINAL_ID, places_of, words_of
from .paths import PARTS, TEXTS, VertexSet, fraction_of
from .text_blocks import read_blocks


def add_fields(
    graph: Graph,
    *,
    features: StrPath | None = None,
    labels: StrPath | None = None,
    train: VertexSet | None = None,
    val: VertexSet | None = None,
    test: VertexSet | None = None,
    scratch: Scratch | None = None,
) -> None:
    """Add ``feat``, ``label``, ``train_mask``, ``val_mask`` and ``test_mask`` from files.

    The graph has one vertex type. Rows are in vertex order. If the field ``original_id`` keeps
    other ids, files hold those; words are in a text file, one per line. Files are read by
    :func:`~pagraph.datasets.arrays.read_array`; a ``.npy`` file stays mapped. From text, fractional
    features are float32, and labels get the dtype that holds all of them.

    Args:
        graph: The graph, without these fields.
        features: File with a row per vertex, of two or more dimensions.
        labels: File with a row per vertex; a single column becomes 1-D.
        train: File of ids, or of a mask: bools, or 0 and 1 for each of three or more vertices. Or a
            fraction in (0, 1] of the vertices (``0.6`` or ``60%``), drawn reproducibly from those
            that no file has.
        val: The same.
        test: The same.
        scratch: For the numbers of text and Parquet. Default: memory.

    Raises:
        FormatError: A file has other content.
        ValueError: The number of rows is not that of vertices; ids are out of range or repeated;
            sets overlap; a fraction is out of range, or exceeds what is left; the graph already has
            the field, or several vertex types.
    """
    all_: dict[str, Any] = {
        "features": features,
        "labels": labels,
        "train": train,
        "val": val,
        "test": test,
    }
    given = {name: value for name, value in all_.items() if value is not None}
    for name in given:
        if len(graph.node_types) != 1:
            raise ValueError(
                f"{name} must be given for a graph of one vertex type, got {graph.node_types}"
            )
        field = {"features": "feat", "labels": "label"}.get(name, f"{name}_mask")
        if field in graph.ndata:
            raise ValueError(
                f"{name} must not be given for a graph that has the field {field!r}, got "
                f"{given[name]!r}"
            )
    if features is not None:
        graph.set_field("feat", _rows("features", "feat", features, graph.num_nodes, scratch))
    if labels is not None:
        graph.set_field(
            "label", one_column(_rows("labels", "label", labels, graph.num_nodes, scratch))
        )
    parts = {part: given[part] for part in PARTS if part in given}
    for part, ids in (_sets(parts, graph) if parts else {}).items():
        mask = torch.zeros(graph.num_nodes, dtype=torch.bool, device="cpu")
        mask[ids] = True
        graph.set_field(f"{part}_mask", mask)


def _rows(name: str, field: str, file: StrPath, count: int, scratch: Scratch | None) -> Tensor:
    rows = read_array(file, scratch, field=field)
    least = 2 if name == "features" else 1
    if rows.dim() < least or len(rows) != count:
        dims = " and two dimensions or more" if least == 2 else ""
        raise ValueError(
            f"{name} must have one row per vertex ({count}){dims}, got shape {list(rows.shape)} in "
            f"{file}"
        )
    return rows


def _sets(given: Mapping[str, VertexSet], graph: Graph) -> dict[str, Tensor]:
    """Ids of the vertices of each set."""
    count = graph.num_nodes
    fractions = {
        part: share for part, value in given.items() if (share := fraction_of(value)) is not None
    }
    files: dict[str, Any] = {part: file for part, file in given.items() if part not in fractions}
    sets = {part: _ids(part, file, graph) for part, file in files.items()}
    # Files first: fractions are drawn from the other vertices, so that sets never overlap.
    owner = torch.full((count,), -1, dtype=torch.int8, device="cpu")
    for number, (part, ids) in enumerate(sets.items()):
        taken = owner[ids] >= 0
        if bool(taken.any()):
            vertex = int(ids[taken][0])
            other = list(sets)[int(owner[vertex])]
            raise ValueError(
                f"{part} must have no vertex in common with {other}, got {int(taken.sum())}, such "
                f"as {vertex}"
            )
        owner[ids] = number
    left = (owner < 0).nonzero().squeeze(1)
    for part, share in fractions.items():
        if not 0 < share <= 1:
            raise ValueError(f"{part} must be a file or a fraction in (0, 1], got {given[part]}")
    # Counts are rounded, so their sum may be off by one per set.
    wanted = {part: round(share * count) for part, share in fractions.items()}
    if sum(fractions.values()) > 1 + 1e-9 or sum(wanted.values()) > len(left) + len(wanted):
        raise ValueError(
            f"{' and '.join(fractions)} must be fractions that add up to no more than the "
            f"vertices left ({len(left)} of {count}), got "
            f"{', '.join(map(str, fractions.values()))}"
        )
    order = left[
        torch.randperm(len(left), generator=torch.Generator().manual_seed(0), device="cpu")
    ]
    begin = 0
    for part, size in wanted.items():
        sets[part] = order[begin : begin + size]
        begin += size
    return sets


def _ids(part: str, file: StrPath, graph: Graph) -> Tensor:
    count = graph.num_nodes
    originals = graph.ndata.get(ORIGINAL_ID)
    words_are_ids = originals is not None and originals.dim() == 2
    if originals is not None and words_are_ids and has_ending(file, TEXTS):
        words = _lines(file)
        if len(words) != count or not set(words.tolist()) <= {b"0", b"1"}:  # else a mask, as below
            return _once(part, _rows_with(part, words, words_of(originals), file), file)
    values = one_column(read_array(file, field=f"{part}_mask"))
    if values.dim() != 1 or values.is_floating_point() or values.is_complex():
        kind = f"{values.dtype} of shape {list(values.shape)}"
        raise ValueError(f"{part} must be a file of ids or of a mask, got {kind} in {file}")
    # For one or two vertices, [0, 1] is ambiguous and counts as ids.
    is_mask = values.dtype == torch.bool or (
        len(values) == count > 2 and bool(((values == 0) | (values == 1)).all())
    )
    if is_mask:
        if len(values) != count:
            raise ValueError(
                f"{part} must have one entry per vertex ({count}) as a mask, got {len(values)} in "
                f"{file}"
            )
        return values.nonzero().squeeze(1)
    if words_are_ids:
        raise ValueError(
            f"{part} must be a text file, a mask or a fraction if ids are words, got {file}"
        )
    ids = values.long()
    if originals is not None:
        ids = _rows_with(part, ids.numpy(), originals.numpy(), file)
    low, high = id_range(ids)
    if low < 0 or high >= count:
        wrong = low if low < 0 else high
        raise ValueError(f"{part} must hold ids in [0, {count}), got {wrong} in {file}")
    return _once(part, ids, file)


def _lines(file: StrPath) -> npt.NDArray[np.bytes_]:
    """The non-empty lines of a text file."""
    if not os.path.isfile(file):
        raise FileNotFoundError(f"file must exist, got {str(file)!r}")
    lines = (line.strip() for block in read_blocks(file) for line in block.data.splitlines())
    return np.array([line for line in lines if line], dtype=np.bytes_)


def _rows_with(part: str, ids: Array, originals: Array, file: StrPath) -> Tensor:
    try:
        return places_of(part, ids, originals)
    except ValueError as error:
        raise ValueError(f"{error} in {file}") from None


def _once(part: str, ids: Tensor, file: StrPath) -> Tensor:
    repeated = len(ids) - len(torch.unique(ids))
    if repeated:
        raise ValueError(f"{part} must hold each id once, got {repeated} again in {file}")
    return ids
