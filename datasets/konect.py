"""Reads KONECT's networks: ``out.NAME``, whose head says of what kind it is, and whose ids begin at 1."""

from __future__ import annotations

import os
import re
from typing import Any

import torch

from ..errors import FormatError
from ..graph.graph import CSC, EdgeType, Graph
from .edge_rows import EdgeRows, read_integers
from .edges import build_graph, check_size, count_nodes
from .text_blocks import Progress, first_line, read_blocks

__all__ = ["read_konect"]

LEFT_TO_RIGHT: EdgeType = ("left", "to", "right")
RIGHT_TO_LEFT: EdgeType = ("right", "rev_to", "left")

_HEAD = re.compile(rb"%\s*(sym|asym|bip)\b[^\n]*(?:\n%\s*(\d{1,19})\s+(\d{1,19})\s+(\d{1,19}))?")


def read_konect(
    path: str | os.PathLike[str],
    *,
    undirected: bool = False,
    weight: str | None = None,
    progress: Progress | None = None,
) -> Graph:
    """Read a network of KONECT's, ``src dst [weight [time]]`` a line; ids begin at 1, here at 0.

    The edges of an undirected network (``sym``) go both ways. A bipartite one (``bip``) has the vertex types ``left``
    and ``right`` and the edge type ``left/to/right``. A fourth column becomes the edge field ``time``, int64 where all
    are integers, else float64.

    Args:
        path: The file, also packed.
        undirected: Add the other direction: for a bipartite network as the edge type ``right/rev_to/left``.
        weight: Name of an edge field for the third column, float32. Default: it is left.
        progress: Called with the bytes read and the file's size.

    Raises:
        FormatError: The head is missing, a line is none, or an id is below 1 or above the head's counts.
        ValueError: ``undirected`` for a network that is undirected.
    """
    kind, counts, width = _describe(path)
    if undirected and kind == "sym":
        raise ValueError(f"undirected=True must not be given for {path}, whose head says that it is undirected (sym)")
    rows = read_integers(path, weight=weight, header=False, progress=progress)
    edata = {} if weight is None else {weight: torch.from_numpy(rows.weight)}
    if width > 3:
        times = read_integers(path, weight="time", header=False, progress=None, place=3)
        edata["time"] = _whole(torch.from_numpy(times.weight))
    for ends in (rows.src, rows.dst):
        if len(ends) and int(ends.min()) < 1:
            raise FormatError(f"ids in {path} must be at least 1, as KONECT's are, got {int(ends.min())}")
        ends -= 1
    if kind != "bip":
        count = None if counts is None else max(counts)
        return build_graph(path, rows.src, rows.dst, count, edata=edata, undirected=undirected or kind == "sym")
    return _bipartite(path, rows, counts, edata, both=undirected)


def _describe(path: str | os.PathLike[str]) -> tuple[str, tuple[int, int] | None, int]:
    """Kind, numbers of sources and targets where they are told, and number of columns."""
    block = next(read_blocks(path), None)
    head = _HEAD.match(block.data.replace(b"\r", b"")) if block is not None else None
    if block is None or head is None:
        raise FormatError(
            f"{path} must begin with KONECT's head (% sym, % asym or % bip); other edge lists end in .txt"
        )
    counts = None if head[2] is None else (int(head[3]), int(head[4]))
    return head[1].decode(), counts, len(first_line(block.data)[1].split())


def _whole(values: torch.Tensor) -> torch.Tensor:
    return values.long() if bool((values == values.long()).all()) else values


def _bipartite(
    path: str | os.PathLike[str], rows: EdgeRows, counts: tuple[int, int] | None, edata: dict[str, Any], *, both: bool
) -> Graph:
    left, right = counts or (count_nodes(path, rows.src, rows.src), count_nodes(path, rows.dst, rows.dst))
    check_size(path, left)
    check_size(path, right)
    try:
        csc = {LEFT_TO_RIGHT: CSC.from_coo(rows.src, rows.dst, (left, right))}
        if both:
            csc[RIGHT_TO_LEFT] = CSC.from_coo(rows.dst, rows.src, (right, left))
    except ValueError as error:
        raise FormatError(f"{path}: {error}") from error
    graph = Graph(csc, {"left": left, "right": right})
    for edge_type in csc:
        for name, values in edata.items():
            graph.set_field(name, values, edge_type=edge_type)
    return graph
