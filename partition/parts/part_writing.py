"""One part as a native graph folder, with its lists of vertices beside."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...datasets.arrays import ArrayWriter, Rows, Written, file_digest
from ...datasets.manifest import MANIFEST, EdgeEntry, Manifest, NodeEntry
from ...graph import Graph
from ..partition import Partition
from .extract import PartStructure
from .manifest import SPLITS, PartEntry
from .selection import SelectedRows

__all__ = ["OWN_FIELDS", "PartContent", "write_part"]

OWN_FIELDS = ("global_ids", "in_degrees", "out_degrees", "self_loops")
"""Vertex fields that parts have on their own account, ``self_loops`` only where the graph has any; the edges' is
``global_ids``."""

_FILES = {"label": "labels"}


@dataclass(frozen=True, eq=False)
class PartContent:
    """What parts take from the whole graph beside its structure.

    Attributes:
        graph: The whole graph.
        referenced: Names of the vertex fields that are not copied.
        train_part: The part of each vertex as a training vertex, shape ``(V,)``, int32; -1: it is none.
        owner: The part that evaluates each vertex, shape ``(V,)``, int32; -1: none does.
        origin: For the parts' manifests.
    """

    graph: Graph
    referenced: frozenset[str]
    train_part: Tensor
    owner: Tensor
    origin: dict[str, Any]

    @classmethod
    def of(cls, partition: Partition, owner: Tensor, referenced: frozenset[str]) -> PartContent:
        """What the parts of a partition take."""
        train_part = torch.full((partition.graph.num_nodes,), -1, dtype=torch.int32)
        train_part[partition.train] = partition.parts
        origin = {"method": partition.method, "parts": partition.num_parts, "hops": partition.hops}
        return cls(partition.graph, referenced, train_part, owner, origin)

    def splits(self, ids: Tensor, part: int) -> dict[str, Tensor]:
        """Local ids of a part's training, validation and test vertices, ascending; ``ids`` are its vertices."""
        chosen = {"train": self.train_part[ids] == part}
        own = self.owner[ids] == part
        for name in SPLITS[1:]:
            mask = self.graph.ndata.get(f"{name}_mask")
            chosen[name] = torch.zeros(len(ids), dtype=torch.bool) if mask is None else own & mask[ids].bool()
        return {name: mask.nonzero().squeeze(1) for name, mask in chosen.items()}

    def node_fields(self, ids: Tensor, splits: dict[str, Tensor]) -> dict[str, Rows]:
        """The vertex fields of a part; its three masks are those of its own lists."""
        csc, fields = self.graph.csc, self.graph.ndata
        found: dict[str, Rows] = {
            "global_ids": ids,
            "in_degrees": (csc.indptr[ids + 1] - csc.indptr[ids]).long(),
            "out_degrees": csc.source_counts[ids],
        }
        if csc.loop_counts.any():
            found["self_loops"] = csc.loop_counts[ids].long()
        for name, local_ids in splits.items():
            if name == "train" or f"{name}_mask" in fields:
                found[f"{name}_mask"] = torch.zeros(len(ids), dtype=torch.bool).index_fill_(0, local_ids, True)
        for name, value in fields.items():
            if name not in found and name not in self.referenced:
                found[name] = SelectedRows(value, ids)
        return found


def write_part(folder: Path, content: PartContent, structure: PartStructure, part: int, written: Written) -> PartEntry:
    """Write a part into ``folder``, which does not exist yet; features are never in memory as a whole.

    Args:
        folder: Where the part will be.
        content: What it takes from the graph.
        structure: Its vertices and edges.
        part: Its number.
        written: Called after every block with its bytes.
    """
    folder.mkdir()
    write, ids, csc = ArrayWriter(folder, written).write, structure.vertices.ids, structure.csc
    lists = content.splits(ids, part)
    splits = {name: write(name, local_ids) for name, local_ids in lists.items()}
    indptr, indices = write("indptr", csc.indptr), write("indices", csc.indices)
    edge_fields = {"global_ids": write("edge_ids", structure.edge_ids)}
    fields = content.node_fields(ids, lists)
    node_fields = {name: write(_FILES.get(name, name), rows) for name, rows in fields.items()}
    for name, value in content.graph.edata.items():
        edge_fields[name] = write(f"edge-{name}", SelectedRows(value, structure.edge_ids))
    (node_type,), (edge_type,) = content.graph.node_types, content.graph.edge_types
    nodes = NodeEntry(node_type, len(ids), node_fields)
    edges = EdgeEntry(edge_type, csc.num_edges, indptr, indices, None, edge_fields)
    Manifest([nodes], [edges], {"partition": content.origin, "part": part}).write(folder)
    counts = (csc.num_edges, structure.dropped, structure.missing)
    return PartEntry(structure.vertices.hop_ends, *counts, splits, file_digest(folder / MANIFEST))
