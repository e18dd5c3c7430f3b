"""Graphs from edges of a file or an object, compressed in memory or in files, with fields."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..errors import FormatError
from ..graph.csc import CSC
from ..graph.graph import Graph
from ..system.checks import StrPath
from .column_files import MemoryColumn, Store
from .edge_sort import EdgeColumns, InFiles, append_reverse, check_ends, sort_edges
from .edges import Ids, check_size, count_nodes

# Rows per block, if all may not fit into memory.
_BLOCK_ROWS = 2**20


@dataclass(frozen=True, eq=False)
class GivenEdges:
    """Edges of one type: where they are, their unchecked ends, and their fields."""

    where: str
    ends: EdgeColumns
    fields: Mapping[str, Tensor]

    def compressed(
        self, files: InFiles | None, *, undirected: bool = False
    ) -> tuple[CSC, dict[str, Tensor]]:
        """Their CSC and fields.

        If ``undirected``, each edge but self-loops gets a reverse edge with the same rows.

        Raises:
            FormatError: An id is out of range, or a field has a wrong number of rows.
        """
        for name, values in self.fields.items():
            if len(values) != self.ends.num_edges:
                raise FormatError(
                    f"{self.where}: field {name!r} must have a row per edge "
                    f"({self.ends.num_edges}), got {len(values)}"
                )
        check_ends(self.ends, self.where)
        csc = sort_edges(self.ends, files, mirrored=undirected, numbered=True)
        fields = dict(self.fields)
        if undirected:
            fields = {name: self._both_ways(rows, files) for name, rows in fields.items()}
        return csc, fields

    def _both_ways(self, rows: Tensor, files: InFiles | None) -> Tensor:
        """The rows of all edges, then those of the reverse edges."""
        if files is None:
            src, dst = self.ends.read(0, self.ends.num_edges)
            values = rows.numpy()
            return torch.from_numpy(np.concatenate([values, values[src != dst]]))
        shape = rows.shape[1:]
        column = copied(rows, rows.dtype, files)
        count = append_reverse(self.ends, column, math.prod(shape))
        return column.mapped().reshape(count, *shape)


def copied(rows: Tensor, dtype: torch.dtype, files: InFiles) -> Store:
    """A copy of all rows in another dtype."""
    as_numpy = torch.empty(0, dtype=dtype, device="cpu").numpy().dtype
    column = files.scratch.column(as_numpy)
    for begin in range(0, len(rows), _BLOCK_ROWS):
        block = rows[begin : begin + _BLOCK_ROWS]
        column.append(block.to(dtype).numpy().reshape(-1))
    return column


def build_graph(
    path: StrPath,
    src: Ids,
    dst: Ids,
    num_nodes: int | None,
    *,
    edata: Mapping[str, Tensor] | None = None,
    undirected: bool = False,
    files: InFiles | None = None,
) -> Graph:
    """Build the graph of edges, with reverse edges if ``undirected``.

    Args:
        path: The file, for errors.
        src: Source ids.
        dst: Target ids.
        num_nodes: Number of vertices. Default: the largest id plus 1.
        edata: Edge fields in the file's order; a reverse edge gets the same rows.
        undirected: Add the reverse of each edge but self-loops.
        files: For edges larger than memory. Default: all is in memory.

    Raises:
        FormatError: Ids are not below ``num_nodes``, a field has another length, or the vertices do
            not fit into memory.
    """
    count = count_nodes(path, src, dst) if num_nodes is None else num_nodes
    check_size(path, count)
    ends = EdgeColumns(count, MemoryColumn.of(src), MemoryColumn.of(dst))
    edges = GivenEdges(str(path), ends, edata or {})
    csc, fields = edges.compressed(files, undirected=undirected)
    return Graph(csc, edata=fields)
