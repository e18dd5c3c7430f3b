"""Files of a few bytes that stand for gigabytes, or never end: refused in little time and memory,
in one line."""

import io
import lzma
import os
import struct
import zipfile
import zlib

import networkx
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from fresh_processes import answer, forked_python

from pagraph import FormatError, open_partition
from pagraph.cli import main
from pagraph.datasets import open_graph, read_graph, sbm, write_graph
from pagraph.partition import (
    partition_graph,
    read_pagraph_partition,
    write_pagraph_partition,
    write_partition,
)

_READ = """
import json, os, resource, sys
import torch, numpy, networkx  # before the limit, which is of addresses
from pagraph.cli import main
from pagraph.datasets import import_graph
from pagraph.system import budget
# The process is a fork of one that has imported DGL and PyG as well.
budget.held_by_process = lambda: 100 << 20
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + 2**30
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    if sys.argv[2] == "import":
        import_graph(sys.argv[1], sys.argv[1] + ".out", memory="256MiB")
    else:
        main(sys.argv[2:] + [sys.argv[1]], standalone_mode=False)
    said = "read"
except Exception as error:
    said = f"{type(error).__name__}: {error}"
took = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10
json.dump([took, said], open(os.environ["PAGRAPH_TEST_ANSWER"], "w"))
"""


def read_in_a_gigabyte(path, *verb):
    """MiB that reading took in a process of a gigabyte more than its imports, and what it said."""
    return answer([forked_python(), "-c", _READ, path, *(verb or ["import"])])


def packed(path, head, count):
    """``count`` MiB of blanks behind some bytes. A MiB is packed once: behind a full flush its bytes
    do not depend on what comes before. The sum at the end is wrong; nobody reads so far."""
    packer = zlib.compressobj(1, wbits=31)
    begin = packer.compress(head) + packer.flush(zlib.Z_FULL_FLUSH)
    blanks = packer.compress(b" " * 2**20) + packer.flush(zlib.Z_FULL_FLUSH)
    path.write_bytes(begin + count * blanks + packer.flush())


def array_bomb(path, named, compression=zipfile.ZIP_DEFLATED):
    """An ``.npz`` of small arrays, and of zeros with a shape: 8 bytes a number."""
    with zipfile.ZipFile(path, "w", compression, compresslevel=1) as archive:
        for name, array in named.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                if isinstance(array, np.ndarray):
                    np.save(file, array)
                    continue
                np.lib.format.write_array_header_1_0(
                    file, {"descr": "<i8", "fortran_order": False, "shape": array}
                )
                for _ in range(8 * int(np.prod(array)) >> 20):
                    file.write(bytes(2**20))


def scipy_bomb(path):
    many = (60 * 2**20,)
    array_bomb(
        path,
        {
            "format": np.array(b"coo"),
            "shape": np.array([9, 9]),
            "row": many,
            "col": many,
            "data": many,
        },
    )


def torch_bomb(path):
    torch.save({"edge_index": torch.zeros(2, 64 * 2**20 // 16, dtype=torch.int64)}, path)
    content = path.read_bytes()
    with (
        zipfile.ZipFile(io.BytesIO(content)) as plain,
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for name in plain.namelist():
            archive.writestr(name, plain.read(name))


def wide_dictionary(path):
    """An xz file whose header asks for a dictionary of 3 GiB."""
    content = bytearray(
        lzma.compress(b"0 1\n", filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 2**16}])
    )
    end = 12 + 4 * (content[12] + 1) - 4
    content[content.index(b"\x21\x01", 12, end) + 2] = 39
    content[end : end + 4] = struct.pack("<I", zlib.crc32(bytes(content[12:end])))
    path.write_bytes(content)


def merge_keys(path):
    lines = [
        "a0: &a0 {x: 1}",
        *(f"a{i + 1}: &a{i + 1} {{<<: [{', '.join([f'*a{i}'] * 9)}]}}" for i in range(9)),
    ]
    path.write_text("\n".join([*lines, "nodes: {}", "edges: {}"]))


def fortran(path):
    with open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(
            file, {"descr": "<i8", "fortran_order": True, "shape": (2, 6 * 10**8)}
        )
        file.write(bytes(64))


BOMBS = {
    "scipy.npz": (scipy_bomb, "must fit into memory, got 1.406 GiB of arrays for 256 MiB"),
    "index.npz": (
        lambda path: array_bomb(path, {"edge_index": (2, 40 * 2**20)}),
        "must fit into memory, got 640 MiB of arrays for 256 MiB",
    ),
    "blank.gml.gz": (
        lambda path: packed(path, b"", 1500),
        "must have at most 5.12 MiB of text, unpacked",
    ),
    "blank.graphml.gz": (
        lambda path: packed(path, b"", 1500),
        "must have at most 5.12 MiB of text, unpacked",
    ),
    "text.graphml.gz": (
        lambda path: packed(path, b"<graphml>", 1500),
        "must have at most 5.12 MiB of text, unpacked",
    ),
    "line.txt.gz": (
        lambda path: packed(path, b"0 1\n", 1500),
        "must have lines of at most 1048576 bytes, line 2",
    ),
    "wide.txt.xz": (wide_dictionary, "must take at most 256 MiB to be unpacked"),
    "data.pt": (torch_bomb, "must be a file that torch.save wrote: it has "),
    "wide.mtx": (
        lambda path: path.write_text(
            "%%MatrixMarket matrix coordinate pattern general\n900000000 900000000 1\n1 2\n"
        ),
        "must have at most 10000000 vertices for 1 edges, it says 900000000",
    ),
    "merge.yaml": (merge_keys, "merge keys (<<) are not read"),
    "sixty.yaml": (
        lambda path: path.write_text(f"nodes: 1{':1' * 100_000}\n"),
        'text with ":" must be quoted',
    ),
    "tagged.yaml": (
        lambda path: path.write_text(f"nodes: !!int 1{':1' * 9999}\n"),
        'text with ":" must be quoted',
    ),
    "large.yaml": (
        lambda path: path.write_text(f"nodes: 0x{'f' * 99_999}\n"),
        "integers must fit into 64 bits",
    ),
    "many.yaml": (
        lambda path: path.write_text(f"nodes: [{'a,' * 500_000}]\n"),
        "at most 100000 entries",
    ),
    "fortran.npy": (fortran, "must have 9600000000 bytes after its header, got 64"),
}


@pytest.mark.every
@pytest.mark.parametrize("name", BOMBS)
def test_what_unpacks_to_gigabytes(name, tmp_path):
    make, message = BOMBS[name]
    make(tmp_path / name)
    took, said = read_in_a_gigabyte(tmp_path / name)
    assert said.startswith("FormatError: ") and message in said
    assert took < 300
    assert not (tmp_path / f"{name}.out").exists()


def pipe(path):
    path.unlink()
    os.mkfifo(path)


def zeros(path):
    path.unlink()
    path.symlink_to("/dev/zero")


@pytest.mark.every
@pytest.mark.parametrize(
    ("verb", "change"),
    [
        ("info", pipe),
        ("info", zeros),
        ("info", lambda path: os.truncate(path, 2**33)),
        ("train", zeros),
    ],
    ids=["pipe", "zeros", "huge", "zeros of train"],
)
def test_manifests_that_never_end(change, verb, tmp_path):
    write_graph(sbm(50, seed=0), tmp_path / "graph")
    change(tmp_path / "graph" / "manifest.json")
    took, said = read_in_a_gigabyte(tmp_path / "graph", verb)
    assert "must hold manifest.json" in said or "manifest.json must be a file of at most" in said
    assert took < 300


def test_text_that_takes_more_than_its_room(tmp_path):
    (tmp_path / "edges.txt").write_text("0 1\n" * 10_000)
    with pytest.raises(
        FormatError, match="edges.txt must fit into memory, got 78.12 KiB of edges for 64 KiB"
    ):
        read_graph(tmp_path / "edges.txt", memory="64KiB")
    assert read_graph(tmp_path / "edges.txt", memory="1MiB").num_edges == 10_000
    (tmp_path / "words.csv").write_text("".join(f"a{i},b{i}\n" for i in range(1000)))
    with pytest.raises(
        FormatError, match="words.csv must fit into memory, got .* of edges for 64 KiB"
    ):
        read_graph(tmp_path / "words.csv", relabel=True, header=False, memory="64KiB")
    networkx.write_gml(networkx.path_graph(100), tmp_path / "a.gml")
    with pytest.raises(FormatError, match="a.gml must have at most 1.279 KiB of text"):
        read_graph(tmp_path / "a.gml", memory="64KiB")
    np.save(tmp_path / "feat.npy", np.asfortranarray(np.zeros((2, 10_000))))
    (tmp_path / "few.txt").write_text("0 1\n")
    with pytest.raises(
        FormatError, match=r"feat.npy must fit into memory, got 156.2 KiB of numbers"
    ):
        read_graph(tmp_path / "few.txt", features=tmp_path / "feat.npy", memory="64KiB")
    with pytest.raises(ValueError, match="memory must be"):
        read_graph(tmp_path / "few.txt", memory="half")


@pytest.mark.parametrize("streams", [1, 2])
def test_xz_in_several_streams(streams, tmp_path):
    stream = lzma.compress(b"0 1\n1 2\n", preset=9)
    (tmp_path / "a.txt.xz").write_bytes((stream + bytes(8)) * streams)
    assert read_graph(tmp_path / "a.txt.xz").num_edges == 2 * streams
    (tmp_path / "b.txt.xz").write_bytes(stream * streams + stream[:-9])
    with pytest.raises(FormatError, match="is not a complete lzma file"):
        read_graph(tmp_path / "b.txt.xz")


def link(path, target):
    """Put a file elsewhere, and a link to it in its place."""
    path.rename(target)
    path.symlink_to(target)


def test_links_out_of_a_graph_folder(tmp_path):
    write_graph(sbm(50, seed=0), tmp_path / "graph")
    link(tmp_path / "graph" / "node-feat.npy", tmp_path / "theirs.npy")
    message = r"node-feat.npy must be inside .*graph, it is a link to .*theirs.npy"
    for verify in (False, True):
        with pytest.raises(FormatError, match=message):
            open_graph(tmp_path / "graph", verify=verify)
    shown = CliRunner().invoke(main, ["info", str(tmp_path / "graph")])
    assert shown.exit_code == 2 and "it is a link to" in shown.stderr


def test_links_out_of_parts(tmp_path):
    graph = sbm(60, seed=0)
    write_partition(partition_graph(graph, 2, hops=1, method="hash"), tmp_path / "parts")
    link(tmp_path / "parts" / "part-1", tmp_path / "elsewhere")
    with pytest.raises(
        FormatError, match="part-1 must be inside .*parts, it is a link to .*elsewhere"
    ):
        open_partition(tmp_path / "parts", 1)
    assert open_partition(tmp_path / "parts", 0).index == 0
    write_pagraph_partition(partition_graph(graph, 2, hops=1, method="hash"), tmp_path / "2naive")
    link(tmp_path / "2naive" / "sub_label_0.npy", tmp_path / "labels.npy")
    with pytest.raises(FormatError, match="sub_label_0.npy must be inside"):
        read_pagraph_partition(tmp_path / "2naive", graph)


def test_links_out_of_other_folders(tmp_path):
    from pagraph.datasets import export_graph

    graph = sbm(50, num_features=3, seed=0)
    export_graph(graph, tmp_path / "ogb", form="ogb")
    link(tmp_path / "ogb" / "raw" / "node-feat.csv.gz", tmp_path / "theirs.csv.gz")
    with pytest.raises(FormatError, match="node-feat.csv.gz must be inside"):
        read_graph(tmp_path / "ogb")
    (tmp_path / "old").mkdir()
    np.savez(tmp_path / "old" / "adj.npz", format="coo", shape=(2, 2), row=[0], col=[1], data=[1])
    np.save(tmp_path / "theirs.npy", np.zeros((2, 1)))
    (tmp_path / "old" / "feat.npy").symlink_to(tmp_path / "theirs.npy")
    with pytest.raises(FormatError, match="feat.npy must be inside"):
        open_graph(tmp_path / "old")
    pytest.importorskip("yaml")
    (tmp_path / "set").mkdir()
    np.save(tmp_path / "edges.npy", np.zeros((2, 3), np.int64))
    (tmp_path / "set" / "edges.npy").symlink_to(tmp_path / "edges.npy")
    (tmp_path / "set" / "metadata.yaml").write_text(
        "graph: {nodes: [{num: 2}], edges: [{format: numpy, path: edges.npy}]}"
    )
    with pytest.raises(FormatError, match="edges.npy must be inside"):
        read_graph(tmp_path / "set")


def test_long_names(tmp_path):
    name = "x" * 5000
    graph = sbm(50, seed=0)
    graph.set_field(name, torch.zeros(50))
    graph.set_field(name, torch.zeros(graph.num_edges), edge_type=graph.edge_types[0])
    write_graph(graph, tmp_path / "graph", origin={name: name})
    for verb in (["info"], ["train", "--task", "links", "--features", "none"], ["preaggregate"]):
        shown = CliRunner().invoke(
            main, [*verb, str(tmp_path / "graph"), str(tmp_path / name[:20])]
        )
        assert name[:2500] not in shown.output.replace("\n", "")
    info = CliRunner().invoke(main, ["info", str(tmp_path / "graph")])
    assert (
        info.exit_code == 0
        and "(5,000 characters)" in info.output
        and "(10,001 characters)" in info.output
    )
    with pytest.raises(KeyError) as caught:
        graph.node_fields(name)
    assert len(str(caught.value)) < 500
    with pytest.raises(ValueError, match="must have one row per vertex") as refused:
        graph.set_field(name, torch.zeros(3))
    assert len(str(refused.value)) < 500
