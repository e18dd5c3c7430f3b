"""Files of DGL's, which are whole or an error: its C++ code checks only some of its writes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .graphbolt import import_dgl

dgl = import_dgl()


def save_whole_graph(file: Path, graph: Any) -> None:
    """Save a graph that was made of in-edges by ``dgl.save_graphs``.

    Raises:
        OSError: The file cannot be written, for example as the disk is full.
    """
    size = _write(file, lambda: dgl.save_graphs(str(file), [graph]))
    # The same graph without vertices gives the size of everything else.
    with tempfile.TemporaryDirectory() as folder:
        empty = Path(folder) / "empty.bin"
        bare = _write(empty, lambda: dgl.save_graphs(str(empty), [_without_vertices(graph)]))
    ids = sum(
        graph.num_nodes(etype[2]) + 2 * graph.num_edges(etype) for etype in graph.canonical_etypes
    )
    columns = [values for of_type in _columns(graph).values() for values in of_type.values()]
    _check_size(file, size, bare + ids * graph.idtype.itemsize, columns)


def save_whole_tensors(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """Save tensors by ``dgl.data.utils.save_tensors``; raises as :func:`save_whole_graph`."""
    size = _write(file, lambda: dgl.data.utils.save_tensors(str(file), tensors))
    headers = 24  # bytes of the file's own header
    for name, value in tensors.items():
        # The name and its length, five numbers of 8 bytes, and the shape.
        headers += 8 + len(name.encode())
        headers += 5 * 8 + 8 * value.dim()
    _check_size(file, size, headers, tensors.values())


def _columns(graph: Any) -> dict[tuple[str, Any], dict[str, Tensor]]:
    data = {("nodes", t): graph.nodes[t].data for t in graph.ntypes}
    data |= {("edges", t): graph.edges[t].data for t in graph.canonical_etypes}
    # Not by `items`, which has DGL's own columns.
    return {key: {name: of_type[name] for name in of_type} for key, of_type in data.items()}


def _without_vertices(graph: Any) -> Any:
    """The graph's types and columns, without a row."""
    no_ids = torch.empty(0, dtype=graph.idtype, device="cpu")
    no_edges = ("csc", (torch.zeros(1, dtype=graph.idtype, device="cpu"), no_ids, no_ids))
    bare = dgl.heterograph(
        dict.fromkeys(graph.canonical_etypes, no_edges), dict.fromkeys(graph.ntypes, 0)
    )
    for (kind, type_), columns in _columns(graph).items():
        getattr(bare, kind)[type_].data.update({n: values[:0] for n, values in columns.items()})
    return bare


def _write(file: Path, write: Callable[[], object]) -> int:
    """Write a file, and return its size."""
    try:
        write()
    except dgl.DGLError as error:  # with the stack of C++ code, of whatever happened
        _append(file)
        raise OSError(f"{file} cannot be written: {str(error).splitlines()[0]}") from error
    return file.stat().st_size


def _check_size(file: Path, size: int, headers: int, tensors: Iterable[Tensor]) -> None:
    """Raise OSError if a file is too short: DGL does not check its last 4 KiB."""
    expected = headers + sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    if size < expected:
        _append(file)
        raise OSError(f"{file} cannot be written: only {size} of {expected} bytes were")


def _append(file: Path) -> None:
    """Have the system say why a file cannot be written."""
    with open(file, "ab") as opened:
        opened.write(bytes(2**16))
