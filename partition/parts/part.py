"""Part: what one process trains on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from ...errors import FormatError
from ...graph import Graph
from .manifest import PartitionManifest
from .source import open_source

__all__ = ["Part"]


@dataclass(frozen=True, eq=False, repr=False)
class Part:
    """One part of a divided graph; all its ids are local, ``global_ids`` says which vertices they are.

    Attributes:
        graph: The part's vertices and their in-edges, with fields; those of vertices at the last hop are not there.
            The vertex fields ``in_degrees`` and ``out_degrees`` are degrees in the whole graph; ``self_loops``, there
            where the graph has any, says how many of the edges that they count are self-loops.
        train: Local ids of its training vertices, ascending, int64. Their whole neighbourhood of ``hops`` hops is
            in the part, except where a limit on replication left vertices out.
        val: Local ids of the validation vertices that are its to evaluate; each is in at most one part's.
        test: The same for test vertices.
        global_ids: The vertices' ids in the whole graph, shape ``(num_nodes,)``, int64.
        hop_ends: Vertices ``[0, hop_ends[h])`` are those within ``h`` hops; ``hops + 1`` numbers.
        index: The part's number.
        manifest: What is known of all parts.
        folder: The partition's folder.
    """

    graph: Graph
    train: Tensor
    val: Tensor
    test: Tensor
    global_ids: Tensor
    hop_ends: tuple[int, ...]
    index: int
    manifest: PartitionManifest
    folder: Path

    @property
    def num_parts(self) -> int:
        """Number of parts."""
        return self.manifest.num_parts

    @property
    def hops(self) -> int:
        """In-neighbours of up to so many hops are in the part."""
        return self.manifest.hops

    @property
    def global_edge_ids(self) -> Tensor:
        """The edges' ids in the whole graph, shape ``(num_edges,)``, int32 where they fit."""
        ids: Tensor = self.graph.edata["global_ids"]
        return ids

    def open_source(self) -> Graph:
        """The whole graph.

        Raises:
            FormatError: It is not where it was, is another one by now, or was never in a folder.
        """
        if self.manifest.source is None:
            raise FormatError(
                f"{self.folder}: the whole graph must be in a folder that write_partition was given as source, got none"
            )
        return open_source(self.manifest.source, self.folder)

    def __repr__(self) -> str:
        return f"Part({self.index} of {self.num_parts}, hops={self.hops}, train={len(self.train)}, {self.graph})"
