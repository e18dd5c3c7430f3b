"""DGL's partition format: ``dgl.distributed.load_partition`` opens it and DistDGL trains on it."""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..graph.graph import Graph
from ..system.atomic import check_absent, new_folder
from .extract import SelectedRows, extract_structure, vertex_owners
from .partition import MAX_HOPS, Partition, Progress, vertices_within

__all__ = ["ORIGINAL_ID", "check_field_names", "write_dgl"]

ORIGINAL_ID = "orig_id"
"""Field with the source's id of each vertex and edge, which DGL's numbering shuffles."""

_SAFE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")


def write_dgl(
    partition: Partition,
    out: str | os.PathLike[str],
    *,
    graph_name: str = "graph",
    halo_hops: int = 1,
    progress: Progress | None = None,
) -> None:
    """Write a partition as ``dgl.distributed.partition_graph`` does, whole or not at all; DGL 1.1 and later open it.

    ``out`` receives ``<graph_name>.json`` and for each part ``part<i>/graph.dgl``, ``node_feat.dgl`` and
    ``edge_feat.dgl``. Every vertex is in exactly one part (:func:`pagraph.partition.extract.vertex_owners`), an edge
    where its destination is. Vertices and edges are numbered anew, part by part; their fields are those of the graph,
    ``train_mask`` of the partition's training vertices, and :data:`ORIGINAL_ID`, their ids in the graph (int64). DGL
    stores bool as uint8.

    In memory are 33 bytes a vertex of the whole graph, and one part with its fields, as DGL writes files from memory
    only.

    Args:
        partition: The partition.
        out: Must not exist yet.
        graph_name: Name of DGL's ``DistGraph``, and of the JSON file.
        halo_hops: In-edges are complete up to so many hops from a part's own vertices, DGL's ``num_hops``. DistDGL
            needs 1, as it asks the owner for neighbours; training on a part alone needs as many as there are layers.
        progress: Called with the parts written and all parts.

    Raises:
        FileExistsError: ``out`` exists.
        MissingDependencyError: DGL is not installed.
        OSError: The disk is full, or nothing can be written there.
        ValueError: ``graph_name`` is no plain name, ``halo_hops`` is not in [1, 253], or a field has a name that DGL's
            format cannot hold or that is :data:`ORIGINAL_ID`.
    """
    if not _SAFE_NAME.fullmatch(graph_name):
        raise ValueError(f"graph_name must be a plain file name, got {graph_name!r}")
    if not 1 <= halo_hops <= MAX_HOPS:
        raise ValueError(f"halo_hops must be from 1 to {MAX_HOPS}, got {halo_hops}")
    check_field_names(partition.graph)
    _import_dgl()
    check_absent(out)
    partition.graph.csc.validate()
    numbering = _Numbering(partition)
    with new_folder(out) as folder:
        files = {}
        for part in range(partition.num_parts):
            files[f"part-{part}"] = _write_part(folder, partition, numbering, part, halo_hops)
            if progress is not None:
                progress(part + 1, partition.num_parts)
        config = _config(partition, numbering, graph_name, halo_hops)
        (folder / f"{graph_name}.json").write_text(json.dumps({**config, **files}, indent=4) + "\n")


def check_field_names(graph: Graph) -> None:
    """Refuse a graph with a field whose name DGL's format cannot hold."""
    for name in [*graph.ndata, *graph.edata]:
        # DGL joins type and name with "/" in the files, and with ":" in its key-value store.
        if name == ORIGINAL_ID or "/" in name or ":" in name:
            raise ValueError(f"a field must be called neither {ORIGINAL_ID!r} nor with '/' or ':', got {name!r}")


class _Numbering:
    """DGL's numbers: vertices (``order``) by part, bounded by ``node_ends``, then by id; edges by their destination's;
    ``edge_begin`` is the new id of each vertex's first in-edge, by new id, and the end."""

    def __init__(self, partition: Partition) -> None:
        self.owner = vertex_owners(partition)
        self.order = torch.argsort(self.owner, stable=True)
        self.new_ids = torch.empty_like(self.order)
        self.new_ids[self.order] = torch.arange(len(self.order), device="cpu")
        counts = torch.bincount(self.owner, minlength=partition.num_parts)
        self.node_ends = [0, *counts.cumsum(0).tolist()]
        self.edge_begin = torch.zeros(len(self.order) + 1, dtype=torch.int64, device="cpu")
        self.edge_begin[1:] = partition.graph.in_degrees()[self.order].cumsum(0)

    def own(self, part: int) -> Tensor:
        """Ids of the vertices that a part owns, ascending."""
        chosen: Tensor = self.order[self.node_ends[part] : self.node_ends[part + 1]]
        return chosen


def _config(partition: Partition, numbering: _Numbering, graph_name: str, halo_hops: int) -> dict[str, Any]:
    node_type, edge_type = partition.graph.only_node_type, ":".join(partition.graph.edge_types[0])
    # First new id of each part, and the one after its last.
    node_ranges = [list(ends) for ends in itertools.pairwise(numbering.node_ends)]
    edge_ranges = [[int(numbering.edge_begin[end]) for end in ends] for ends in node_ranges]
    return {
        "graph_name": graph_name,
        "num_nodes": partition.graph.num_nodes,
        "num_edges": partition.graph.num_edges,
        "part_method": f"pagraph-{partition.method}",
        "num_parts": partition.num_parts,
        "halo_hops": halo_hops,
        "node_map": {node_type: node_ranges},
        "edge_map": {edge_type: edge_ranges},
        "ntypes": {node_type: 0},
        "etypes": {edge_type: 0},
    }


def _write_part(folder: Path, partition: Partition, numbering: _Numbering, part: int, halo_hops: int) -> dict[str, str]:
    """Write the three files of a part; returns their names for the config."""
    names = {"node_feats": "node_feat.dgl", "edge_feats": "edge_feat.dgl", "part_graph": "graph.dgl"}
    paths = {key: f"part{part}/{name}" for key, name in names.items()}
    (folder / f"part{part}").mkdir()
    own_edges = _write_structure(folder / paths["part_graph"], partition.graph, numbering, part, halo_hops)
    own = numbering.own(part)
    node_type, edge_type = partition.graph.only_node_type, ":".join(partition.graph.edge_types[0])
    train_mask = torch.isin(own, partition.train_of(part), assume_unique=True)
    fields = _rows(node_type, partition.graph.ndata, own)
    fields |= {f"{node_type}/train_mask": train_mask, f"{node_type}/{ORIGINAL_ID}": own}
    _save_tensors(folder / paths["node_feats"], fields)
    fields = _rows(edge_type, partition.graph.edata, own_edges)
    _save_tensors(folder / paths["edge_feats"], {**fields, f"{edge_type}/{ORIGINAL_ID}": own_edges})
    return paths


def _rows(type_name: str, fields: Mapping[str, Tensor], ids: Tensor) -> dict[str, Tensor]:
    return {f"{type_name}/{name}": SelectedRows(field, ids)[:] for name, field in fields.items()}


def _write_structure(file: Path, graph: Graph, numbering: _Numbering, part: int, halo_hops: int) -> Tensor:
    """Write a part's graph: its own vertices and their in-edges first. Returns the graph's ids of those edges."""
    own = numbering.own(part)
    structure = extract_structure(graph, vertices_within(graph, own, halo_hops))
    ids, indptr = structure.vertices.ids, structure.csc.indptr.long()
    new_ids, own_edges = numbering.new_ids[ids], int(indptr[len(own)])
    # An edge's place among those of its destination is the same in the part and in DGL's order.
    shift = numbering.edge_begin[new_ids] - indptr[:-1]
    edges = torch.arange(structure.csc.num_edges, device="cpu")
    _save_graph(
        file,
        indptr,
        structure.csc.indices.long(),
        {
            "_ID": new_ids,
            "inner_node": (torch.arange(len(ids), device="cpu") < len(own)).to(torch.uint8),
            "part_id": numbering.owner[ids].long(),
        },
        {
            "_ID": edges + torch.repeat_interleave(shift, torch.diff(indptr)),
            "inner_edge": (edges < own_edges).to(torch.uint8),
        },
    )
    return structure.edge_ids[:own_edges].long()


def _import_dgl() -> Any:
    from ..dgl.graphbolt import import_dgl

    return import_dgl()


def _save_graph(
    file: Path, indptr: Tensor, indices: Tensor, ndata: dict[str, Tensor], edata: dict[str, Tensor]
) -> None:
    size = _write_graph(file, indptr, indices, ndata, edata)
    # DGL closes files without looking whether their last 4 KiB fitted on the disk, and reads garbage for them later.
    # The same graph without vertices tells how large the file must be.
    empty = file.with_suffix(".empty")
    no_rows = ({name: value[:0] for name, value in fields.items()} for fields in (ndata, edata))
    bare = _write_graph(empty, indptr[:1], indices[:0], *no_rows)
    empty.unlink()
    edge_ids = indices
    _check_size(file, size, bare, [indptr[1:], indices, edge_ids, *ndata.values(), *edata.values()])


def _write_graph(
    file: Path, indptr: Tensor, indices: Tensor, ndata: dict[str, Tensor], edata: dict[str, Tensor]
) -> int:
    """Write a graph by its in-edges; returns the file's size."""
    dgl = _import_dgl()
    graph = dgl.graph(("csc", (indptr, indices, torch.arange(len(indices), device="cpu"))), num_nodes=len(indptr) - 1)
    graph.ndata.update(ndata)
    graph.edata.update(edata)
    return _write(file, lambda: dgl.save_graphs(str(file), [graph]))


def _save_tensors(file: Path, tensors: dict[str, Tensor]) -> None:
    save = _import_dgl().data.utils.save_tensors
    size = _write(file, lambda: save(str(file), tensors))
    # A tensor's header: the name and its length, five numbers of 8 bytes, and the shape.
    headers = [8 + len(name.encode()) + 40 + 8 * value.dim() for name, value in tensors.items()]
    _check_size(file, size, 24 + sum(headers), tensors.values())


def _write(file: Path, write: Callable[[], object]) -> int:
    """Size of the written file; DGL's error for a disk that takes no more becomes one that says so."""
    try:
        write()
    except _import_dgl().DGLError as error:
        raise OSError(f"{file} cannot be written: {str(error).splitlines()[0]}") from error
    return file.stat().st_size


def _check_size(file: Path, size: int, headers: int, tensors: Iterable[Tensor]) -> None:
    expected = headers + sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    if size < expected:
        raise OSError(f"{file} cannot be written: {size} of {expected} bytes are there")
