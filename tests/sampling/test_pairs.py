"""Edge-wise batches: ends of edges by id, negative pairs, one numbering for several groups of
pairs."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pagraph import CSC, Graph
from pagraph.sampling.negative import GlobalUniformNegatives, UniformNegatives, compact_pairs
from pagraph.seeds import derive_key

A, B = ("u", "r", "v"), ("v", "s", "v")
LOOPS = ("_N", "_E", "_N")


@given(
    n=st.integers(1, 20),
    m=st.integers(0, 60),
    seed=st.integers(0, 2**32 - 1),
    sort=st.booleans(),
    dtype=st.sampled_from([torch.int32, torch.int64]),
)
def test_ends_of_edges_by_id(n, m, seed, sort, dtype):
    rng = np.random.default_rng(seed)
    src, dst = rng.integers(0, n, m), rng.integers(0, n, m)
    dst = np.sort(dst) if sort else dst
    csc = CSC.from_coo(src, dst, n)
    ids = torch.from_numpy(rng.permutation(np.repeat(np.arange(m), 2))).to(dtype)
    positions = csc.positions_of(ids)
    if csc.edge_ids is not None:
        assert torch.equal(csc.edge_ids[positions.long()].long(), ids.long())
    found_src, found_dst = csc.ends_at(positions)
    assert found_src.tolist() == src[ids.numpy()].tolist()
    assert found_dst.tolist() == dst[ids.numpy()].tolist()


def test_ids_of_no_edge():
    csc = CSC.from_coo([0, 1], [1, 0], 2)
    for bad in (-1, 2):
        with pytest.raises(IndexError, match=rf"edge ids must be in \[0, 2\), got {bad}"):
            csc.positions_of(torch.tensor([0, bad]))


@st.composite
def groups(draw):
    """Pairs of one or two kinds, as a positive and a negative graph would have them."""

    def ends(limits):
        n = draw(st.integers(0, 8))
        return tuple(
            torch.tensor([draw(st.integers(0, k - 1)) for _ in range(n)], dtype=torch.int64)
            for k in limits
        )

    kinds = {A: (9, 5), B: (5, 5)}
    return [
        {etype: ends(limits) for etype, limits in kinds.items() if draw(st.booleans())}
        for _ in range(draw(st.integers(1, 2)))
    ]  # fmt: skip


@given(groups=groups())
def test_compact_pairs_numbers_by_first_appearance(groups):
    graph = Graph(
        {
            A: CSC(torch.tensor([0, 0, 0, 0, 0, 0]), torch.empty(0).long(), 9),
            B: CSC.from_coo([], [], 5),
        }
    )
    nodes, local = compact_pairs(graph, groups, torch.int64)
    expected = {"u": [], "v": []}
    for group in groups:
        for etype in (A, B):
            for ntype, ids in zip((etype[0], etype[2]), group.get(etype, ([], [])), strict=True):
                for v in map(int, ids):
                    if v not in expected[ntype]:
                        expected[ntype].append(v)
    assert {t: ids.tolist() for t, ids in nodes.items()} == expected
    for group, numbered in zip(groups, local, strict=True):
        assert list(numbered) == [A, B]
        for etype, (src, dst) in numbered.items():
            there = group.get(etype, (torch.empty(0).long(),) * 2)
            assert nodes[etype[0]][src].tolist() == there[0].tolist()
            assert nodes[etype[2]][dst].tolist() == there[1].tolist()


def test_uniform_negatives_keep_their_sources_and_are_uniform():
    csc = CSC.from_coo(np.arange(1000) % 40, np.arange(1000) % 40, 40)
    src = torch.arange(2000) % 40
    negative_src, dst = UniformNegatives(3).draw(csc, LOOPS, (src, src), 7)
    assert torch.equal(negative_src, src.repeat_interleave(3)) and dst.dtype == src.dtype
    assert stats.chisquare(torch.bincount(dst, minlength=40).numpy()).pvalue > 1e-4
    again = UniformNegatives(3).draw(csc, LOOPS, (src, src), 7)[1]
    other = UniformNegatives(3).draw(csc, LOOPS, (src, src), 8)[1]
    assert torch.equal(dst, again) and not torch.equal(dst, other)
    nobody = UniformNegatives(2).draw(csc, LOOPS, (src[:0], src[:0]), 7)
    assert len(nobody[0]) == len(nobody[1]) == 0


@pytest.mark.parametrize("loops", [True, False])
@pytest.mark.parametrize("replace", [True, False])
def test_global_negatives_are_no_edges_and_uniform_over_the_rest(loops, replace):
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, 12, 60), rng.integers(0, 12, 60)
    csc, edges = CSC.from_coo(src, dst, 12), set(zip(src.tolist(), dst.tolist(), strict=True))
    free = [
        (u, v) for u in range(12) for v in range(12) if (u, v) not in edges and (loops or u != v)
    ]
    sampler = GlobalUniformNegatives(4, exclude_self_loops=not loops, replace=replace)
    counts = dict.fromkeys(free, 0)
    for key in range(400):
        u, v = sampler.draw(csc, LOOPS, (torch.arange(6),) * 2, derive_key(1, key))
        pairs = list(zip(u.tolist(), v.tolist(), strict=True))
        assert len(pairs) == 24 and (replace or len(set(pairs)) == 24)
        for pair in pairs:
            counts[pair] += 1  # KeyError: an edge, or a self-loop that must not be
    observed = np.array(list(counts.values()))
    expected = 400 * 24 / len(free)
    statistic = ((observed - expected) ** 2 / expected).sum()
    if not replace:  # pairs of one batch exclude each other
        statistic *= (len(free) - 1) / (len(free) - 24)
    assert 1e-4 < stats.chi2.sf(statistic, len(free) - 1) < 1 - 1e-4


def test_global_negatives_of_full_and_empty_graphs():
    full = CSC.from_coo(np.repeat(np.arange(5), 5), np.tile(np.arange(5), 5), 5)
    src, dst = GlobalUniformNegatives(2).draw(full, LOOPS, (torch.arange(5),) * 2, 3)
    assert len(src) == len(dst) == 0
    empty = CSC.from_coo([], [], 4)
    src, dst = GlobalUniformNegatives(9).draw(empty, LOOPS, (torch.arange(1),) * 2, 3)
    assert len(src) == 9 and all(u != v for u, v in zip(src.tolist(), dst.tolist(), strict=True))
