"""Damaged files: whatever the bytes say, a reader finds it out, or hands over a sound graph."""

import contextlib
import gzip
import hashlib
import os
import shutil
import zlib
from pathlib import Path

import torch

from pagraph import Graph, Loader, NeighborSampler, open_partition
from pagraph.cli import main
from pagraph.datasets import open_graph, read_graph
from pagraph.partition import read_pagraph_partition, verify_partition
from pagraph.profile import merge_traces
from tests.partition.damage import edit_json
from tests.partition.damage import seal as seal_part

from .samples import sample_graph, train_a_little
from .worker import Case

NASTY = [
    None,
    True,
    -1,
    0,
    1,
    7,
    1.5,
    2**31,
    2**63,
    10**400,
    float("nan"),
    "",
    "feat",
    "\x1b[2J",
    "../x.npy",
    [],
    [[]],
    {},
]


def use(graph: Graph) -> None:
    """Check all ids, sample along every edge type, read every field."""
    for edge_type in graph.edge_types:
        graph.csc_of(edge_type).validate()
        for values in graph.edge_fields(edge_type).values():
            torch.as_tensor(values[:]).clone()
    if graph.is_homogeneous and graph.num_nodes:
        seeds = range(0, graph.num_nodes, max(1, graph.num_nodes // 20))
        for batch in Loader(
            graph, seeds, NeighborSampler([3, 2]), fields=[*graph.ndata], batch_size=8
        ):
            assert int(batch.input_nodes.max()) < graph.num_nodes


def info(path: Path) -> None:
    """As the command shows it, whose own rules the trial need not know."""
    from click.testing import CliRunner

    done = CliRunner().invoke(main, ["info", str(path)])
    assert done.exit_code in (0, 2), done.output
    assert (done.exit_code == 2) == (len(done.stderr.splitlines()) == 1), done.stderr
    assert "\x1b" not in done.output and "PAGRAPH_TRACEBACK" not in done.output, done.output


def read_parts(path: Path) -> None:
    for part in range(2):
        use(open_partition(path, part).graph)


def resume(path: Path) -> None:
    """Go on from a checkpoint of a run of one epoch."""
    train_a_little(sample_graph(), path)


def sampled(path: Path) -> None:
    """Sampled without asking first whether all ids are sound, as a loader does."""
    graph = open_graph(path)
    seeds = range(graph.num_nodes) if graph.is_homogeneous else ()
    for batch in Loader(
        graph, seeds, NeighborSampler([4, 4]), fields=[*graph.ndata][:1], batch_size=64
    ):
        assert int(batch.input_nodes.max()) < graph.num_nodes


FOLDER = [
    lambda path: use(open_graph(path, verify=True)),
    lambda path: use(open_graph(path)),
    sampled,
    info,
]
EDGES = [
    lambda path: use(read_graph(path)),
    lambda path: use(read_graph(path, relabel=True, undirected=True)),
]
FILE = [lambda path: use(read_graph(path))]
CHECKPOINT = [lambda path: resume(path)]
TRACE = [lambda path: merge_traces(path, path, out=path.with_name("out"))]

KINDS = {
    "graph": FOLDER,
    "citation": FOLDER[:2] + [info],
    "sums": FOLDER,
    "pagraph-form": FOLDER,
    "parts": [lambda path: verify_partition(path), read_parts],
    "pagraph-parts": [lambda path: read_pagraph_partition(path)],
    **dict.fromkeys(["csr.npz", "csc.npz", "coo.npz"], FILE),
    **dict.fromkeys(
        ["edges.txt", "edges.tsv", "edges.csv", "words.csv", "edges.txt.gz", "edges.parquet"], EDGES
    ),
    **dict.fromkeys(["graph.pt", "dict.pt"], FILE),
    "graph.bin": FILE,
    **dict.fromkeys(
        ["edges.mtx", "edges.graphml", "edges.gml", "out.edges", "edges.txt.xz", "edges.txt.bz2"],
        FILE,
    ),
    **dict.fromkeys(["benchmark.npz", "index.npz", "index.npy", "index.pt", "ogb"], FILE),
    "tables": [lambda path: use(read_graph(path / "graph.yaml"))],
    "saved": CHECKPOINT,
    **dict.fromkeys(
        ["trace.json", "trace.json.gz"],
        [lambda path: merge_traces(path, path, out=path.with_name("out"))],
    ),
}
"""What reads each sample: a name in the folder of samples, and functions of its path."""


def trial(case: Case) -> None:
    name = case.choose("kind", KINDS)
    source, target = case.samples / name, case.folder / name
    shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
    before = contents(target)
    for _ in range(case.rng.choice([1, 1, 1, 2, 5])):
        damage(case, target)
    if case.rng.random() < 0.5:
        seal(target)
    elif name in ("graph", "citation", "sums", "parts"):
        expect_found(
            name,
            target,
            {path for path, content in contents(target).items() if before.get(path) != content},
        )
    for number, read in enumerate(KINDS[name]):
        case.done.append(f"reader {number}")
        with case.refusing():
            read(target)


def expect_found(name: str, target: Path, changed: set[Path]) -> None:
    """Bytes of arrays that changed, checksums not, are always found by comparing these."""
    if not any(path.suffix == ".npy" for path in changed):
        return
    try:
        sound = (
            not verify_partition(target).findings
            if name == "parts"
            else bool(open_graph(target, verify=True))
        )
    except (ValueError, OSError):
        return
    assert not sound, f"{name}: changed and not found: {changed}"


def contents(target: Path) -> dict[Path, bytes]:
    files = [target] if target.is_file() else [*target.rglob("*")]
    return {file: file.read_bytes() for file in files if file.is_file() and not file.is_symlink()}


def damage(case: Case, target: Path) -> None:
    """Change one file."""
    files = sorted(contents(target))
    if not files:
        return
    path = case.rng.choice(files)
    case.done.append(f"file: {path.relative_to(case.folder)}")
    if path.suffix == ".json" and case.rng.random() < 0.7:
        change_json(case, path)
    elif path.name.endswith(".gz") and case.rng.random() < 0.5:
        with contextlib.suppress(EOFError, OSError, zlib.error):  # damaged by now
            path.write_bytes(gzip.compress(change_bytes(case, gzip.decompress(path.read_bytes()))))
    elif target.is_dir() and case.rng.random() < 0.1:
        replace_file(case, path, files)
    else:
        path.write_bytes(change_bytes(case, path.read_bytes()))


def change_bytes(case: Case, content: bytes) -> bytes:
    rng, data = case.rng, bytearray(content)
    at = rng.randrange(min(len(data), rng.choice([160, 2**40])) or 1)  # headers half of the time
    length = rng.choice([1, 1, 2, 4, 8, 100])
    kind = case.choose(
        f"bytes at {at}, {length}", ["flip", "set", "insert", "cut", "end", "repeat", "ones"]
    )
    if kind == "flip" and data:
        data[at] ^= 1 << rng.randrange(8)
    elif kind in ("set", "ones"):
        data[at : at + length] = b"\xff" * length if kind == "ones" else rng.randbytes(length)
    elif kind == "insert":
        data[at:at] = rng.choice(
            [rng.randbytes(length), b"9" * length, b"\n" * length, b",-1e999,"]
        )
    elif kind == "cut":
        del data[at : at + length]
    elif kind == "end":
        del data[at:]
    else:
        data[at:at] = data[at : at + length]
    return bytes(data)


def change_json(case: Case, path: Path) -> None:
    """Replace, remove or rename something anywhere in it."""

    def change(value: object) -> None:
        places = [*places_of(value)]
        if places:
            holder, key = case.rng.choice(places)
            new = case.choose(f"JSON at {str(key)[:50]}", [*NASTY, "remove", "rename"])
            if new == "remove":
                del holder[key]
            elif new == "rename" and isinstance(holder, dict):
                holder[case.rng.choice(["", "x", "\x1b[0m", "feat"])] = holder.pop(key)
            else:
                holder[key] = new

    try:
        edit_json(path, change)
    except ValueError:  # it is damaged by now
        path.write_bytes(change_bytes(case, path.read_bytes()))


def places_of(value):
    """Every (container, key) in a JSON value."""
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, item in list(items):
        yield value, key
        yield from places_of(item)


def replace_file(case: Case, path: Path, files: list[Path]) -> None:
    kind = case.choose(
        "becomes", ["gone", "empty", "folder", "pipe", "device", "loop", "another", "unreadable"]
    )
    content = case.rng.choice(files).read_bytes()
    path.unlink()
    if kind in ("empty", "another"):
        path.write_bytes(content if kind == "another" else b"")
    elif kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind in ("device", "loop"):
        path.symlink_to("/dev/zero" if kind == "device" else path)
    elif kind == "unreadable":
        path.write_bytes(content)
        path.chmod(0)


def seal(target: Path) -> None:
    """Let the manifests vouch for what the files hold now, the parts' before the whole's."""
    for manifest in sorted(target.rglob("manifest.json"), key=lambda path: -len(path.parts)):
        if not manifest.is_file():  # a pipe would be waited for
            continue
        # Damaged, too.
        with contextlib.suppress(
            ValueError, OSError, TypeError, KeyError, IndexError, AttributeError
        ):
            edit_json(manifest, lambda value, folder=manifest.parent: seal_entries(value, folder))
            for part in range(2 if (manifest.parent / "part-0").is_dir() else 0):
                seal_part(manifest.parent, part)


def seal_entries(value: object, folder: Path) -> None:
    for holder, key in places_of(value):
        if (
            key == "sha256"
            and isinstance(name := holder.get("file"), str)
            and (folder / name).is_file()
        ):
            content = (folder / name).read_bytes()
            holder.update(sha256=hashlib.sha256(content).hexdigest(), bytes=len(content))
