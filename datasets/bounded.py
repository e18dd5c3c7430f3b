"""Writes graph folders in bounded memory: edges are sorted in files, fields streamed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ..graph.graph import Graph
from ..system.atomic import new_folder
from ..system.budget import work_memory
from ..system.progress import Progress
from .column_files import Scratch
from .edge_sort import LEAST_ROOM, EdgeStream, sort_edges
from .native import Rows, write_into

# Half of the memory is for edges in work. The other half is for compiled kernels, and for pieces of
# files on their way to the disk.
_WORKING_SHARE = 2
# Steps of different units share one bar, which counts in millionths of the work.
_TICKS = 10**6


def room_of(memory: int | str | None) -> int:
    """Bytes for edges in work, of the ``memory`` for all.

    Args:
        memory: Bytes as an int, or text with a unit ("4GiB"), what the process holds beyond an
            eighth of them among these. Default: half of what is free.

    Raises:
        ValueError: It is no number of bytes, or below what the work needs.
    """
    return (
        work_memory(memory, LEAST_ROOM * _WORKING_SHARE, whom="edges sorted in files")
        // _WORKING_SHARE
    )


def step_of(progress: Progress | None, begin: float, end: float) -> Progress | None:
    """Progress of a step that is the part from ``begin`` to ``end`` of the whole work."""
    if progress is None:
        return None
    return lambda done, total: progress(
        round(_TICKS * (begin + (end - begin) * done / max(total, 1))), _TICKS
    )


def write_edges(
    edges: EdgeStream,
    folder: str | os.PathLike[str],
    *,
    memory: int | str | None = None,
    undirected: bool = False,
    simple: bool = False,
    computed: Mapping[str, Rows] | None = None,
    store: str | None = None,
    origin: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Graph:
    """Write edges whose order means nothing as a graph folder; opens it.

    Args:
        edges: The edges, with ids below their number of vertices.
        folder: Must not exist yet.
        memory: Bytes that this may take; see :func:`room_of`.
        undirected: Add the other direction of every edge but self-loops.
        simple: Drop self-loops and repeated edges.
        computed: Vertex fields; their rows are asked for block by block.
        store: See :func:`write_graph`.
        origin: Where the graph is from, for people.
        progress: Called with the work done and all of it.
    """
    # Before the folder is made: too little memory leaves nothing behind.
    room = room_of(memory)
    fields = dict(computed or {})
    # Scratch files lie in the new folder, which vanishes with a run that is killed.
    with new_folder(folder) as part, Scratch(part) as scratch:
        step = step_of(progress, 0, 0.5)
        graph = Graph(
            sort_edges(edges, scratch, room=room, mirrored=undirected, simple=simple, progress=step)
        )
        write_into(
            part,
            graph,
            origin=origin,
            computed=fields,
            store=store,
            progress=step_of(progress, 0.5, 1),
        )
    return Graph.open(folder)
