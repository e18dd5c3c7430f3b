"""What an edge sampler excludes: ids in any form, and changes of what is the same for every
batch."""

import pytest
import torch
from cases import dgl, make_graph, ours
from worlds import BUYS, VIEWS, make_world

pytestmark = pytest.mark.usefixtures("no_threads_left", "one_dgl_thread", "fresh_worlds")

d = dgl.dataloading


def edge_loader(graph, seeds, exclude, **options):
    sampler = d.as_edge_prediction_sampler(d.NeighborSampler([-1], fused=False), exclude=exclude)
    return ours(graph, seeds, sampler, batch_size=10, **options)


def edges_in(batch, etype=None):
    """Ids of the edges in a batch's blocks."""
    return {
        i
        for block in batch[-1]
        for i in block.edges[etype or block.canonical_etypes[0]].data[dgl.EID].tolist()
    }


def test_ids_made_in_inference_mode():
    """Writes to them cannot be seen: they are looked at for every batch."""
    with torch.inference_mode():
        ids = torch.arange(0, 2500, 2)
    iterator = iter(edge_loader(make_graph(), torch.arange(60), ids, prefetch=0))
    assert all(i % 2 for i in edges_in(next(iterator)))
    with torch.inference_mode():
        ids += 1
    assert all(i % 2 == 0 for i in edges_in(next(iterator)))


def test_a_mapping_that_gets_other_types():
    """The mapping and its tensors are the same objects; what they say of the types is not."""
    world = make_world("heterograph")
    ids = torch.arange(70)
    exclude = {"views": ids}
    iterator = iter(edge_loader(world.graph, {BUYS: torch.arange(60)}, exclude, prefetch=0))
    batch = next(iterator)
    assert not edges_in(batch, VIEWS) and edges_in(batch, BUYS) & set(range(70))
    exclude["buys"] = exclude.pop("views")
    batch = next(iterator)
    assert edges_in(batch, VIEWS) and not edges_in(batch, BUYS) & set(range(70))
    exclude["views"] = ids
    batch = next(iterator)
    assert not edges_in(batch, VIEWS) and not edges_in(batch, BUYS) & set(range(70))


@pytest.mark.parametrize(
    ("ids", "error", "match"),
    [
        (torch.tensor([1.5]), TypeError, "integers, got torch.float32"),
        (torch.arange(6).view(2, 3), ValueError, r"1-D, got shape \(2, 3\)"),
    ],
)
def test_what_is_no_list_of_ids(ids, error, match):
    graph = make_graph()
    for exclude in (ids, lambda seeds: ids):
        with pytest.raises(error, match=match):
            next(iter(edge_loader(graph, torch.arange(20), exclude)))


def test_ids_alone_where_there_are_several_edge_types():
    graph = make_world("heterograph").graph
    for exclude in (torch.arange(3), lambda seeds: torch.arange(3)):
        with pytest.raises(dgl.DGLError, match="mapping from edge type"):
            next(iter(edge_loader(graph, {BUYS: torch.arange(20)}, exclude)))


@pytest.mark.parametrize(
    ("ends", "error", "match"),
    [
        ((torch.tensor([1.5]), torch.tensor([2])), TypeError, "integers, got torch.float32"),
        ((torch.zeros(2, 2, dtype=torch.int64),) * 2, ValueError, r"1-D, got shape \(2, 2\)"),
    ],
)
def test_negative_pairs_that_are_no_ids(ends, error, match):
    sampler = d.as_edge_prediction_sampler(
        d.NeighborSampler([2]), negative_sampler=lambda graph, seeds: ends
    )
    with pytest.raises(error, match=f"ends of negative pairs must .*{match}"):
        next(iter(ours(make_graph(), torch.arange(20), sampler, batch_size=10)))
