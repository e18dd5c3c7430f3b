"""Blocks of the core feed PyG's layers and DGL's, and both give the same."""

import subprocess

import pytest
import torch
from fresh_processes import HANGING, bare_python
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric import EdgeIndex
from torch_geometric.nn import GATConv, GCNConv, GraphConv, HeteroConv, SAGEConv

from pagraph import Graph, NeighborSampler
from pagraph.graph.csc import CSC
from pagraph.graph.minibatch import Block
from pagraph.sampling import LaborSampler

N, WIDTH = 60, 8


def sampled(device="cpu", sampler=None):
    """The outer of two blocks of a random graph; some destinations have no edge."""
    generator = torch.Generator().manual_seed(3)
    graph = Graph.from_coo(*torch.randint(N, (2, 100), generator=generator), N)
    batch = (sampler or NeighborSampler([3, 3])).sample(graph, torch.arange(0, 40, 3), key=1)
    block = batch.blocks[0]
    assert 0 < block.num_dst < block.num_src and (block.indptr.diff() == 0).any()
    return graph, block.to(device)


def rows_of(block):
    return torch.randn(
        block.num_src, WIDTH, generator=torch.Generator().manual_seed(0), requires_grad=True
    )


def dense(block):
    """How many edges lead from each source (column) to each destination (row)."""
    adjacency = torch.zeros(block.num_dst, block.num_src)
    for dst in range(block.num_dst):
        for edge in range(int(block.indptr[dst]), int(block.indptr[dst + 1])):
            adjacency[dst, int(block.indices[edge])] += 1
    return adjacency


def out_and_gradient(run, x):
    out = run(x)
    out.square().sum().backward()
    gradient, x.grad = x.grad, None
    return out.detach(), gradient


def agree(run, expected, x):
    for ours, wanted in zip(out_and_gradient(run, x), out_and_gradient(expected, x), strict=True):
        torch.testing.assert_close(ours, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_edges_in_the_order_of_the_block(dtype):
    src_nodes = torch.arange(5, dtype=dtype)
    block = Block(
        torch.tensor([0, 2, 2, 3], dtype=dtype),
        torch.tensor([4, 1, 0], dtype=dtype),
        src_nodes,
        src_nodes,
        3,
    )
    edge_index = block.to_pyg()
    assert (
        type(edge_index) is torch.Tensor
        and edge_index.dtype == torch.int64
        and edge_index.is_contiguous()
    )
    assert edge_index.tolist() == [[4, 1, 0], [0, 0, 2]]
    EdgeIndex(edge_index, sparse_size=(block.num_src, block.num_dst), sort_order="col").validate()


def test_no_edges():
    block = Block(
        torch.zeros(3, dtype=torch.int64),
        torch.empty(0, dtype=torch.int64),
        torch.arange(4),
        torch.empty(0),
        2,
    )
    assert block.to_pyg().shape == (2, 0)
    layer, x = SAGEConv(WIDTH, 3), torch.randn(4, WIDTH)
    torch.testing.assert_close(
        layer((x, x[:2]), block.to_pyg()), layer.lin_r(x[:2]) + layer.lin_l.bias
    )


def test_sage_mean_equals_a_dense_product():
    _, block = sampled()
    layer, mean = SAGEConv(WIDTH, 5), dense(block)
    mean = mean / mean.sum(1, keepdim=True).clamp(min=1)
    agree(
        lambda x: layer((x, x[: block.num_dst]), block.to_pyg()),
        lambda x: layer.lin_l(mean @ x) + layer.lin_r(x[: block.num_dst]),
        rows_of(block),
    )


def test_a_layer_with_a_fused_product_has_a_gradient():
    _, block = sampled()
    layer = GraphConv(WIDTH, 5)
    agree(
        lambda x: layer((x, x[: block.num_dst]), block.to_pyg()),
        lambda x: layer.lin_rel(dense(block) @ x) + layer.lin_root(x[: block.num_dst]),
        rows_of(block),
    )


def test_weights_go_with_their_edges():
    _, block = sampled(sampler=LaborSampler([3, 3], importance_sampling=1))
    assert block.weights is not None and block.weights.unique().numel() > 1
    layer, adjacency = GraphConv(WIDTH, 5), torch.zeros(block.num_dst, block.num_src)
    for dst in range(block.num_dst):
        for edge in range(int(block.indptr[dst]), int(block.indptr[dst + 1])):
            adjacency[dst, int(block.indices[edge])] += block.weights[edge]
    agree(
        lambda x: layer((x, x[: block.num_dst]), block.to_pyg(), block.weights),
        lambda x: layer.lin_rel(adjacency @ x) + layer.lin_root(x[: block.num_dst]),
        rows_of(block),
    )


def test_attention_equals_a_dense_softmax():
    _, block = sampled()
    layer, adjacency = GATConv((WIDTH, WIDTH), 4, heads=2, add_self_loops=False), dense(block)

    def expected(x):
        ours, theirs = layer.lin_src or layer.lin, layer.lin_dst or layer.lin
        src, dst = ours(x).view(-1, 2, 4), theirs(x[: block.num_dst]).view(-1, 2, 4)
        score = (dst * layer.att_dst).sum(-1)[:, None] + (src * layer.att_src).sum(-1)
        share = torch.nn.functional.leaky_relu(score, 0.2).exp() * adjacency[:, :, None]
        share = share / share.sum(1, keepdim=True).clamp(min=1e-16)
        return torch.einsum("dsh,shc->dhc", share, src).flatten(1) + layer.bias

    agree(lambda x: layer((x, x[: block.num_dst]), block.to_pyg()), expected, rows_of(block))


def test_a_layer_that_takes_no_pair():
    _, block = sampled()
    layer, square = (
        GCNConv(WIDTH, 5, add_self_loops=False),
        torch.zeros(block.num_src, block.num_src),
    )
    square[: block.num_dst] = dense(block)
    # As PyG has it: by in-degree on both sides.
    scale = square.sum(1).clamp(min=1).rsqrt() * (square.sum(1) > 0)
    agree(
        lambda x: layer(x, block.to_pyg())[: block.num_dst],
        lambda x: ((scale[:, None] * square * scale) @ layer.lin(x) + layer.bias)[: block.num_dst],
        rows_of(block),
    )


def test_several_types():
    generator = torch.Generator().manual_seed(0)
    sizes = {"a": 30, "b": 20}
    types = [("a", "to", "b"), ("b", "back", "a"), ("a", "own", "a")]
    graph = Graph(
        {t: CSC.from_coo(
            torch.randint(sizes[t[0]], (60,), generator=generator),
            torch.randint(sizes[t[2]], (60,), generator=generator),
            (sizes[t[0]], sizes[t[2]]),
        ) for t in types},
        sizes,
    )  # fmt: skip
    block = NeighborSampler([3, 3]).sample(graph, {"a": torch.arange(4)}, key=2).blocks[0]
    edges = block.to_pyg()
    assert set(edges) == set(types)
    for etype, relation in block.relations.items():
        nodes, ends = block.src_nodes, edges[etype]
        csc = graph.csc_of(etype)
        src, dst = csc.ends_at(relation.positions)
        assert torch.equal(nodes[etype[0]][ends[0]], src.long()) and torch.equal(
            nodes[etype[2]][ends[1]], dst.long()
        )
    x = {t: torch.randn(len(ids), WIDTH) for t, ids in block.src_nodes.items()}
    layers = {etype: SAGEConv(WIDTH, 4) for etype in types}
    for ntype, out in HeteroConv(layers)(x, edges).items():
        own = x[ntype][: block.num_dst[ntype]]
        alone = [
            layers[e]((x[e[0]], own), edges[e], (len(x[e[0]]), len(own)))
            for e in types
            if e[2] == ntype
        ]
        torch.testing.assert_close(out[: block.num_dst[ntype]], sum(alone))


@given(st.data())
def test_there_and_back(data):
    num_src = data.draw(st.integers(0, 6))
    num_dst = data.draw(st.integers(0, num_src))
    edges = st.tuples(st.integers(0, num_src - 1), st.integers(0, num_dst - 1))
    pairs = data.draw(st.lists(edges, max_size=12)) if num_dst else []
    dtype = data.draw(st.sampled_from([torch.int32, torch.int64]))
    edge_index = torch.tensor(pairs, dtype=dtype).reshape(-1, 2).t()
    weights, positions = torch.rand(len(pairs)), torch.arange(100, 100 + len(pairs))
    given_as = data.draw(st.sampled_from([lambda e: e, EdgeIndex]))(edge_index.contiguous())
    src_nodes = torch.arange(num_src) * 7
    block = Block.from_pyg(given_as, src_nodes, num_dst, positions=positions, weights=weights)
    order = sorted(range(len(pairs)), key=lambda edge: pairs[edge][1])  # stable
    assert block.to_pyg().t().tolist() == [list(pairs[edge]) for edge in order]
    assert (block.num_src, block.num_dst, block.indices.dtype, block.indptr.dtype) == (
        num_src,
        num_dst,
        dtype,
        dtype,
    )
    assert torch.equal(block.positions, positions[order]) and torch.equal(
        block.weights, weights[order]
    )
    bare = Block.from_pyg(edge_index, src_nodes, num_dst)
    assert bare.positions.tolist() == order and bare.weights is None and bare.src_nodes is src_nodes
    again = Block.from_pyg(block.to_pyg(), src_nodes, num_dst)
    assert torch.equal(again.indptr, block.indptr.long()) and torch.equal(
        again.indices, block.indices.long()
    )


@pytest.mark.parametrize(
    ("edge_index", "num_dst", "options", "error", "message"),
    [
        (
            torch.zeros(3, 2, dtype=torch.int64),
            2,
            {},
            ValueError,
            r"must have the shape \(2, num_edges\), got \(3, 2\)",
        ),
        ([[0], [0]], 2, {}, TypeError, "edge_index must be a tensor, got list"),
        (torch.tensor([[0], [0]]), None, {}, TypeError, "num_dst must be an integer, got None"),
        (
            torch.zeros(2, 2),
            2,
            {},
            TypeError,
            "edge_index must hold int32 or int64, got torch.float32",
        ),
        (
            torch.tensor([[4], [0]]),
            2,
            {},
            ValueError,
            r"edge_index\[0\] must be in \[0, 4\), got 4",
        ),
        (
            torch.tensor([[0], [2]]),
            2,
            {},
            ValueError,
            r"edge_index\[1\] must be in \[0, 2\), got 2",
        ),
        (
            torch.tensor([[0], [-1]]),
            2,
            {},
            ValueError,
            r"edge_index\[1\] must be in \[0, 2\), got -1",
        ),
        (
            torch.tensor([[0], [0]]),
            5,
            {},
            ValueError,
            r"num_dst must be in \[0, num_src=4\], got 5",
        ),
        (
            torch.tensor([[0], [0]]),
            2,
            {"weights": torch.ones(2)},
            ValueError,
            r"weights must have one .* \(1\), got 2",
        ),
    ],
)
def test_what_is_no_block(edge_index, num_dst, options, error, message):
    with pytest.raises(error, match=message):
        Block.from_pyg(edge_index, torch.arange(4), num_dst, **options)


class TestDgl:
    @pytest.fixture(autouse=True)
    def dgl(self):
        pytest.importorskip("pagraph.dgl")
        import dgl

        return dgl

    def test_layers_agree(self, dgl):
        _, block = sampled()
        theirs, ours = dgl.nn.SAGEConv(WIDTH, 5, "mean"), SAGEConv(WIDTH, 5)
        own = theirs.state_dict()
        bias = own["fc_self.bias"] if "fc_self.bias" in own else own["bias"]
        ours.load_state_dict(
            {
                "lin_l.weight": own["fc_neigh.weight"],
                "lin_l.bias": bias,
                "lin_r.weight": own["fc_self.weight"],
            }
        )
        agree(
            lambda x: ours((x, x[: block.num_dst]), block.to_pyg()),
            lambda x: theirs(block.to_dgl(), (x, x[: block.num_dst])),
            rows_of(block),
        )

    def test_ids(self, dgl):
        graph, block = sampled()
        assert graph.csc.edge_ids is not None
        made = block.to_dgl(graph)
        assert made.is_block and made.idtype == torch.int64
        assert torch.equal(made.srcdata[dgl.NID], block.src_nodes.long())
        assert torch.equal(made.dstdata[dgl.NID], block.dst_nodes.long())
        assert torch.equal(torch.stack(made.edges(order="eid")), block.to_pyg())
        assert torch.equal(made.edata[dgl.EID], graph.csc.edge_ids[block.positions.long()].long())
        assert dgl.EID not in block.to_dgl().edata
        weighted = sampled(sampler=LaborSampler([3, 3], importance_sampling=1))[1]
        assert torch.equal(weighted.to_dgl().edata["edge_weights"], weighted.weights)

    def test_nothing_is_shared(self, dgl):
        _, block = sampled()
        indices, src_nodes = block.indices.clone(), block.src_nodes.clone()
        made = block.to_dgl()
        made.srcdata[dgl.NID] += 1
        made.has_edges_between(made.edges()[0][:1], made.edges()[1][:1])  # sorts rows
        assert torch.equal(block.indices, indices) and torch.equal(block.src_nodes, src_nodes)

    def test_a_device_that_dgl_was_not_built_for(self, dgl):
        _, block = sampled("meta")
        message = (
            r"must be on the CPU for this DGL, .* block\.to\('cpu'\)\.to_dgl\(\), block\.to_pyg\(\)"
        )
        with pytest.raises(dgl.DGLError, match=message):
            block.to_dgl()


@pytest.mark.processes
def test_neither_pyg_nor_dgl_is_imported():
    code = """
import sys, torch
from pagraph import Graph, NeighborSampler
block = NeighborSampler([2]).sample(Graph.from_coo([0, 1], [1, 0]), torch.tensor([1])).blocks[0]
type(block).from_pyg(block.to_pyg(), block.src_nodes, block.num_dst)
print("torch_geometric" in sys.modules, "dgl" in sys.modules)
"""
    done = subprocess.run(
        [bare_python(), "-c", code], capture_output=True, text=True, timeout=HANGING
    )
    assert done.stdout.split() == ["False", "False"], done.stderr
