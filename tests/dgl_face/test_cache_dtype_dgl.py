"""``cache_dtype`` behind DGL's face: columns of all types, edges, labels; what is not prefetched
stays exact."""

import numpy as np
import pytest
import torch
from cases import dgl, ours

from pagraph.graph.mapped import map_npy

pytestmark = pytest.mark.usefixtures("no_threads_left")

NeighborSampler = dgl.dataloading.NeighborSampler


@pytest.fixture
def graph(tmp_path):
    rng = np.random.default_rng(0)
    counts = {"user": 150, "item": 80}
    edges = {
        etype: (
            torch.from_numpy(rng.integers(0, counts[etype[0]], 600)),
            torch.from_numpy(rng.integers(0, counts[etype[2]], 600)),
        )
        for etype in [
            ("user", "follows", "user"),
            ("user", "buys", "item"),
            ("item", "bought", "user"),
        ]
    }
    graph = dgl.heterograph(edges, num_nodes_dict=counts)

    def mapped(name, values):
        np.save(tmp_path / f"{name}.npy", values)
        return map_npy(tmp_path / f"{name}.npy")

    graph.nodes["user"].data["feat"] = mapped("user", rng.random((150, 6), dtype=np.float32))
    graph.nodes["item"].data["feat"] = mapped("item", rng.random((80, 2)))
    graph.nodes["item"].data["exact"] = mapped("exact", rng.random((80, 2), dtype=np.float32))
    graph.nodes["user"].data["score"] = mapped("score", rng.random(150, dtype=np.float32))
    graph.edges["buys"].data["w"] = mapped("w", rng.random(600, dtype=np.float32))
    return graph


def bf16(rows):
    return rows.float().bfloat16().to(rows.dtype)


@pytest.mark.every
@pytest.mark.parametrize("cache", [1, "25%", 1.0, "auto"], ids=str)
@pytest.mark.parametrize(("num_workers", "prefetch"), [(0, 0), (2, 3)])
def test_prefetched_columns_are_rounded_alike_and_others_exact(graph, cache, num_workers, prefetch):
    sampler = NeighborSampler(
        [4, 3],
        prefetch_node_feats={"user": ["feat"], "item": ["feat"]},
        prefetch_labels={"user": ["score"]},
        prefetch_edge_feats={"buys": ["w"]},
    )
    options = dict(
        batch_size=16,
        seed=0,
        cache=cache,
        cache_dtype="bf16",
        num_workers=num_workers,
        prefetch=prefetch,
    )
    loader = ours(graph, {"user": torch.arange(100)}, sampler, **options)
    for _ in range(2):
        for input_nodes, output_nodes, blocks in loader:
            for ntype in ("user", "item"):
                rows = blocks[0].srcnodes[ntype].data["feat"]
                assert torch.equal(rows, bf16(graph.nodes[ntype].data["feat"][input_nodes[ntype]]))
            assert torch.equal(
                blocks[0].srcnodes["item"].data["exact"],
                graph.nodes["item"].data["exact"][input_nodes["item"]],
            )
            score = blocks[-1].dstnodes["user"].data["score"]
            assert torch.equal(score, bf16(graph.nodes["user"].data["score"][output_nodes["user"]]))
            for block in blocks:
                ids = block.edges["buys"].data[dgl.EID]
                assert torch.equal(
                    block.edges["buys"].data["w"], bf16(graph.edges["buys"].data["w"][ids])
                )
    if isinstance(cache, float):
        fields = loader.stats.total.reads.fields
        assert all(field.hits > 0 for field in fields.values()), fields


def test_copies_of_a_loader_keep_it(graph):
    import copy

    sampler = NeighborSampler([2], prefetch_node_feats={"user": ["feat"]})
    loader = ours(
        graph, {"user": torch.arange(20)}, sampler, cache=1.0, cache_dtype="half", batch_size=10
    )
    again = copy.copy(loader)
    assert again.cache_dtype == loader.cache_dtype == torch.float16
    for input_nodes, _, blocks in again:
        rows = graph.nodes["user"].data["feat"][input_nodes["user"]]
        assert torch.equal(blocks[0].srcnodes["user"].data["feat"], rows.half().float())
