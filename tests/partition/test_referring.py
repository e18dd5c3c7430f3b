"""Parts whose wide fields are the source's: mapped once, read through the part's ids, refused when
they are others."""

import json
import os
import shutil
import subprocess
import textwrap

import pytest
import torch
from fresh_processes import HANGING, forked_python

from pagraph import FormatError, Graph, Loader, NeighborSampler, open_partition
from pagraph.datasets import write_graph
from pagraph.features import IndexedRows, on_disk
from pagraph.partition import verify_partition, write_partition

DataLoader = pytest.importorskip("pagraph.dgl").DataLoader
dgl = pytest.importorskip("dgl")


@pytest.fixture
def parts(divided, source, tmp_path):
    """A partition that refers to a source of its own, which a test may move."""
    shutil.copytree(source, tmp_path / "graph")
    write_partition(divided, tmp_path / "out", features="reference", source=tmp_path / "graph")
    return tmp_path / "out"


def same(left, right):
    return torch.equal(left.nan_to_num(9e9), right.nan_to_num(9e9))


def test_wide_fields_are_rows_by_reference_and_narrow_ones_are_not(parts, whole):
    part = open_partition(parts, 1)
    feat = part.graph.ndata["feat"]
    assert isinstance(feat, IndexedRows) and isinstance(part.graph.ndata["half"], IndexedRows)
    assert isinstance(part.graph.ndata["label"], torch.Tensor)
    assert len(feat.source) == whole.num_nodes and on_disk(feat.source)
    assert same(feat.materialize(), whole.ndata["feat"][part.global_ids])


@pytest.mark.parametrize("cache", [0, "30%"])
def test_both_loaders_read_them(parts, whole, cache):
    part = open_partition(parts, 0)
    sampler = dgl.dataloading.NeighborSampler(
        [5], prefetch_node_feats=["feat", "half"], prefetch_labels=["label"]
    )
    loader = DataLoader(part.graph, part.train, sampler, batch_size=16, cache=cache)
    for input_nodes, output_nodes, blocks in loader:
        ids = part.global_ids[input_nodes]
        assert same(blocks[0].srcdata["feat"], whole.ndata["feat"][ids])
        assert torch.equal(blocks[0].srcdata["half"], whole.ndata["half"][ids])
        assert torch.equal(
            blocks[0].dstdata["label"], whole.ndata["label"][part.global_ids[output_nodes]]
        )
    core = Loader(
        part.graph, part.train, NeighborSampler([5]), fields=["feat"], batch_size=16, cache=cache
    )
    for batch in core:
        assert same(batch.features["feat"], whole.ndata["feat"][part.global_ids[batch.input_nodes]])


def test_copied_and_referred_parts_give_the_same_batches(parts, divided, tmp_path):
    write_partition(divided, tmp_path / "copied")
    for rank in range(3):
        batches = [batches_of(open_partition(out, rank)) for out in (parts, tmp_path / "copied")]
        for mine, other in zip(*batches, strict=True):
            assert torch.equal(mine[0], other[0]) and torch.equal(mine[1], other[1])
            assert same(mine[2][0].srcdata["feat"], other[2][0].srcdata["feat"])


def batches_of(part):
    sampler = dgl.dataloading.NeighborSampler([5], prefetch_node_feats=["feat"])
    return list(DataLoader(part.graph, part.train, sampler, batch_size=16, shuffle=True, seed=0))


def test_the_two_folders_may_be_moved_together(parts, whole, tmp_path):
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for name in ("graph", "out"):
        shutil.move(tmp_path / name, moved / name)
    part = open_partition(moved / "out", 2, verify=True)
    assert same(part.graph.ndata["feat"][:], whole.ndata["feat"][part.global_ids])


def test_the_partition_may_be_moved_alone(parts, whole, tmp_path):
    moved = tmp_path / "far" / "away"
    moved.mkdir(parents=True)
    shutil.move(parts, moved / "out")
    part = open_partition(moved / "out", 0)
    assert same(part.graph.ndata["feat"][:], whole.ndata["feat"][part.global_ids])


def test_the_partition_may_be_given_the_place_of_the_graph(parts, whole, tmp_path):
    shutil.move(tmp_path / "graph", tmp_path / "another-disk")
    with pytest.raises(FormatError, match="give another place by source= or --source"):
        open_partition(parts, 0)
    part = open_partition(parts, 0, source=tmp_path / "another-disk", verify=True)
    assert same(part.graph.ndata["feat"][:], whole.ndata["feat"][part.global_ids])
    assert torch.equal(part.open_source().csc.indices, whole.csc.indices)
    assert verify_partition(parts, source=tmp_path / "another-disk").ok


def test_a_given_place_with_another_graph_is_refused(parts, whole, tmp_path):
    write_graph(Graph(whole.csc, ndata={"feat": whole.ndata["feat"][:] + 1}), tmp_path / "other")
    with pytest.raises(FormatError, match=r"other.manifest\.json must be that of the graph"):
        open_partition(parts, 0, source=tmp_path / "other")
    with pytest.raises(FormatError, match="must be at '.*nothing', got no manifest.json"):
        open_partition(parts, 0, source=tmp_path / "nothing")


def test_a_graph_that_was_in_memory_may_be_given_later(divided, source, whole, tmp_path):
    write_partition(divided, tmp_path / "out")
    part = open_partition(tmp_path / "out", 0, source=source)
    assert torch.equal(part.open_source().csc.indices, whole.csc.indices)
    write_graph(Graph.from_coo([0], [1]), tmp_path / "tiny")
    with pytest.raises(ValueError, match="source must be the graph of 300 vertices"):
        open_partition(tmp_path / "out", 0, source=tmp_path / "tiny").open_source()


def test_a_source_that_is_gone_is_named(parts, tmp_path):
    shutil.rmtree(tmp_path / "graph")
    with pytest.raises(FormatError, match=r"must be at '.*graph', got no manifest.json there"):
        open_partition(parts, 0)


def test_another_graph_at_its_place_is_refused(parts, tmp_path):
    manifest = tmp_path / "graph" / "manifest.json"
    value = json.loads(manifest.read_text())
    value["origin"] = {"made": "anew"}
    del value["checksum"]
    manifest.write_text(json.dumps(value))
    with pytest.raises(FormatError, match="another SHA-256"):
        open_partition(parts, 0)


def test_a_source_of_other_length_or_content_is_refused(parts, tmp_path):
    file = tmp_path / "graph" / "node-feat.npy"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(bytes(content))
    open_partition(parts, 0)  # only reading everything can tell
    with pytest.raises(FormatError, match="node-feat.npy is corrupt"):
        open_partition(parts, 0, verify=True)
    file.write_bytes(bytes(content[:-4]))
    with pytest.raises(FormatError, match="node-feat.npy must have"):
        open_partition(parts, 0)


def test_ids_that_are_not_the_sources_are_refused(parts):
    import numpy as np

    file = parts / "part-0" / "global_ids.npy"
    ids = np.load(file)
    ids[3] = 300
    np.save(file, ids)
    with pytest.raises(
        FormatError, match=r"field 'feat' of a part: ids must be in \[0, 300\), got 300"
    ):
        open_partition(parts, 0)


@pytest.mark.processes
@pytest.mark.skipif(
    not os.path.exists("/proc/self/smaps_rollup"), reason="needs /proc/self/smaps_rollup"
)
def test_two_processes_have_one_copy_of_the_features_in_memory(tmp_path):
    """Each reads all of them: both see the pages, and each is charged with half of them."""
    from pagraph.datasets import sbm, write_graph
    from pagraph.partition import partition_graph

    graph = sbm(4000, num_features=1024, seed=0)
    write_graph(graph, tmp_path / "graph")
    divided = partition_graph(graph, 2, hops=2, method="hash")
    write_partition(divided, tmp_path / "out", features="reference", source=tmp_path / "graph")
    script = textwrap.dedent("""
        import sys
        from pathlib import Path
        import pagraph
        from pagraph.features import HostFeature
        import torch
        part = pagraph.open_partition(sys.argv[1], int(sys.argv[2]))
        rows = part.graph.ndata["feat"]
        HostFeature(rows).read(torch.arange(len(rows)))
        print("read", len(rows), flush=True)
        sys.stdin.readline()
        resident = shared = 0
        for line in Path("/proc/self/smaps").read_text().splitlines():
            if "-" in line.split()[0]:
                inside = line.endswith("node-feat.npy")
            elif inside and line.startswith("Rss:"):
                resident += int(line.split()[1]) * 1024
            elif inside and line.startswith("Pss:"):
                shared += int(line.split()[1]) * 1024
        print(resident, shared, flush=True)
        sys.stdin.readline()
    """)
    command = [forked_python(), "-c", script, str(tmp_path / "out")]
    ranks = [
        subprocess.Popen(
            [*command, str(rank)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    try:
        rows = [int(rank.stdout.readline().split()[1]) for rank in ranks]
        figures = [tell(rank) for rank in ranks]
    finally:
        for rank in ranks:
            rank.communicate("\n", timeout=HANGING)
    size = graph.ndata["feat"].nbytes
    assert min(rows) > 3000  # most of the graph is in both parts
    assert sum(resident for resident, _ in figures) > 1.5 * size
    assert sum(shared for _, shared in figures) < 1.05 * size


def tell(process):
    process.stdin.write("\n")
    process.stdin.flush()
    return tuple(map(int, process.stdout.readline().split()))
