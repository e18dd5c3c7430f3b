"""Readers of GraphML and GML, through networkx."""

from __future__ import annotations

import contextlib
import gzip
import os
import xml.parsers.expat
import zlib
from collections.abc import Iterator
from typing import IO, Any

import numpy as np

from ..errors import FormatError
from ..graph.conversion import number_attributes
from ..graph.graph import Graph
from ..system.budget import reading_room
from ..system.checks import StrPath
from ..system.files import bounded, open_plain
from ..system.units import one_line
from .edge_sort import build_graph
from .original_ids import id_field

_OBJECT_BYTES = 50
"""Memory of networkx's objects per byte of text; measured 32 for GML and 48 for GraphML."""


def read_graphml(path: StrPath) -> Graph:
    """Read GraphML, plain or gzipped; vertices are numbered in the file's order.

    Attributes with numbers on all vertices (or all edges) become fields; a warning lists the
    others. The field ``original_id`` keeps the file's ids, unless they count from 0. Undirected
    edges get both directions.

    Raises:
        FormatError: The file is damaged, or has a document type, whose entities may expand without
            bound.
    """
    import networkx

    _refuse_doctype(path)
    return _graph(path, _read(path, networkx.read_graphml))


def read_gml(path: StrPath) -> Graph:
    """Read GML like :func:`read_graphml`; ``original_id`` keeps labels if all vertices have one."""
    import networkx

    graph = _read(path, lambda file: networkx.read_gml(file, label="id"))
    # By id rather than by label (networkx's default): labels may be missing or repeated.
    labels = [data.pop("label", None) for _, data in graph.nodes(data=True)]
    ids = list(map(str, labels))
    if None in labels or len(set(ids)) < len(ids):
        return _graph(path, graph)
    return _graph(path, graph, ids)


def _read(path: StrPath, read: Any) -> Any:
    try:
        with _opened(path) as file:
            return read(file)
    except (FileNotFoundError, FormatError):
        raise
    except Exception as error:  # networkx may raise anything for a damaged file
        reason = one_line(error)
        raise FormatError(f"{path} cannot be read by networkx: {reason}") from error


@contextlib.contextmanager
def _opened(path: StrPath) -> Iterator[IO[bytes]]:
    """The text of a file; FormatError if networkx's objects would exceed memory."""
    is_packed = os.fspath(path).lower().endswith(".gz")
    with open_plain(path) as file:
        text: Any = gzip.GzipFile(fileobj=file) if is_packed else file
        yield bounded(text, path, reading_room() // _OBJECT_BYTES)


def _refuse_doctype(path: StrPath) -> None:
    """Refuse a document type, which comes before the first element."""

    def refuse(*_: Any) -> None:
        raise FormatError(f"{path} must have no document type (<!DOCTYPE ...>)")

    begun = []
    parser = xml.parsers.expat.ParserCreate()
    parser.StartDoctypeDeclHandler = refuse
    parser.StartElementHandler = lambda *_: begun.append(True)
    try:
        with _opened(path) as file:
            while not begun and (data := file.read(2**16)):
                parser.Parse(data)
    except FormatError:
        raise
    except (
        xml.parsers.expat.ExpatError,
        EOFError,
        gzip.BadGzipFile,
        zlib.error,
        LookupError,
        ValueError,
    ) as error:
        raise FormatError(f"{path} must be XML: {error}") from error


def _graph(path: StrPath, source: Any, ids: list[str] | None = None) -> Graph:
    place = {node: i for i, node in enumerate(source)}
    pairs = [(place[u], place[v]) for u, v in source.edges()]
    # `reshape`: without edges the array would be 1-D.
    ends = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    # In GraphML, "id" names an edge and is not an attribute.
    ndata, edata = number_attributes(source, str(path), unnamed=["id"])
    graph = build_graph(
        path,
        ends[:, 0].copy(),
        ends[:, 1].copy(),
        len(place),
        edata=edata,
        undirected=not source.is_directed(),
    )
    if ids is None:
        ids = list(map(str, source))
    kept = id_field(ids)
    if kept is not None:
        ndata.setdefault("original_id", kept)
    for name, values in ndata.items():
        graph.set_field(name, values)
    return graph
