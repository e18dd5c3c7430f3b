"""Links of a feature store and a graph store, of one type and of several."""

import pytest
import torch
from torch_geometric.data import EdgeAttr
from torch_geometric.testing import MyFeatureStore, MyGraphStore

from pagraph.pyg import LinkNeighborLoader

R, S = ("u", "r", "v"), ("v", "s", "u")


def stores(*types):
    """Stores of random edges, and the edges by type (None: there is only one)."""
    generator, sizes = torch.Generator().manual_seed(0), {None: 40, "u": 40, "v": 30}
    features, graph, edges = MyFeatureStore(), MyGraphStore(), {}
    for etype in types or (None,):
        a, b = (None, None) if etype is None else (etype[0], etype[2])
        ends = torch.stack([torch.randint(sizes[t], (200,), generator=generator) for t in (a, b)])
        graph.put_edge_index(ends, EdgeAttr(etype, "coo", size=(sizes[a], sizes[b])))
        edges[etype] = ends
        for ntype in (a, b):
            features.put_tensor(
                torch.arange(sizes[ntype]).view(-1, 1), group_name=ntype, attr_name="x", index=None
            )
    return (features, graph), edges


@pytest.mark.parametrize("negatives", [None, "binary", ("triplet", 2)], ids=str)
@pytest.mark.parametrize("types", [(), (R, S)], ids=["one type", "two types"])
def test_links_of_stores(types, negatives):
    data, edges = stores(*types)
    etype = types[0] if types else None
    links, seen = edges[etype][:, :50], 0
    for batch in LinkNeighborLoader(
        data, [3, 3], (etype, links), neg_sampling=negatives, batch_size=16
    ):
        on_link, on_src, on_dst = (
            (batch,) * 3 if etype is None else (batch[t] for t in (etype, etype[0], etype[2]))
        )
        p = len(on_link.input_id)
        if isinstance(negatives, tuple):
            src, dst = on_src.src_index, on_dst.dst_pos_index
            assert on_dst.dst_neg_index.shape == (p, 2)
        else:
            src, dst = on_link.edge_label_index[:, :p]
        assert torch.equal(
            torch.stack([on_src.n_id[src], on_dst.n_id[dst]]), links[:, on_link.input_id]
        )
        assert torch.equal(on_src.x[:, 0], on_src.n_id) and torch.equal(on_dst.x[:, 0], on_dst.n_id)
        seen += p
    assert seen == 50


def test_all_edges_of_a_type():
    data, edges = stores(R, S)
    for form in (R, (R, None)):
        batch = next(iter(LinkNeighborLoader(data, [3], form, batch_size=16)))
        src, dst = batch[R].edge_label_index
        ends = torch.stack([batch["u"].n_id[src], batch["v"].n_id[dst]])
        assert torch.equal(ends, edges[R][:, batch[R].input_id])


@pytest.mark.parametrize(
    "links", [None, torch.zeros(2, 3, dtype=torch.int64)], ids=["none", "tensor"]
)
def test_links_need_a_type(links):
    with pytest.raises(
        ValueError, match="must be an edge type or a pair of an edge type and links"
    ):
        LinkNeighborLoader(stores()[0], [3], links)
