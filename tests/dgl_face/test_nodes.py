"""Node-wise batches against DGL's own: structure, ids, columns, dtypes, values."""

import pytest
import torch
from cases import FIELD_DTYPES, bits, collect, dgl, make_graph, ours, random_field, theirs

import pagraph.dgl

pytestmark = pytest.mark.usefixtures("no_threads_left")

NeighborSampler = dgl.dataloading.NeighborSampler
FullSampler = dgl.dataloading.MultiLayerFullNeighborSampler


@pytest.mark.every
@pytest.mark.parametrize("dtype", FIELD_DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (5,), (2, 3)], ids=str)
def test_prefetched_columns_of_every_dtype_and_shape(dtype, shape):
    graph = make_graph()
    graph.ndata["x"] = random_field(graph.num_nodes(), shape, dtype, 1)
    graph.edata["y"] = random_field(graph.num_edges(), shape, dtype, 2)
    sampler = NeighborSampler(
        [3, 2],
        prefetch_node_feats=["x", "feat"],
        prefetch_labels=["x", "label"],
        prefetch_edge_feats=["y"],
    )
    for input_nodes, output_nodes, blocks in ours(graph, torch.arange(50), sampler, batch_size=20):
        for got, expected in [
            (blocks[0].srcdata["x"], graph.ndata["x"][input_nodes]),
            (blocks[0].srcdata["feat"], graph.ndata["feat"][input_nodes]),
            (blocks[-1].dstdata["x"], graph.ndata["x"][output_nodes]),
            (blocks[-1].dstdata["label"], graph.ndata["label"][output_nodes]),
            *[(b.edata["y"], graph.edata["y"][b.edata[dgl.EID]]) for b in blocks],
        ]:
            assert (
                got.dtype == expected.dtype and got.shape == expected.shape and got.is_contiguous()
            )
            assert torch.equal(got, expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32, torch.int64])
def test_weights_of_other_dtypes_draw_as_float32(dtype):
    graph = make_graph()
    weights = torch.randint(0, 4, (graph.num_edges(),), generator=torch.Generator().manual_seed(1))
    drawn = []
    for graph.edata["p"] in (weights.float(), weights.to(dtype)):
        batches = ours(
            graph, torch.arange(50), NeighborSampler([3, 2], prob="p"), batch_size=20, seed=1
        )
        drawn.append(
            [block.edata[dgl.EID].tolist() for _, _, blocks in batches for block in blocks]
        )
    assert drawn[0] == drawn[1]


def test_prefetch_by_type_name():
    graph = make_graph()
    sampler = NeighborSampler(
        [2],
        prefetch_node_feats={"_N": ["feat"]},
        prefetch_labels={"_N": ["label"]},
        prefetch_edge_feats={"_E": ["w"]},
    )
    input_nodes, output_nodes, (block,) = next(
        iter(ours(graph, torch.arange(9), sampler, batch_size=9))
    )
    assert block._node_frames[0]._columns["feat"].index is None  # fetched, not lazy
    assert torch.equal(block.srcdata["feat"], graph.ndata["feat"][input_nodes])
    assert torch.equal(block.dstdata["label"], graph.ndata["label"][output_nodes])
    assert torch.equal(block.edata["w"], graph.edata["w"][block.edata[dgl.EID]])


def test_a_column_added_later_can_be_read():
    graph = make_graph()
    loader = ours(graph, torch.arange(20), NeighborSampler([2]), batch_size=10)
    graph.ndata["late"] = torch.arange(graph.num_nodes())
    for input_nodes, _, blocks in loader:
        assert torch.equal(blocks[0].srcdata["late"], input_nodes)


def test_batches_can_be_written_and_kept():
    graph = make_graph()
    before = {k: v.clone() for k, v in graph.ndata.items()}
    sampler = NeighborSampler([3, 3], prefetch_node_feats=["feat"], prefetch_labels=["label"])
    loader = ours(graph, torch.arange(200), sampler, batch_size=10, seed=0, num_workers=2)
    kept = []
    for batch in loader:
        input_nodes, _, blocks = batch
        kept.append(batch)
        blocks[0].srcdata["feat"].add_(1000.0)
        blocks[-1].dstdata["label"].zero_()
    for input_nodes, _, blocks in kept:  # list(loader) keeps all batches valid
        assert torch.equal(blocks[0].srcdata["feat"], before["feat"][input_nodes] + 1000.0)
    for _, _, blocks in loader:
        assert torch.equal(blocks[0].srcdata["feat"], before["feat"][blocks[0].srcdata[dgl.NID]])
    assert all(torch.equal(graph.ndata[k], v) for k, v in before.items())


def test_repeated_seeds_keep_their_rows():
    graph = make_graph()
    ids = torch.tensor([4, 4, 9, 4])
    sampler = NeighborSampler([2, 2], prefetch_labels=["label"])
    input_nodes, output_nodes, blocks = next(iter(ours(graph, ids, sampler, batch_size=4)))
    assert output_nodes.tolist() == [4, 4, 9, 4] == input_nodes[:4].tolist()
    assert torch.equal(blocks[-1].dstdata["label"], graph.ndata["label"][ids])
    for block in blocks:
        src, dst = block.edges()
        parent_src, parent_dst = graph.find_edges(block.edata[dgl.EID])
        assert torch.equal(block.srcdata[dgl.NID][src], parent_src)
        assert torch.equal(block.dstdata[dgl.NID][dst], parent_dst)


@pytest.mark.parametrize("conv", ["sage", "gcn", "gat"])
def test_layers_compute_the_same_on_our_blocks(conv):
    graph = make_graph()
    torch.manual_seed(0)
    layer = {
        "sage": lambda: dgl.nn.SAGEConv(16, 4, "mean"),
        "gcn": lambda: dgl.nn.GraphConv(16, 4, allow_zero_in_degree=True),
        "gat": lambda: dgl.nn.GATConv(16, 4, 2, allow_zero_in_degree=True),
    }[conv]()
    for make in (ours, theirs):
        blocks = collect(make(graph, torch.arange(30), FullSampler(1), batch_size=30))[0][2]
        x = blocks[0].srcdata["feat"].clone().requires_grad_()
        out = layer(blocks[0], (x, x[: blocks[0].num_dst_nodes()])).flatten(1)
        out.square().sum().backward()
        by_node = torch.zeros(graph.num_nodes(), 16).index_add_(
            0, blocks[0].srcdata[dgl.NID], x.grad
        )
        if make is ours:
            mine = out.detach(), by_node
        else:
            torch.testing.assert_close(mine[0], out.detach())
            torch.testing.assert_close(mine[1], by_node)


def test_blocks_can_be_pickled_and_copied():
    import copy
    import pickle

    graph = make_graph()
    sampler = NeighborSampler([2, 2], prefetch_node_feats=["feat"])
    batch = next(iter(ours(graph, torch.arange(10), sampler, batch_size=10)))
    for clone in (pickle.loads(pickle.dumps(batch)), copy.deepcopy(batch)):
        assert bits(clone) == bits(batch)
        assert torch.equal(clone[2][0].srcdata["feat"], batch[2][0].srcdata["feat"])


def test_a_sampler_changed_between_epochs_is_followed():
    graph, sampler = make_graph(), NeighborSampler([1])
    loader = ours(graph, torch.arange(20), sampler, batch_size=20)
    assert int(next(iter(loader))[2][0].in_degrees().max()) == 1
    sampler.fanouts = [3]
    assert int(next(iter(loader))[2][0].in_degrees().max()) == 3


def test_a_graph_changed_between_epochs_is_followed():
    graph = make_graph()
    loader = ours(graph, torch.tensor([299]), FullSampler(1), batch_size=1)
    assert next(iter(loader))[2][0].num_edges() == 0
    graph.add_edges(torch.tensor([1, 2]), torch.tensor([299, 299]))
    assert sorted(next(iter(loader))[0].tolist()) == [1, 2, 299]


@pytest.mark.parametrize("fanout", [10**8, 2**31 - 1, 2**63 - 1])
def test_a_huge_fanout_means_all(fanout):
    graph = make_graph()
    for _, _, blocks in ours(
        graph, torch.arange(50), NeighborSampler([fanout, fanout]), batch_size=25
    ):
        for block in blocks:
            assert torch.equal(block.in_degrees(), graph.in_degrees(block.dstdata[dgl.NID]))


@pytest.mark.parametrize(
    "fanouts", [torch.tensor([2, 3]), [2.0, 3.0], [{"_E": 2}, {("_N", "_E", "_N"): 3}]]
)
def test_fanouts_in_the_forms_that_dgl_takes(fanouts):
    _, _, blocks = next(
        iter(ours(make_graph(), torch.arange(50), NeighborSampler(fanouts), batch_size=50))
    )
    assert [int(block.in_degrees().max()) for block in blocks] == [2, 3]


def test_writing_to_ids_of_one_block_leaves_the_others():
    graph = make_graph()
    input_nodes, _, blocks = next(
        iter(ours(graph, torch.arange(20), NeighborSampler([3, 3, 3]), batch_size=20))
    )
    before = [(b.srcdata[dgl.NID].clone(), b.dstdata[dgl.NID].clone()) for b in blocks[1:]]
    input_nodes.add_(5)
    blocks[1].srcdata[dgl.NID].add_(7)
    assert torch.equal(blocks[2].srcdata[dgl.NID], before[1][0])
    assert torch.equal(blocks[1].dstdata[dgl.NID], before[0][1])
    # As in DGL.
    assert torch.equal(blocks[1].srcdata["feat"], graph.ndata["feat"][before[0][0] + 7])


def test_schemes_tell_the_graphs_id_dtype():
    graph = make_graph(sort=True)
    for _, _, blocks in ours(graph, torch.arange(20), NeighborSampler([3]), batch_size=20):
        assert blocks[0].edge_attr_schemes()[dgl.EID].dtype == torch.int64


def test_prefetching_from_a_type_that_is_not_there():
    with pytest.raises(dgl.DGLError, match="must name types of the graph.*got 'x'"):
        ours(
            make_graph(), torch.arange(5), NeighborSampler([2], prefetch_node_feats={"x": ["feat"]})
        )


def test_converted_graphs_whose_edges_are_in_order_take_edge_features():
    """Our graphs keep no edge ids where those only count; DGL's libxsmm kernels need them."""
    core = pagraph.Graph.from_coo(torch.arange(2500) % 290, torch.arange(2500) // 9, 300)
    assert core.csc.edge_ids is None
    graph = pagraph.dgl.to_dgl(core)
    graph.edata["w"] = torch.rand(2500, 4)
    graph.update_all(dgl.function.copy_e("w", "m"), dgl.function.sum("m", "h"))
    expected = torch.zeros(300, 4).index_add_(0, graph.edges()[1], graph.edata["w"])
    torch.testing.assert_close(graph.ndata["h"], expected)
