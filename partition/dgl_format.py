"""DGL's partition format: ``dgl.distributed.load_partition`` opens it and DistDGL trains on it."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..graph.graph import EdgeType, Graph
from ..options.partitioning import MAX_HOPS
from ..system.atomic import check_absent, new_folder
from ..system.checks import StrPath
from ..system.progress import Progress
from .extract import PartStructure, SelectedRows, extract_structure, vertex_owners
from .manifest import train_digest
from .partition import Partition, vertices_within
from .source import describe_source

ORIGINAL_ID = "orig_id"
"""Field with the source's id of each vertex and edge, which DGL's numbering shuffles."""

NOTES = "pagraph"
"""Key of the JSON file that holds the notes for :func:`pagraph.partition.verify_dgl`."""

_Arrays = tuple[Tensor, Tensor, Tensor]
# It becomes a file's name: no separator, and no dot in front, which would hide the file.
_SAFE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")


def write_dgl(
    partition: Partition,
    out: StrPath,
    *,
    graph_name: str = "graph",
    halo_hops: int = 1,
    source: StrPath | None = None,
    split: str = "",
    progress: Progress | None = None,
) -> None:
    """Write a partition as ``dgl.distributed.partition_graph`` does, whole or not at all.

    ``out`` receives ``<graph_name>.json`` and for each part ``part<i>/graph.dgl``,
    ``node_feat.dgl`` and ``edge_feat.dgl``.

    Every vertex is owned by exactly one part. An edge belongs to the part of its destination.
    Vertices are owned as :func:`~pagraph.partition.place_vertices` placed them. Without a
    placement, training vertices stay in their part, and every other vertex goes to the part that
    holds it at the lowest hop. Training then reads many rows from other parts.

    Vertices and edges are renumbered by part and type. They keep the graph's fields and get
    ``train_mask`` for the partition's training vertices. :data:`ORIGINAL_ID` holds the ids in the
    graph (int64). DGL stores bool as uint8.

    Needs 33 bytes per vertex of the whole graph, and one part with its fields, since DGL writes
    files from memory only.

    Args:
        partition: The partition.
        out: Must not exist yet.
        graph_name: Name of DGL's ``DistGraph``, and of the JSON file.
        halo_hops: DGL's ``num_hops``: in-edges are complete within so many hops of a part's own
            vertices. DistDGL needs 1, as it asks the owner for neighbours. Training on a part
            alone needs one hop per layer.
        source: The folder the graph was opened from, for :func:`~pagraph.partition.verify_dgl`.
        split: The split it was opened with.
        progress: Called with the parts written and all parts.

    Raises:
        FileExistsError: ``out`` exists.
        MissingDependencyError: DGL is not installed.
        OSError: The disk is full, or nothing can be written there.
        ValueError: ``graph_name`` is not a plain name, ``halo_hops`` is not in [1, 253], DGL's
            format cannot hold the name of a type or field, or a field is called
            :data:`ORIGINAL_ID`.
    """
    # All checks come first: the work may take hours.
    if not _SAFE_NAME.fullmatch(graph_name):
        raise ValueError(f"graph_name must be a plain file name, got {graph_name!r}")
    if not 1 <= halo_hops <= MAX_HOPS:
        raise ValueError(f"halo_hops must be from 1 to {MAX_HOPS}, got {halo_hops}")
    check_field_names(partition.graph)
    _import_dgl()
    check_absent(out)
    for edge_type in partition.graph.edge_types:
        partition.graph.csc_of(edge_type).validate()
    numbering = DglNumbering(partition)
    with new_folder(out) as folder:
        num_parts = partition.num_parts
        files = {}
        for part in range(num_parts):
            files[f"part-{part}"] = _write_part(folder, partition, numbering, part, halo_hops)
            if progress is not None:
                progress(part + 1, num_parts)
        config = config_of(partition, numbering, graph_name, halo_hops)
        notes = _notes(partition, source, split, Path(out))
        value = {**config, NOTES: notes, **files}
        (folder / f"{graph_name}.json").write_text(json.dumps(value, indent=4) + "\n")


def _notes(partition: Partition, source: StrPath | None, split: str, out: Path) -> dict[str, Any]:
    """Notes for verification, under a key that DGL does not read."""
    entry = None
    if source is not None:
        entry = describe_source(source, out, referenced={}, split=split).to_json()
    return {
        "train_type": partition.train_type,
        "train_sha256": train_digest(partition.train),
        "source": entry,
    }


def check_field_names(graph: Graph) -> None:
    """Refuse a graph with a field or a type whose name DGL's format cannot hold."""
    # DGL joins type and name with "/" in the files, and with ":" in its key-value store.
    for name in [*graph.node_types, *itertools.chain(*graph.edge_types)]:
        if "/" in name or ":" in name:
            raise ValueError(f"names of types must not contain '/' or ':', got {name!r}")
    of_nodes = map(graph.node_fields, graph.node_types)
    of_edges = map(graph.edge_fields, graph.edge_types)
    for name in itertools.chain(*of_nodes, *of_edges):
        if name == ORIGINAL_ID or "/" in name or ":" in name:
            raise ValueError(
                f"names of fields must not be {ORIGINAL_ID!r} or contain '/' or ':', got {name!r}"
            )


class DglNumbering:
    """DGL's numbers: vertices by part, then by type and id; edges by part, type and destination.

    With two parts and two types the new ids are, in order::

        | part 0: type A | part 0: type B | part 1: type A | part 1: type B |

    Attributes:
        types: Numbering over all types that ``owner``, ``order`` and ``new_ids`` use.
        owner: The part of each vertex, int32.
        order: The vertices in DGL's order.
        new_ids: Position of each vertex in ``order``.
        node_ranges: New ids ``[begin, end]`` of each part, by vertex type.
        edge_ranges: The same by edge type.
        edge_begin: New id of the first in-edge of each destination, by edge type.
    """

    def __init__(self, partition: Partition) -> None:
        graph = partition.graph
        self.types = partition.numbering
        self.owner = vertex_owners(partition)
        # Stable: within a part the numbers ascend, so vertices of one type are contiguous.
        self.order = torch.argsort(self.owner, stable=True)
        self.new_ids = torch.empty_like(self.order)
        self.new_ids[self.order] = torch.arange(len(self.order), device="cpu")
        pieces = torch.split(self.owner, [*self.types.num_nodes.values()])
        owners = dict(zip(graph.node_types, pieces, strict=True))
        sizes = [torch.bincount(owner, minlength=partition.num_parts) for owner in owners.values()]
        self.node_ranges = dict(zip(owners, _ranges(sizes), strict=True))
        degrees = {}
        edge_sizes = {}
        for edge_type in graph.edge_types:
            counts = torch.diff(graph.csc_of(edge_type).indptr).long()
            degrees[edge_type] = counts
            # An edge belongs to the part of its destination.
            none = torch.zeros_like(sizes[0])
            edge_sizes[edge_type] = none.index_add(0, owners[edge_type[2]], counts)
        ranges = _ranges([*edge_sizes.values()])
        self.edge_ranges = dict(zip(edge_sizes, ranges, strict=True))
        self.edge_begin: dict[EdgeType, Tensor] = {}
        for edge_type, counts in degrees.items():
            owner = owners[edge_type[2]].long()
            order = torch.argsort(owner, stable=True)
            # Within a part, edges of this type are contiguous and sorted by destination. The
            # running sum gives offsets within the type; the ranges give the part's new begin.
            first = torch.tensor(self.edge_ranges[edge_type], device="cpu")[:, 0]
            shift = first - _begins(edge_sizes[edge_type])
            begin = _begins(counts[order]) + shift[owner[order]]
            self.edge_begin[edge_type] = torch.empty_like(counts).index_put_((order,), begin)

    def own(self, part: int) -> Tensor:
        """Numbers of the vertices that a part owns, ascending."""
        # The ranges of a part's types follow one another.
        ranges = [ranges[part] for ranges in self.node_ranges.values()]
        chosen: Tensor = self.order[ranges[0][0] : ranges[-1][1]]
        return chosen


def _begins(sizes: Tensor) -> Tensor:
    """Where each of several runs begins, if they follow one another."""
    return sizes.cumsum(0) - sizes


def _ranges(sizes: list[Tensor]) -> list[list[list[int]]]:
    """``[begin, end]`` for each type and part, of a list ordered by part, then by type.

    ``sizes`` are the parts' sizes, one tensor for each type.
    """
    counts = torch.stack(sizes)  # (types, parts)
    # Transposed, the flat order is that of the ids.
    ends = counts.T.flatten().cumsum(0)
    ends = ends.reshape(-1, len(sizes)).T
    ranges: list[list[list[int]]] = torch.stack([ends - counts, ends], 2).tolist()
    return ranges


def config_of(
    partition: Partition, numbering: DglNumbering, graph_name: str, halo_hops: int
) -> dict[str, Any]:
    """The JSON file's entries about all parts, without their files."""
    graph = partition.graph
    edge_map = {":".join(etype): ranges for etype, ranges in numbering.edge_ranges.items()}
    return {
        "graph_name": graph_name,
        "num_nodes": graph.num_nodes,
        "num_edges": graph.num_edges,
        "part_method": f"pagraph-{partition.method}",
        "num_parts": partition.num_parts,
        "halo_hops": halo_hops,
        "node_map": numbering.node_ranges,
        "edge_map": edge_map,
        "ntypes": {name: place for place, name in enumerate(graph.node_types)},
        "etypes": {name: place for place, name in enumerate(edge_map)},
    }


@dataclass(frozen=True, eq=False)
class DglPart:
    """Content of a part's three files, as DGL's tensors.

    Attributes:
        csc: In-edges of the part's vertices: row bounds, sources and edges' numbers in the part.
        ndata, edata: Vertex and edge data of DGL's graph.
        node_fields, edge_fields: Fields of the vertices and edges the part owns, by type and name.
    """

    csc: _Arrays
    ndata: dict[str, Tensor]
    edata: dict[str, Tensor]
    node_fields: dict[str, Tensor]
    edge_fields: dict[str, Tensor]


def _write_part(
    folder: Path, partition: Partition, numbering: DglNumbering, part: int, halo_hops: int
) -> dict[str, str]:
    """Write the three files of a part; returns their names for the config."""
    paths = part_files(part)
    (folder / f"part{part}").mkdir()
    content = dgl_part(partition, numbering, part, halo_hops)
    _save_graph(folder / paths["part_graph"], content.csc, content.ndata, content.edata)
    _save_tensors(folder / paths["node_feats"], content.node_fields)
    _save_tensors(folder / paths["edge_feats"], content.edge_fields)
    return paths


def part_files(part: int) -> dict[str, str]:
    """Files of a part by their keys in the config."""
    names = {
        "node_feats": "node_feat.dgl",
        "edge_feats": "edge_feat.dgl",
        "part_graph": "graph.dgl",
    }
    return {key: f"part{part}/{name}" for key, name in names.items()}


def dgl_part(partition: Partition, numbering: DglNumbering, part: int, halo_hops: int) -> DglPart:
    """The content of a part, with its fields in memory."""
    graph = partition.graph
    structure = _structure(partition, numbering, part, halo_hops)
    node_fields: dict[str, Tensor] = {}
    for node_type, own in numbering.types.split(numbering.own(part)).items():
        node_fields |= _rows(node_type, graph.node_fields(node_type), own)
        if node_type == partition.train_type:
            train = partition.train_of(part)
            is_train = torch.isin(own, train, assume_unique=True)
            node_fields[f"{node_type}/train_mask"] = is_train
    edge_fields: dict[str, Tensor] = {}
    for edge_type, own in structure.own_edges.items():
        edge_fields |= _rows(":".join(edge_type), graph.edge_fields(edge_type), own)
    return DglPart(structure.csc, structure.ndata, structure.edata, node_fields, edge_fields)


def _rows(type_name: str, fields: Mapping[str, Tensor], ids: Tensor) -> dict[str, Tensor]:
    rows = {f"{type_name}/{name}": SelectedRows(field, ids)[:] for name, field in fields.items()}
    return {**rows, f"{type_name}/{ORIGINAL_ID}": ids}


class _Structure(NamedTuple):
    """A part's graph, all types as one.

    Attributes:
        csc, ndata, edata: As in :class:`DglPart`.
        own_edges: The ids of the part's own edges in the whole graph, by edge type.
    """

    csc: _Arrays
    ndata: dict[str, Tensor]
    edata: dict[str, Tensor]
    own_edges: dict[EdgeType, Tensor]


class _Edges(NamedTuple):
    """Edges of a part.

    Attributes:
        src, dst: Their ends, as numbers over all types of the part.
        new_ids: DGL's ids of them.
        is_own: Whether the part owns them.
    """

    src: Tensor
    dst: Tensor
    new_ids: Tensor
    is_own: Tensor


def _structure(
    partition: Partition, numbering: DglNumbering, part: int, halo_hops: int
) -> _Structure:
    """A part's graph: its own vertices and their in-edges first."""
    own = numbering.own(part)
    vertices = vertices_within(partition.merged, own, halo_hops)
    structure = extract_structure(partition.graph, vertices)
    ids = structure.vertices.ids
    places = numbering.types.places(ids)
    edges = []
    own_edges = {}
    for edge_type, found in structure.edges.items():
        of_type = _edges(structure, numbering, edge_type, places, len(own))
        edges.append(of_type)
        # In-edges are sorted by destination, and a part's own vertices come first.
        own_edges[edge_type] = found.edge_ids[: int(of_type.is_own.sum())].long()
    is_own = torch.arange(len(ids), device="cpu") < len(own)
    ndata = {
        "_ID": numbering.new_ids[ids],
        "inner_node": is_own.to(torch.uint8),
        "part_id": numbering.owner[ids].long(),
    }
    if partition.graph.is_homogeneous:
        (only,) = edges
        edata = {"_ID": only.new_ids, "inner_edge": only.is_own.to(torch.uint8)}
        order = torch.arange(len(only.src), device="cpu")
        csc = (structure.csc.indptr.long(), only.src, order)
        return _Structure(csc, ndata, edata, own_edges)
    # DGL reads vertex types as int16, and edge types as int32.
    ndata["_TYPE"] = torch.empty(len(ids), dtype=torch.int16, device="cpu")
    for number, place in enumerate(places.values()):
        ndata["_TYPE"][place] = number
    csc, edata = _merged(edges, len(ids))
    return _Structure(csc, ndata, edata, own_edges)


def _merged(edges: list[_Edges], num_nodes: int) -> tuple[_Arrays, dict[str, Tensor]]:
    """The in-edges of all types as one type, and their data."""
    every = _Edges(*map(torch.cat, zip(*edges, strict=True)))
    numbers = torch.arange(len(edges), dtype=torch.int32, device="cpu")
    counts = torch.tensor([len(of_type.src) for of_type in edges], device="cpu")
    types = numbers.repeat_interleave(counts)
    # DGL computes an own edge's local id as its new id minus the part's first. So own edges must
    # come first, sorted by type. Within a row DGL wants them sorted by type, too.
    order = torch.argsort(every.is_own.logical_not(), stable=True)
    edata = {
        "_ID": every.new_ids[order],
        "inner_edge": every.is_own[order].to(torch.uint8),
        "_TYPE": types[order],
    }
    dst = every.dst[order]
    row_order = torch.argsort(dst, stable=True)
    bounds = torch.arange(num_nodes + 1, device="cpu")
    indptr = torch.searchsorted(dst[row_order], bounds)
    return (indptr, every.src[order][row_order], row_order), edata


def _edges(
    structure: PartStructure,
    numbering: DglNumbering,
    edge_type: EdgeType,
    places: Mapping[str, Tensor],
    num_own: int,
) -> _Edges:
    """A part's edges of one type; the first ``num_own`` vertices are its own."""
    source_type, _, target_type = edge_type
    csc = structure.edges[edge_type].csc
    dst = csc.destinations().long()
    # An edge has the same rank among the in-edges of its destination and type in the part and in
    # DGL's order.
    targets = structure.types[target_type].ids
    shift = numbering.edge_begin[edge_type][targets] - csc.indptr[:-1]
    new_ids = torch.arange(csc.num_edges, device="cpu") + shift[dst]
    sources = places[source_type][csc.indices.long()]
    destinations = places[target_type][dst]
    return _Edges(sources, destinations, new_ids, destinations < num_own)


def _import_dgl() -> Any:
    from ..dgl.graphbolt import import_dgl

    return import_dgl()


def _save_graph(
    file: Path, csc: _Arrays, ndata: dict[str, Tensor], edata: dict[str, Tensor]
) -> None:
    """Save a graph by its in-edges."""
    from ..dgl.saving import save_whole_graph

    graph = _import_dgl().graph(("csc", csc), num_nodes=len(csc[0]) - 1)
    graph.ndata.update(ndata)
    graph.edata.update(edata)
    save_whole_graph(file, graph)


def _save_tensors(file: Path, tensors: dict[str, Tensor]) -> None:
    from ..dgl.saving import save_whole_tensors

    save_whole_tensors(file, tensors)
