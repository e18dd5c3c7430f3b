"""Random walks and PinSAGE samplers in place of ``dgl.sampling``'s: its results, its errors, its
names."""

import inspect
from collections import Counter

import numpy as np
import pytest
import torch
from cases import dgl
from scipy import stats

import pagraph.dgl
from pagraph.dgl import sampling

pytestmark = pytest.mark.kernels


SHOP = {
    ("item", "bought-by", "user"): ([0, 0, 1, 1, 2, 2, 3], [0, 1, 0, 1, 2, 3, 2]),
    ("user", "bought", "item"): ([0, 1, 0, 1, 2, 3, 2], [0, 0, 1, 1, 2, 2, 3]),
}
PATH = ["bought-by", "bought"]


def make_shop(idtype=torch.int64):
    return dgl.heterograph(SHOP, {"item": 5, "user": 4}, idtype=idtype)


def make_graph(idtype=torch.int64):
    """Every vertex has 1 to 4 out-edges to others, in no order, but for one that has none."""
    rng = np.random.default_rng(3)
    src = np.repeat(np.arange(11), rng.integers(1, 5, 11))
    graph = dgl.graph(
        (torch.from_numpy(src), torch.from_numpy(rng.integers(0, 12, len(src)))), num_nodes=12
    )
    graph = graph.int() if idtype == torch.int32 else graph.long()
    graph.edata["w"] = torch.from_numpy(rng.choice([0.0, 1.0, 3.0], len(src)))
    return graph


@pytest.mark.parametrize("idtype", [torch.int32, torch.int64])
def test_equals_dgls_where_there_is_one_way_to_go(idtype):
    line = dgl.graph((torch.tensor([3, 0, 2, 1]), torch.tensor([4, 1, 3, 2])), idtype=idtype)
    starts = torch.tensor([0, 3, 4, 1, 0], dtype=idtype)
    for arguments in (
        {"length": 3, "return_eids": True},
        {"length": 6},
        {"length": 3, "restart_prob": 0.0, "return_eids": True},
        {"length": 3, "restart_prob": torch.tensor([0.0, 0.0, 1.0]), "return_eids": True},
        {"metapath": ["_E"] * 2, "length": 7},
    ):
        ours = sampling.random_walk(line, starts, **arguments)
        theirs = dgl.sampling.random_walk(line, starts, **arguments)
        assert all(
            a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(ours, theirs, strict=True)
        )
    ours = sampling.node2vec_random_walk(line, starts, 0.5, 2, 3, return_eids=True)
    theirs = dgl.sampling.node2vec_random_walk(line, starts, 0.5, 2, 3, return_eids=True)
    assert all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert torch.equal(sampling.node2vec_random_walk(line, starts, 1, 1, 3), theirs[0])


@pytest.mark.parametrize("idtype", [torch.int32, torch.int64])
def test_walks_along_a_metapath(idtype):
    torch.manual_seed(0)
    shop = make_shop(idtype)
    traces, eids, types = sampling.random_walk(
        shop, torch.tensor([0, 1, 2, 3, 4] * 20, dtype=idtype), metapath=PATH * 2, return_eids=True
    )
    assert types.tolist() == [
        shop.get_ntype_id(t) for t in ("item", "user", "item", "user", "item")
    ]
    assert {t.dtype for t in (traces, eids, types)} == {idtype}
    for t, etype in enumerate(PATH * 2):
        moved = traces[:, t] >= 0
        moved &= traces[:, t + 1] >= 0
        src, dst = shop.find_edges(eids[moved, t], etype=etype)
        assert torch.equal(src, traces[moved, t]) and torch.equal(dst, traces[moved, t + 1])
    assert (traces[4::5, 1:] == -1).all() and (traces[0::5] >= 0).all()


def count(rows):
    """How often each row came."""
    return Counter(map(tuple, rows.tolist()))


@pytest.mark.statistics
@pytest.mark.parametrize(
    "walk",
    [
        lambda of, g, starts: of.random_walk(g, starts, length=3, prob="w")[0],
        lambda of, g, starts: of.random_walk(g, starts, length=3, restart_prob=0.3)[0],
        lambda of, g, starts: of.random_walk(
            g, starts, length=2, restart_prob=torch.tensor([0.1, 0.6])
        )[0],
        lambda of, g, starts: of.node2vec_random_walk(g, starts, 0.3, 2.5, 3),
        lambda of, g, starts: of.node2vec_random_walk(g, starts, 4.0, 0.5, 3, prob="w"),
    ],
)
def test_walks_are_distributed_as_dgls(walk, one_dgl_thread):
    """Whole walks from one vertex, two samples compared by chi-square."""
    torch.manual_seed(1)
    dgl.seed(1)
    graph = make_graph()
    graph.edata["w"] += 0.5  # DGL's result is undefined where all weights are 0
    starts = torch.full((20_000,), 4)
    seen, expected = (count(walk(of, graph, starts)) for of in (sampling, dgl.sampling))
    table = [
        [seen[w], expected[w]] for w in seen.keys() | expected.keys() if seen[w] + expected[w] >= 10
    ]
    rare = 40_000 - sum(map(sum, table))
    assert rare < 400 and len(table) > 3
    assert stats.chi2_contingency(np.array(table).T).pvalue > 1e-4


def test_edges_of_weight_0_are_never_taken_and_end_a_walk_alone():
    graph = dgl.graph((torch.tensor([0, 0, 1, 2]), torch.tensor([1, 2, 0, 0])))
    graph.edata["w"] = torch.tensor([1.0, 0.0, 1.0, 0.0])
    assert set(sampling.random_walk(graph, [0] * 50, length=2, prob="w")[0][:, 1].tolist()) == {1}
    assert sampling.random_walk(graph, [2], length=2, prob="w")[0].tolist() == [[2, -1, -1]]
    graph.edata["w"] = torch.tensor([0.0, 1.0, 1.0, 1.0])  # another column of that name
    assert set(sampling.random_walk(graph, [0] * 50, length=1, prob="w")[0][:, 1].tolist()) == {2}


def test_follows_torchs_seed():
    graph, starts = make_graph(), torch.arange(12).repeat(10)
    sampler = sampling.RandomWalkNeighborSampler(graph, 2, 0.5, 5, 3)

    def drawn():
        return sampling.random_walk(graph, starts, length=5)[0], torch.stack(
            sampler(torch.arange(12)).edges()
        )

    torch.manual_seed(3)
    first, second = drawn(), drawn()
    torch.manual_seed(3)
    assert all(torch.equal(a, b) for a, b in zip(first, drawn(), strict=True))
    assert not torch.equal(first[0], second[0])


def test_visits_are_selected_as_dgl_selects_them():
    """The same traces through DGL's own selection: vertices, order and counts are equal."""
    torch.manual_seed(2)
    graph, walks, every, traversals = make_graph(), 7, 1, 3
    seeds = torch.arange(12)
    traces, _ = sampling.random_walk(
        graph, seeds.repeat_interleave(walks), length=traversals, restart_prob=0.2
    )
    src, dst = traces[:, every::every].reshape(-1), seeds.repeat_interleave(walks * traversals)
    for most in (1, 2, 5, 30):
        theirs = dgl.sampling.pinsage._select_pinsage_neighbors(
            src.clone(), dst, walks * traversals, most
        )
        ours = sampling.most_visited(traces, walks, every, most)
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("idtype", [torch.int32, torch.int64])
def test_pinsage_neighbours(idtype):
    torch.manual_seed(0)
    shop = make_shop(idtype)
    sampler = sampling.PinSAGESampler(shop, "item", "user", 3, 0.4, 10, 2, weight_column="visits")
    assert isinstance(sampler, dgl.sampling.PinSAGESampler) and isinstance(
        sampler, sampling.RandomWalkNeighborSampler
    )
    found = sampler(torch.tensor([2, 0, 4], dtype=idtype))
    assert found.ntypes == ["item"] and found.num_nodes() == 5 and found.idtype == idtype
    src, dst = found.edges()
    visits = found.edata["visits"]
    assert dst.tolist() == sorted(dst.tolist(), key=[2, 0, 4].index) and 4 not in dst.tolist()
    assert all(
        {2: {2, 3}, 0: {0, 1}}[d].issuperset({s})
        for s, d in zip(src.tolist(), dst.tolist(), strict=True)
    )
    for seed in (0, 2):
        mine = visits[dst == seed]
        assert 10 <= int(mine.sum()) <= 30 and mine.tolist() == sorted(mine.tolist(), reverse=True)
    same = sampling.RandomWalkNeighborSampler(
        shop, 3, 0.4, 10, 2, [("item", "bought-by", "user"), "bought"], "visits"
    )
    torch.manual_seed(0)
    again = same(torch.tensor([2, 0, 4], dtype=idtype))
    assert torch.equal(torch.stack(again.edges()), torch.stack((src, dst)))


def test_pinsage_counts_are_distributed_as_dgls(one_dgl_thread):
    torch.manual_seed(5)
    dgl.seed(5)
    graph = make_graph()
    counts = []
    for of in (sampling, dgl.sampling):
        found = of.RandomWalkNeighborSampler(graph, 3, 0.4, 4, 1)(torch.full((4000,), 4))
        assert found.num_edges() == 4000
        counts.append(count(torch.stack([found.edges()[0], found.edata["weights"]], 1)))
    table = [[part[key] for part in counts] for key in counts[0].keys() | counts[1].keys()]
    table = [row for row in table if sum(row) >= 20]
    assert stats.chi2_contingency(np.array(table).T).pvalue > 1e-4


def test_blocks_of_pinsage_through_the_loader():
    shop = make_shop()
    shop.nodes["item"].data["feat"] = torch.arange(10.0).reshape(5, 2)

    class Blocks(dgl.dataloading.BlockSampler):
        def sample_blocks(self, g, seed_nodes, exclude_eids=None):
            block = dgl.to_block(neighbors(seed_nodes["item"]), seed_nodes["item"])
            return block.srcdata[dgl.NID], seed_nodes, [block]

    neighbors = sampling.PinSAGESampler(shop, "item", "user", 2, 0.5, 5, 2)
    sampler = Blocks(prefetch_node_feats={"item": ["feat"]})
    loader = pagraph.dgl.DataLoader(
        shop, {"item": torch.arange(5)}, sampler, batch_size=2, num_workers=1
    )
    for input_nodes, _, (block,) in loader:
        assert torch.equal(block.srcdata["feat"], shop.nodes["item"].data["feat"][input_nodes])


BAD = [
    lambda of, g: of.random_walk(make_shop(), [0], length=2),
    lambda of, g: of.random_walk(g, [0]),
    lambda of, g: of.random_walk(g, [0, 12], length=2),
    lambda of, g: of.random_walk(g, [0, -1], length=2),
    lambda of, g: of.random_walk(g, torch.tensor([0], dtype=torch.int32), length=2),
    lambda of, g: of.random_walk(g, [0], length=2, restart_prob=1),
    lambda of, g: of.random_walk(g, [0], length=2, restart_prob=1.0),
    lambda of, g: of.random_walk(g, [0], length=2, restart_prob=-0.1),
    lambda of, g: of.random_walk(g, [0], length=2, prob="two"),
    lambda of, g: of.random_walk(make_shop(), [0], metapath=["bought", "bought"]),
    lambda of, g: of.random_walk(make_shop(), [0], metapath=["sold"]),
    lambda of, g: of.node2vec_random_walk(g, [0], 1, 1, 2, prob="missing"),
    lambda of, g: of.node2vec_random_walk(g, [99], 1, 1, 2),
    lambda of, g: of.RandomWalkNeighborSampler(make_shop(), 2, 0.5, 2, 2),
    lambda of, g: of.RandomWalkNeighborSampler(make_shop(), 2, 0.5, 2, 2, ["bought"]),
]


@pytest.mark.parametrize("number", range(len(BAD)))
def test_errors_are_of_dgls_types(number):
    graph = make_graph()
    graph.edata["two"] = torch.ones(graph.num_edges(), 1)
    for of in (sampling, dgl.sampling):
        with pytest.raises(Exception) as error:
            BAD[number](of, graph)
        if of is sampling:
            expected = error.type
    assert error.type is expected


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (
            lambda g: sampling.random_walk(g, [0], length=0),
            ValueError,
            "length must be at least 1, got 0",
        ),
        (
            lambda g: sampling.random_walk(g, [0], metapath=[]),
            ValueError,
            "metapath must have at least 1 edge type",
        ),
        (
            lambda g: sampling.random_walk(g, [0], length=2, restart_prob=torch.tensor([0.1])),
            dgl.DGLError,
            "one entry for each of 2 steps, got 1",
        ),
        (
            lambda g: sampling.random_walk(
                g, [0], length=2, restart_prob=torch.tensor([0.1, float("nan")])
            ),
            dgl.DGLError,
            r"must be in \[0, 1\], got nan",
        ),
        (
            lambda g: sampling.node2vec_random_walk(g, [0], 0, 1, 2),
            dgl.DGLError,
            "p must be positive and finite",
        ),
        (
            lambda g: sampling.node2vec_random_walk(g, [0], 1, -1, 2),
            dgl.DGLError,
            "q must be positive and finite",
        ),
        (
            lambda g: sampling.RandomWalkNeighborSampler(g, 2, 1.5, 2, 2),
            dgl.DGLError,
            r"termination_prob must be in \[0, 1\], got 1.5",
        ),
        (
            lambda g: sampling.RandomWalkNeighborSampler(g, 2, 0.5, 0, 2),
            ValueError,
            "num_random_walks must be at least 1, got 0",
        ),
        (
            lambda g: sampling.random_walk(g, [0], length=2, prob="bad"),
            dgl.DGLError,
            "must be finite and not negative",
        ),
    ],
)
def test_what_dgl_does_not_catch(call, error, words):
    graph = make_graph()
    graph.edata["bad"] = torch.full((graph.num_edges(),), -1.0)
    with pytest.raises(error, match=words):
        call(graph)


def test_names_and_signatures():
    assert sampling.pack_traces is dgl.sampling.pack_traces
    assert sampling.sample_neighbors is dgl.sampling.sample_neighbors
    assert {"pack_traces", "random_walk", "sample_neighbors"} <= set(dir(sampling))
    with pytest.raises(
        AttributeError, match="has no attribute 'walk_at_random', nor has 'dgl.sampling'"
    ):
        _ = sampling.walk_at_random
    for name in sampling.__all__:
        ours, theirs = (
            list(inspect.signature(getattr(of, name)).parameters) for of in (sampling, dgl.sampling)
        )
        assert ours == theirs
