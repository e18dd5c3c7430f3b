"""Verification of a folder in DGL's partition format against the graph it was made from."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..datasets.dgl_file import load_saved_graph, load_saved_tensors
from ..datasets.manifest import take, take_count, take_name
from ..datasets.paths import existing_folder
from ..errors import FormatError
from ..graph.fields import mask_of
from ..graph.graph import Graph
from ..options.partitioning import MAX_HOPS
from ..system.checks import StrPath
from ..system.files import check_inside, read_small
from ..system.progress import Progress
from .dgl_format import NOTES, ORIGINAL_ID, DglNumbering, DglPart, config_of, dgl_part, part_files
from .manifest import train_digest
from .partition import Numbering, Partition
from .source import SourceEntry
from .verification import Finding, Verification, open_whole, validate_whole

_METHOD = "pagraph-"
_MOST_PARTS = 2**20


@dataclass(frozen=True)
class _Config:
    """The entries of a folder's JSON file that verification needs."""

    path: Path
    value: dict[str, Any]
    graph_name: str
    method: str
    num_parts: int
    halo_hops: int
    train_type: str
    train_sha256: str
    source: SourceEntry | None

    @classmethod
    def read(cls, folder: Path) -> _Config:
        """Read the file; FormatError if pagraph did not write it."""
        path = dgl_config(folder)
        if path is None:
            raise FormatError(f"{folder} must hold a partition in DGL's format, got no JSON file")
        where = str(path)
        value = json.loads(read_small(path))
        method = take(value, "part_method", str, where)
        notes = value.get(NOTES)
        if not method.startswith(_METHOD) or not isinstance(notes, dict):
            raise FormatError(
                f"{path} must be written by pagraph, which records what to verify, got the method "
                f"{method!r}"
            )
        num_parts = take_count(value, "num_parts", where)
        halo_hops = take_count(value, "halo_hops", where)
        if not 1 <= num_parts <= _MOST_PARTS or not 1 <= halo_hops <= MAX_HOPS:
            raise FormatError(f"{path} must be sound, got {num_parts} parts of {halo_hops} hops")
        # None for a graph that was in memory; then the caller names a folder.
        source = notes.get("source")
        if source is not None:
            source = SourceEntry.parse(source, where, typed=False)
        return cls(
            path,
            value,
            take_name(value, "graph_name", where),
            method.removeprefix(_METHOD),
            num_parts,
            halo_hops,
            take(notes, "train_type", str, where),
            take(notes, "train_sha256", str, where),
            source,
        )


def dgl_config(folder: Path) -> Path | None:
    """The JSON file of a partition in DGL's format; None if there is none, or several."""
    found = []
    for path in sorted(folder.glob("*.json")):
        try:
            value = json.loads(read_small(path))
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(value, dict) and "part_method" in value and "num_parts" in value:
            found.append(path)
    return found[0] if len(found) == 1 else None


def verify_dgl(
    out: StrPath, *, source: StrPath | None = None, progress: Progress | None = None
) -> Verification:
    """Compare every part of a folder in DGL's format with the graph it was made from.

    Checks that

    - every vertex is owned by exactly one part;
    - each part has all in-edges of its own vertices, and of others within ``halo_hops - 1`` hops;
    - DGL's ids, the ranges in the JSON file, fields and training vertices equal, bit for bit, what
      :func:`~pagraph.partition.write_dgl` would write for these owners.

    Needs memory for two copies of one part with its fields. DGL need not be installed.

    Args:
        out: Folder that :func:`~pagraph.partition.write_dgl` wrote; all parts must be there.
        source: Folder of the whole graph. Default: the one that ``out`` names.
        progress: Called with the number of parts done and the number of all parts.

    Raises:
        FileNotFoundError: There is no such folder.
        FormatError: It holds no partition that pagraph wrote, or its source is missing.
        ValueError: ``source`` must be given.
    """
    folder = existing_folder(out, name="out")
    config = _Config.read(folder)
    whole = open_whole(config.source, folder, source)
    if config.train_type not in whole.node_types:
        raise FormatError(f"{config.path}: {config.train_type!r} must be a vertex type of {whole}")
    validate_whole(whole, folder)
    # Owners first: all of DGL's ids follow from them.
    loaded = _Folder(folder, config)
    owner, findings = _owners(loaded, whole)
    vertices = edges = train_count = 0
    if not findings:
        partition, more = _partition(loaded, whole, owner)
        findings += more
        train_count = len(partition.train)
        numbering = DglNumbering(partition)
        findings += _check_config(config, partition, numbering)
        for part in range(config.num_parts):
            want = dgl_part(partition, numbering, part, config.halo_hops)
            findings += [
                Finding(check, part, message) for check, message in _check_part(loaded, part, want)
            ]
            vertices += len(want.ndata["_ID"])
            edges += len(want.edata["_ID"])
            del want  # before the next one is made
            if progress is not None:
                progress(part + 1, config.num_parts)
    return Verification(
        config.num_parts,
        train=train_count,
        vertices=vertices,
        edges=edges,
        missing=0,
        findings=tuple(findings),
    )


class _Folder:
    """The files of the parts. pagraph's own reader checks them; DGL's would trust them."""

    def __init__(self, folder: Path, config: _Config) -> None:
        self.folder = folder
        self.config = config

    def _path(self, part: int, key: str) -> Path:
        path = self.folder / part_files(part)[key]
        # A symbolic link in a downloaded folder may lead out of it. The reader reports missing
        # files.
        if path.exists():
            check_inside(self.folder, path)
        return path

    def structure(self, part: int) -> Graph:
        """The part's graph, all types as one."""
        return load_saved_graph(self._path(part, "part_graph"))

    def fields(self, part: int, key: str) -> dict[str, Tensor]:
        """Fields of the vertices ("node_feats") or edges ("edge_feats") that the part owns."""
        return load_saved_tensors(self._path(part, key))


def _owners(loaded: _Folder, whole: Graph) -> tuple[Tensor, list[Finding]]:
    """The part of every vertex, by number over all types."""
    numbering = Numbering(whole.num_nodes_by_type)
    owner = torch.full((whole.num_nodes,), -1, dtype=torch.int32, device="cpu")
    findings = []
    for part in range(loaded.config.num_parts):
        try:
            fields = loaded.fields(part, "node_feats")
            for node_type in whole.node_types:
                ids = fields.get(f"{node_type}/{ORIGINAL_ID}")
                message = _wrong_ids(ids, owner[numbering.rows(node_type)])
                if message:
                    findings.append(Finding("vertices", part, f"{node_type}: {message}"))
                else:
                    assert ids is not None
                    owner[ids + numbering.begin(node_type)] = part
        except (FormatError, OSError) as error:
            findings.append(Finding("files", part, str(error)))
    missing = (owner < 0).nonzero().squeeze(1)
    if len(missing) and not findings:
        rule = f"vertex {int(missing[0])} of the source must be owned by a part"
        findings.append(Finding("vertices", None, f"{rule} ({len(missing)} are not)"))
    return owner, findings


def _wrong_ids(ids: Tensor | None, owner: Tensor) -> str:
    """The fault in the ids of a type's vertices that a part owns; "" if there is none."""
    if ids is None or ids.dim() != 1 or ids.dtype != torch.int64:
        return f"{ORIGINAL_ID} must be a list of int64"
    if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= len(owner)):
        return f"{ORIGINAL_ID} must be in [0, {len(owner)})"
    if len(ids) > 1 and not bool((ids[1:] > ids[:-1]).all()):
        return f"{ORIGINAL_ID} must ascend"
    again = ids[owner[ids] >= 0]
    if len(again):
        vertex = int(again[0])
        return f"vertex {vertex} of the source must be in one part, got {int(owner[vertex])}, too"
    return ""


def _partition(loaded: _Folder, whole: Graph, owner: Tensor) -> tuple[Partition, list[Finding]]:
    """The partition that the parts describe, and findings about its training vertices."""
    config = loaded.config
    chosen = []
    for part in range(config.num_parts):
        fields = loaded.fields(part, "node_feats")
        mask = fields.get(f"{config.train_type}/train_mask")
        ids = fields[f"{config.train_type}/{ORIGINAL_ID}"]
        if mask is None or mask.shape != ids.shape:
            empty = owner[:0].long()
            found = Finding("training", part, "train_mask must have a value for each vertex")
            return _made(config, whole, empty, owner), [found]
        chosen.append(ids[mask.bool()])
    train = torch.cat(chosen).sort().values
    findings = []
    # The digest also covers training vertices that were drawn at random.
    mask = mask_of(whole.node_fields(config.train_type), "train_mask")
    if train_digest(train) != config.train_sha256:
        rule = "the training vertices must be those that were divided"
        if mask is not None:
            got = torch.zeros_like(mask)
            got[train] = True
            rule += f" ({int((got != mask).sum())} differ from the source's train_mask)"
        findings.append(Finding("training", None, rule))
    return _made(config, whole, train, owner), findings


def _made(config: _Config, whole: Graph, train: Tensor, owner: Tensor) -> Partition:
    begin = Numbering(whole.num_nodes_by_type).begin(config.train_type)
    return Partition(
        whole,
        train,
        owner[train + begin],
        config.num_parts,
        1,
        config.method,
        node_type=config.train_type,
        owner=owner,
    )


def _check_config(
    config: _Config, partition: Partition, numbering: DglNumbering
) -> Iterator[Finding]:
    want = config_of(partition, numbering, config.graph_name, config.halo_hops)
    for name, value in json.loads(json.dumps(want)).items():
        if config.value.get(name) != value:
            yield Finding("files", None, f"{config.path.name}: {name} must be that of these parts")
    for part in range(config.num_parts):
        # DGL opens any file named there, so another part's file would go unnoticed.
        files = config.value.get(f"part-{part}")
        if files not in (part_files(part), part_files(part) | _converted_files(part)):
            message = f"{config.path.name}: part-{part} must name the files of that part"
            yield Finding("files", part, message)


def _converted_files(part: int) -> dict[str, str]:
    """Files that DGL's ``dgl_partition_to_graphbolt`` adds to a part.

    They are pickled and not opened here: unpickling can run code of whoever wrote the folder.
    """
    return {"part_graph_graphbolt": f"part{part}/fused_csc_sampling_graph.pt"}


def _check_part(loaded: _Folder, part: int, want: DglPart) -> Iterator[tuple[str, str]]:
    try:
        graph = loaded.structure(part)
        fields = {
            "node_feats": loaded.fields(part, "node_feats"),
            "edge_feats": loaded.fields(part, "edge_feats"),
        }
    except (FormatError, OSError) as error:
        yield "files", str(error)
        return
    # Edge by edge, in DGL's order; the checks of edge data rely on this.
    csc = graph.csc
    ids = torch.arange(csc.num_edges, device="cpu") if csc.edge_ids is None else csc.edge_ids
    got = (csc.indptr, csc.indices, ids)
    names = ("bounds of rows", "sources", "order")
    for name, mine, theirs in zip(names, want.csc, got, strict=True):
        if not torch.equal(mine.long(), theirs.long()):
            yield "edges", f"the {name} of the in-edges must be those of the source"
            return
    yield from _check_named("vertices", want.ndata, graph.ndata, "graph.dgl, vertices")
    yield from _check_named("edges", want.edata, graph.edata, "graph.dgl, edges")
    yield from _check_named("fields", want.node_fields, fields["node_feats"], "node_feat.dgl")
    yield from _check_named("fields", want.edge_fields, fields["edge_feats"], "edge_feat.dgl")


def _check_named(
    check: str, want: Mapping[str, Tensor], got: Mapping[str, Any], where: str
) -> Iterator[tuple[str, str]]:
    """Findings where tensors differ by name, type or bits."""
    if want.keys() != got.keys():
        yield check, f"{where}: must hold {sorted(want)}, got {sorted(got)}"
        return
    for name, value in want.items():
        # DGL stores bools as bytes.
        mine = value.to(torch.uint8) if value.dtype == torch.bool else value
        theirs = got[name]
        if mine.dtype != theirs.dtype or mine.shape != theirs.shape:
            rule = f"must be {mine.dtype} of shape {list(mine.shape)}"
            yield check, f"{where}: {name} {rule}, got {theirs.dtype} of {list(theirs.shape)}"
        elif not _same_bits(mine, theirs):
            yield check, f"{where}: {name} must be that of the source"


def _same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal bit for bit; NaN equals itself."""
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))
