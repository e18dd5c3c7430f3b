"""Changes to edge lists against plain Python."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagraph.datasets.edges import csc_of_pairs, drop_repeats, graph_of, mirror

ENDS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=30)


def arrays(ends):
    pairs = np.array(ends, dtype=np.int32).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


@given(ENDS)
def test_mirror(ends):
    src, dst, origin = mirror(*arrays(ends))
    want = ends + [(v, u) for u, v in ends if u != v]
    assert list(zip(src.tolist(), dst.tolist(), strict=True)) == want
    assert [tuple(sorted(ends[i])) for i in origin] == [tuple(sorted(pair)) for pair in want]


@given(ENDS)
def test_drop_repeats(ends):
    src, dst = drop_repeats(*arrays(ends), 7)
    assert list(zip(src.tolist(), dst.tolist(), strict=True)) == sorted(
        {(u, v) for u, v in ends if u != v}
    )
    assert src.dtype == np.int32


@given(ENDS)
def test_drop_repeats_undirected(ends):
    src, dst = drop_repeats(*arrays(ends), 7, undirected=True)
    want = sorted({(min(u, v), max(u, v)) for u, v in ends if u != v})
    assert list(zip(src.tolist(), dst.tolist(), strict=True)) == want


def test_drop_repeats_of_ids_that_need_the_whole_key():
    big = 2**31 - 1
    src, dst = np.array([big, big, 0]), np.array([big - 1, big - 1, big])
    got = drop_repeats(src, dst, 2**31)
    assert [ids.tolist() for ids in got] == [[0, big], [big, big - 1]]
    with pytest.raises(ValueError, match="num_nodes must be at most 2147483648"):
        drop_repeats(src, dst, 2**31 + 1)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2)), max_size=30))
def test_csc_of_pairs(ends):
    csc = csc_of_pairs(*arrays(ends), 5, 3)
    csc.validate()
    assert (csc.num_src, csc.num_dst, csc.edge_ids) == (5, 3, None)
    got = list(zip(csc.destinations().tolist(), csc.indices.tolist(), strict=True))
    assert got == sorted({(v, u) for u, v in ends})


def test_graph_of_has_no_edge_ids():
    graph = graph_of(np.array([2, 0]), np.array([1, 0]), 4)
    assert graph.csc.edge_ids is None
    assert graph.csc.indices.tolist() == [0, 2]
    assert graph.num_nodes == 4
