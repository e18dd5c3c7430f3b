"""DGL sorts a graph's rows in place when it draws pairs that are no edges: nothing of ours may be
in that memory."""

import pytest
import torch
from cases import dgl, edges_of, make_graph, ours

pytestmark = pytest.mark.usefixtures("no_threads_left", "one_dgl_thread")

d = dgl.dataloading


def made_of(layout, idtype):
    graph = make_graph(idtype=idtype)
    if layout == "coo":
        return graph
    indptr, indices, edge_ids = graph.adj_tensors("csc")
    # In no order.
    rows = [indices[i:j].flip(0) for i, j in zip(indptr[:-1], indptr[1:], strict=True)]
    return dgl.graph(
        ("csc", (indptr, torch.cat(rows), edge_ids if layout == "csc" else [])), idtype=idtype
    )


@pytest.mark.parametrize("idtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("layout", ["coo", "csc", "csc without ids"])
def test_edge_ids_of_a_graph_that_dgl_sorts(layout, idtype):
    graph = made_of(layout, idtype)
    loader = ours(
        graph, torch.arange(300, dtype=idtype), d.NeighborSampler([-1], fused=False), batch_size=100
    )
    held, before = list(loader), [edges_of(batch[2][0]) for batch in loader]
    rows = graph.adj_tensors("csc")[1].clone()
    dgl.sampling.global_uniform_negative_sampling(graph, 10)
    assert not torch.equal(graph.adj_tensors("csc")[1], rows)  # else this test says nothing
    assert [edges_of(batch[2][0]) for batch in held] == before
    assert [edges_of(batch[2][0]) for batch in loader] == before


@pytest.mark.parametrize(
    "sampler", [d.NeighborSampler([5, 5], fused=False), d.LaborSampler([5, 5])]
)
def test_blocks_share_nothing_that_dgl_sorts(sampler):
    graph = make_graph()
    mine, expected = (
        ours(graph, torch.arange(300), sampler, batch_size=100, seed=0) for _ in range(2)
    )
    for (_, _, (outer, inner)), (_, _, (_, same)) in zip(mine, list(expected), strict=True):
        dgl.sampling.global_uniform_negative_sampling(outer, 10)
        for ids in outer.adj_tensors("csc"):
            ids.zero_()
        assert edges_of(inner) == edges_of(same)
