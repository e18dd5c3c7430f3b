"""Batches of trees in one call of a kernel against the same batches hop by hop, bit by bit, in
groups of any size."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pagraph import CSC, FormatError, Graph
from pagraph.sampling import SubgraphSampler, tree_batch
from pagraph.sampling.subgraph_sampler import SubgraphRun
from pagraph.system.buffers import BufferPools

TYPE, EDGE = "_N", ("_N", "_E", "_N")


@st.composite
def graphs(draw):
    """Self-loops, parallel edges, isolated vertices, hubs; both widths; times of vertices, edges,
    both or none."""
    n, m = draw(st.integers(1, 40)), draw(st.sampled_from([0, 5, 60, 400]))
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    csc = CSC.from_coo(
        rng.integers(0, n, m), (rng.integers(0, n, m) * rng.random(m) ** 2).astype(int), n
    )
    if draw(st.booleans()):
        ids = None if csc.edge_ids is None else csc.edge_ids.long()
        csc = CSC(csc.indptr.long(), csc.indices.long(), n, ids)
    graph, scale = (
        Graph(csc),
        1 if csc.indices.dtype == torch.int64 else draw(st.sampled_from([1, 2**40])),
    )
    owners = draw(st.sampled_from([(), (n,), (m,), (n, m)]))
    for count, where in zip((n, m), ({}, {"edge_type": EDGE}), strict=True):
        if count in owners:
            times = torch.from_numpy(rng.integers(0, 9, count)) * scale
            if draw(st.booleans()) and count:
                times[0] = -(2**63)
            graph.set_field("t", times, **where)
    return graph, scale if owners else 0


def arrays(batch):
    """All that a batch holds."""
    ((nodes, trees, edges, ends),) = zip(
        *(
            values.values()
            for values in (batch.input_nodes, batch.trees, batch.edges, batch.hop_ends)
        ),
        strict=True,
    )
    tensors = nodes, trees, edges.edge_index, edges.edge_ids
    return [(t.dtype, tuple(t.shape), t.tolist()) for t in tensors], edges.hop_ends, ends


TREES = SubgraphRun._trees


def one_call(run):
    """The batch, which must not be left to sampling hop by hop."""
    batch = TREES(run)
    assert batch is not None
    return batch


@settings(max_examples=120)
@given(data=st.data())
def test_the_same_bits_as_hop_by_hop(data):
    graph, scale = data.draw(graphs())
    n, key = graph.num_nodes, data.draw(st.integers(0, 2**64 - 1))
    seeds = torch.tensor(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=12)))
    seeds = seeds.to(data.draw(st.sampled_from([torch.int32, torch.int64])))
    fanouts = data.draw(st.lists(st.sampled_from([0, 1, 2, 5]), max_size=3))
    if fanouts and data.draw(st.booleans()):
        fanouts[data.draw(st.integers(0, len(fanouts) - 1))] = 70  # more than a scan remembers
    how, more = {"replace": data.draw(st.booleans()), "disjoint": True}, {}
    if scale:
        window = data.draw(st.sampled_from([None, 2 * scale]))
        how |= {"time": "t", "latest": data.draw(st.booleans()), "time_window": window}
        more["seed_times"] = (
            torch.from_numpy(np.random.default_rng(key).integers(-1, 10, len(seeds))) * scale
        )
    sampler = SubgraphSampler(fanouts, **how)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SubgraphRun, "_trees", lambda run: None)
        expected = arrays(sampler.sample(graph, seeds, key, **more))
        patch.setattr(SubgraphRun, "_trees", one_call)
        patch.setattr(tree_batch, "_MOST_IN_GROUP", data.draw(st.sampled_from([1, 300, 2**16])))
        assert arrays(sampler.sample(graph, seeds, key, pools=BufferPools(1), **more)) == expected


@pytest.mark.parametrize(
    ("fanouts", "how"),
    [
        ([2, -1], {}),
        ([2], {"induced": True}),
        ([2], {"prob": "p"}),
        ([2], {"time": "t", "share_trees": True}),
        ([1000, 1000], {}),
    ],
)
def test_what_is_left_to_hops(fanouts, how, monkeypatch):
    graph = Graph.from_coo(
        [0, 1, 2], [1, 2, 0], ndata={"t": torch.arange(3)}, edata={"p": torch.ones(3)}
    )
    made = []
    monkeypatch.setattr(SubgraphRun, "_trees", lambda run: made.append(TREES(run)) or made[-1])
    batch = SubgraphSampler(fanouts, disjoint=True, **how).sample(graph, torch.tensor([0, 1]))
    assert made == [None] and batch.trees[TYPE][:2].tolist() == [0, 1]


def test_many_trees_with_tables_that_grow_and_shrink():
    """Some trees of one vertex, others of hundreds: against hop by hop, at the size of a real
    batch."""
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, 5000, 40_000), (5000 * rng.random(40_000) ** 3).astype(int)
    graph = Graph.from_coo(src, dst, 5000, ndata={"t": torch.from_numpy(rng.integers(0, 50, 5000))})
    seeds = torch.from_numpy(
        np.concatenate([rng.integers(0, 100, 200), rng.integers(4000, 5000, 300)])
    )
    sampler = SubgraphSampler([10, 10, 5], time="t")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SubgraphRun, "_trees", lambda run: None)
        expected = arrays(sampler.sample(graph, seeds, 3))
    assert arrays(sampler.sample(graph, seeds, 3)) == expected and expected[0][0][1][0] > 10_000


def test_damaged_files_are_an_error():
    seeds, sampler = torch.tensor([0, 1]), SubgraphSampler([2, 2], disjoint=True)
    bent = Graph(CSC(torch.tensor([0, 9, 4]), torch.tensor([0, 1, 1, 0]), 2), 2)
    with pytest.raises(FormatError, match="indptr must be non-decreasing, it is not at vertex 0"):
        sampler.sample(bent, seeds)
    far = Graph(CSC(torch.tensor([0, 2, 4]), torch.tensor([0, 1, 1, 9]), 2), 2)
    with pytest.raises(FormatError, match=r"indices must be in \[0, 2\), got 9"):
        sampler.sample(far, seeds)
