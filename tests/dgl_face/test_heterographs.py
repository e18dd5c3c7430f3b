"""Heterographs: what is there by type and what is not, columns of one name in several types, layers
over relations."""

import pytest
import torch
from cases import collect, dgl, ours, theirs
from comparing import assert_chained
from worlds import BUYS, FOLLOWS, make_world, mapped

pytestmark = pytest.mark.usefixtures("no_threads_left", "one_dgl_thread", "fresh_worlds")

d = dgl.dataloading


def sampler_of(fanouts, **options):
    return d.NeighborSampler(fanouts, fused=False, **options)


@pytest.fixture
def graph():
    return make_world("heterograph").graph


SEEDS = {"user": torch.arange(10), "item": torch.arange(8)}
EVERY_NODE = {"user": ["feat", "plain"], "item": ["feat"], "tag": ["feat"], "ghost": ["feat"]}


def test_all_types_go_in_and_only_those_of_the_batch_come_out(graph):
    sampler = sampler_of([2, 2])
    first, second, third = ours(graph, SEEDS, sampler, batch_size=7)
    assert [list(batch[1]) for batch in (first, second, third)] == [
        ["user"],
        ["user", "item"],
        ["item"],
    ]
    assert [ids.tolist() for ids in second[1].values()] == [[7, 8, 9], [0, 1, 2, 3]]
    for input_nodes, output_nodes, blocks in (first, second, third):
        assert list(input_nodes) == graph.ntypes == ["ghost", "item", "tag", "user"]
        assert len(blocks) == 2
        assert_chained(input_nodes, output_nodes, blocks)
        for block in blocks:
            assert (
                block.canonical_etypes == graph.canonical_etypes
                and len(block.canonical_etypes) == 7
            )
            assert block.srctypes == block.dsttypes == graph.ntypes
            assert block.num_edges("has") == block.num_edges("made") == 0


def test_a_column_is_a_dict_of_the_types_that_have_it(graph):
    sampler = sampler_of([2], prefetch_node_feats=EVERY_NODE, prefetch_labels={"user": ["label"]})
    for input_nodes, output_nodes, (block,) in ours(graph, SEEDS, sampler, batch_size=7):
        feats, labels = block.srcdata["feat"], block.srcdata["label"]
        # Tags have none.
        assert set(feats) == set(graph.ntypes) and set(labels) == {"user", "item", "ghost"}
        for ntype, rows in feats.items():
            expected = graph.nodes[ntype].data["feat"][input_nodes[ntype]]
            assert (
                rows.dtype == expected.dtype
                and rows.shape == expected.shape
                and torch.equal(rows, expected)
            )
        ids = output_nodes.get("user", torch.empty(0, dtype=torch.int64))
        assert torch.equal(
            block.dstnodes["user"].data["label"], graph.nodes["user"].data["label"][ids]
        )


def test_types_without_vertices_in_the_batch_have_columns_without_rows(graph):
    sampler = sampler_of(
        [2], prefetch_node_feats=EVERY_NODE, prefetch_labels={"item": ["label", "feat"]}
    )
    (input_nodes, _, (block,)) = next(
        iter(ours(graph, {"user": torch.tensor([39])}, sampler, batch_size=1))
    )
    assert input_nodes["tag"].shape == (0,) and input_nodes["tag"].dtype == torch.int64
    for ntype, shape in {"ghost": (8,), "item": (3, 2), "tag": ()}.items():
        rows = block.srcnodes[ntype].data["feat"]
        assert rows.shape == (0, *shape) and rows.dtype == graph.nodes[ntype].data["feat"].dtype
    assert block.dstnodes["item"].data["label"].shape == (0,)
    assert block.dstnodes["item"].data["label"].dtype == torch.int64
    assert block.dstnodes["item"].data["feat"].shape == (0, 3, 2)


@pytest.mark.parametrize("edge_wise", [False, True])
def test_what_is_to_be_prefetched_is_there_and_the_rest_waits(graph, edge_wise):
    names = dict(
        prefetch_node_feats=EVERY_NODE,
        prefetch_labels={"user": ["label"]},
        prefetch_edge_feats={BUYS: ["w"]},
    )
    sampler, ids = sampler_of([2, 2], **names), SEEDS
    if edge_wise:
        sampler, ids = (
            d.as_edge_prediction_sampler(sampler, prefetch_labels={"buys": ["w"]}),
            {BUYS: torch.arange(30)},
        )
    number = graph.get_etype_id(BUYS)
    for batch in ours(graph, ids, sampler, batch_size=7):
        fetched = {
            ("src", ntype, name) for ntype, columns in EVERY_NODE.items() for name in columns
        }
        assert columns_there(batch[-1][0].srcnodes, "src", graph.ntypes) == fetched
        assert columns_there(batch[-1][-1].dstnodes, "dst", graph.ntypes) == {
            ("dst", "user", "label")
        }
        for part in [*batch[-1], *([batch[1]] if edge_wise else [])]:
            there = [
                {n for n, c in frame._columns.items() if c.index is None}
                for frame in part._edge_frames
            ]
            assert [i for i, columns in enumerate(there) if "w" in columns] == [number]


def columns_there(nodes, place, ntypes):
    """Columns that hold their rows already, ids aside."""
    frames = {
        ntype: nodes[ntype].data._graph._node_frames[nodes[ntype].data._ntid] for ntype in ntypes
    }
    return {
        (place, t, n) for t, f in frames.items() for n, c in f._columns.items() if c.index is None
    } - {(place, ntype, dgl.NID) for ntype in ntypes}


@pytest.mark.parametrize("prefetch", [{"tag": ["label"]}, {"user": ["nope"]}])
def test_a_prefetched_column_that_its_type_lacks(graph, prefetch):
    loader = ours(graph, SEEDS, sampler_of([2], prefetch_node_feats=prefetch), batch_size=7)
    with pytest.raises(KeyError, match=next(iter(prefetch.values()))[0]):
        list(loader)


@pytest.mark.parametrize(
    "fanout",
    [
        {"follows": 2, "buys": 0, "views": 1, "bought-by": 3, "on": -1, "has": 2, "made": 2},
        {
            c: i % 3
            for i, c in enumerate(
                [("ghost", "made", "user"), ("item", "bought-by", "user"), BUYS, FOLLOWS]
            )
        },
    ],
    ids=["every relation", "not every relation"],
)
def test_fanouts_by_relation(graph, fanout):
    if len(fanout) < 7:
        with pytest.raises(dgl.DGLError, match="[Ff]an-?out"):
            list(ours(graph, SEEDS, sampler_of([fanout]), batch_size=7))
        return
    for _, _, (block,) in ours(graph, SEEDS, sampler_of([fanout]), batch_size=7):
        for etype in graph.canonical_etypes:
            whole = graph.in_degrees(block.dstnodes[etype[2]].data[dgl.NID], etype=etype)
            most = fanout[etype[1]]
            assert torch.equal(
                block.in_degrees(etype=etype), whole if most == -1 else whole.clamp(max=most)
            )


def test_what_a_batch_holds_is_the_batchs_own(graph):
    """Writing to it changes neither the graph, nor the indices, nor a later batch."""
    before = {(t, k): v.clone() for t in graph.ntypes for k, v in graph.nodes[t].data.items()}
    ids = {ntype: part.clone() for ntype, part in SEEDS.items()}
    options = dict(
        prefetch_node_feats=EVERY_NODE,
        prefetch_labels={"user": ["label"]},
        prefetch_edge_feats={BUYS: ["w"]},
    )
    loader = ours(graph, ids, sampler_of([-1, -1], **options), batch_size=9, cache=1.0, prefetch=2)
    for _ in range(2):
        for input_nodes, output_nodes, blocks in loader:
            for ntype, rows in blocks[0].srcdata["feat"].items():
                assert torch.equal(rows, before[ntype, "feat"][input_nodes[ntype]])
            for part in (
                *input_nodes.values(),
                *output_nodes.values(),
                *blocks[0].srcdata["feat"].values(),
            ):
                part.zero_()
            for block in blocks:
                for ntype in block.ntypes:
                    block.dstnodes[ntype].data[dgl.NID].zero_()
    assert all(torch.equal(graph.nodes[t].data[k], v) for (t, k), v in before.items())
    assert all(torch.equal(ids[ntype], part) for ntype, part in SEEDS.items())


@pytest.mark.every
@pytest.mark.parametrize("prefetch", [0, 1, 4])
@pytest.mark.parametrize("lazy", [False, True])
def test_a_column_of_one_type_that_is_replaced_between_batches(graph, prefetch, lazy):
    sampler = sampler_of([-1], prefetch_node_feats=None if lazy else EVERY_NODE)
    loader = ours(
        graph, {"item": torch.arange(25)}, sampler, batch_size=5, prefetch=prefetch, cache=1.0
    )
    for step, (input_nodes, _, (block,)) in enumerate(loader):
        for ntype, ids in input_nodes.items():
            assert torch.equal(
                block.srcnodes[ntype].data["feat"], graph.nodes[ntype].data["feat"][ids]
            )
        ntype = ("user", "item")[step % 2]
        rows = torch.full((graph.num_nodes(ntype), step + 1), float(step))
        graph.nodes[ntype].data["feat"] = mapped(rows) if step < 3 else rows


@pytest.mark.every
@pytest.mark.parametrize(
    "kind", ["node-wise", "weighted", "labor", "weighted labor", "edge-wise", "negatives"]
)
def test_the_same_bits_for_any_workers_and_depth(kind, graph):
    fanouts, ids = [3, {c: 2 for c in graph.canonical_etypes}], SEEDS
    sampler_class = d.LaborSampler if "labor" in kind else d.NeighborSampler
    weights = {"prob": "p_float64"} if "weighted" in kind else {}
    sampler = sampler_class(fanouts, prefetch_node_feats=EVERY_NODE, **weights)
    if kind in ("edge-wise", "negatives"):
        negatives = d.negative_sampler.Uniform(2) if kind == "negatives" else None
        sampler = d.as_edge_prediction_sampler(sampler, exclude="self", negative_sampler=negatives)
        ids = {"buys": torch.arange(20, 60), FOLLOWS: torch.arange(30)}

    def epochs(**options):
        loader = ours(graph, ids, sampler, batch_size=6, shuffle=True, seed=4, **options)
        return [everything(item) for _ in range(2) for item in loader]

    expected = epochs(prefetch=0)
    assert expected[: len(expected) // 2] != expected[len(expected) // 2 :]
    for options in (
        {"prefetch": 1},
        {"num_workers": 2, "prefetch": 4},
        {"num_workers": 1, "prefetch": 0},
    ):
        assert epochs(**options) == expected


def everything(item):
    """All numbers of a batch, as nested lists."""
    if isinstance(item, dict):
        return {key: part.tolist() for key, part in item.items()}
    if isinstance(item, dgl.DGLGraph):
        nodes = item.srcnodes if item.is_block else item.nodes
        edges = [
            [part.tolist() for part in item.edges(form="all", order="eid", etype=c)]
            for c in item.canonical_etypes
        ]
        eids = [frame.get(dgl.EID, torch.empty(0)).tolist() for frame in item._edge_frames]
        return edges, eids, [nodes[ntype].data[dgl.NID].tolist() for ntype in item.ntypes]
    return [everything(part) for part in item]


def test_layers_over_relations_compute_the_same_on_our_blocks(graph):
    """Two layers of an R-GCN, forward and backward, on full neighbourhoods."""
    torch.manual_seed(0)
    etypes = [etype[1] for etype in graph.canonical_etypes]
    first = dgl.nn.HeteroGraphConv(
        {e: dgl.nn.GraphConv(2, 4, norm="right", allow_zero_in_degree=True) for e in etypes}
    )
    second = dgl.nn.HeteroGraphConv({e: dgl.nn.SAGEConv((4, 4), 3, "mean") for e in etypes})
    results = []
    for make in (ours, theirs):
        gradients = {ntype: torch.zeros(graph.num_nodes(ntype), 2) for ntype in graph.ntypes}
        outputs = []
        for input_nodes, _, blocks in collect(
            make(graph, SEEDS, sampler_of([-1, -1]), batch_size=7)
        ):
            x = {
                ntype: rows.clone().requires_grad_()
                for ntype, rows in blocks[0].srcdata["plain"].items()
            }
            y = second(blocks[1], first(blocks[0], x))
            sum(part.square().sum() for part in y.values()).backward()
            outputs += [(ntype, part.detach()) for ntype, part in sorted(y.items()) if len(part)]
            for ntype, part in x.items():
                if part.grad is not None:
                    gradients[ntype].index_add_(0, input_nodes[ntype], part.grad)
        results.append((outputs, gradients))
    (mine, my_gradients), (reference, gradients) = results
    assert [ntype for ntype, _ in mine] == [ntype for ntype, _ in reference] and len(mine) > 3
    torch.testing.assert_close([rows for _, rows in mine], [rows for _, rows in reference])
    torch.testing.assert_close(my_gradients, gradients)
    assert all(float(gradients[ntype].abs().sum()) > 0 for ntype in ("user", "item", "tag"))
