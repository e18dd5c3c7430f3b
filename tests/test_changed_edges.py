"""Edges that change after their ids were checked, as in a file that another process writes: kernels
refuse them."""

import os

import numpy as np
import pytest
import torch

from pagraph import CSC, FormatError, Graph
from pagraph.datasets import _edge_sort, _orders, open_graph, rmat, write_graph
from pagraph.datasets.moved_graph import new_indptr, write_moved
from pagraph.graph import _csc
from pagraph.partition import _kernels as parts
from pagraph.partition.methods import _halo, _paper
from pagraph.partition.methods.metis import without_directions
from pagraph.ranking import _reach, _vip
from pagraph.sampling import GlobalUniformNegatives, NeighborSampler
from pagraph.sampling.edge_values import edge_weights
from pagraph.sampling.kernels import edges, layerwise, times, walks, weighted
from pagraph.train import _neighbor_rows
from pagraph.train.preaggregation import NeighborSums

COUNT = 64
ALL = np.arange(COUNT)
FAR = 2**30


def zeros(*shape, dtype=np.int64):
    return np.zeros(shape, dtype)


def ones(*shape):
    return np.ones(shape, np.float32)


def full(value):
    return np.full(COUNT, value, np.int64)


KEY, HOPS = np.uint64(1), np.array([3, 3])
SCRATCH = [zeros(COUNT), zeros(COUNT), zeros(COUNT), zeros(1)]


def attended(indptr, indices):
    two = [ones(COUNT, 2) for _ in range(5)]
    _neighbor_rows.add_attended(
        indptr, indices, ALL, 0, COUNT, zeros(0), *two[:3], ones(COUNT, 2), two[3], two[4]
    )


def draws(indptr, indices):
    return indptr, indices, np.full((COUNT, 2), 0.5), HOPS, False, _vip.ANEW, True


def pushed_by_weight(indptr, indices):
    weights, totals, rates = np.ones(len(indices)), np.ones(COUNT), np.ones((COUNT, 2))
    chances = np.full((COUNT, 2), 0.5)
    mutual = np.zeros(0, np.bool_)
    some = (
        indptr,
        indices,
        weights,
        totals,
        rates,
        chances,
        False,
        _vip.ANEW,
        True,
        mutual,
        indptr,
        chances,
        HOPS,
    )
    _vip.push_weighted(*some, zeros(COUNT, dtype=np.float64))


def reached(indptr, indices):
    slots, ids, known = (
        np.full(COUNT, -1, np.int32),
        zeros(COUNT),
        [np.ones(COUNT) for _ in range(2)],
    )
    found = np.zeros((COUNT, 3))
    _reach.reach(
        indptr,
        indices,
        ALL,
        HOPS,
        False,
        False,
        0.0,
        slots,
        ids,
        found,
        *known,
        2**40,
        np.zeros(COUNT),
    )


def assigned(indptr, indices):
    state = (np.zeros(COUNT, np.uint16), np.zeros(COUNT, np.uint8), zeros(COUNT), zeros(COUNT))
    state += (
        np.zeros((COUNT, 2, 1), np.uint8),
        zeros(3),
        zeros(2),
        zeros(2),
        np.zeros(COUNT, np.int32),
    )
    _paper.assign(indptr, indices, indptr, indices, False, ALL, 0, COUNT, 2**16 - 1, *state)


BY_IDS = {
    "count_degrees": lambda indptr, indices: _csc.count_degrees(indices, zeros(COUNT)),
    "fill_csc": lambda indptr, indices: _csc.fill_csc(
        indices, indices, indptr[:-1].copy(), zeros(len(indices)), zeros(len(indices))
    ),
    "mark_sources": lambda indptr, indices: _neighbor_rows.mark_sources(
        indptr, indices, ALL, np.zeros(COUNT, np.bool_)
    ),
    "add_weighted": lambda indptr, indices: _neighbor_rows.add_weighted(
        indptr, indices, ones(len(indices)), ones(COUNT, 2), ones(COUNT, 2)
    ),
    "take_sources": lambda indptr, indices: _neighbor_rows.take_sources(
        indptr, indices, 0, COUNT, full(-1), zeros(COUNT)
    ),
    "number_sources": lambda indptr, indices: _neighbor_rows.number_sources(
        indptr, indices, 0, COUNT, full(-1), zeros(COUNT), zeros(len(indices))
    ),
    "push_misses": lambda indptr, indices: _orders.push_misses(
        indptr, indices, 0, COUNT, ones(COUNT) / 2, 3, ones(COUNT)
    ),
    "find_readers": lambda indptr, indices: _orders.find_readers(
        indptr, indices, 0, COUNT, ones(2, COUNT), HOPS, 0, 0, ones(COUNT), zeros(COUNT)
    ),
    "part sources": lambda indptr, indices: parts.mark_sources(
        indptr, indices, ALL, 1, np.full(COUNT, 255, np.uint8)
    ),
    "spread": lambda indptr, indices: parts.spread(
        indptr, indices, ALL, np.ones(COUNT), 3, np.ones(COUNT, np.bool_), np.zeros(COUNT)
    ),
    "count_inside": lambda indptr, indices: parts.count_inside(
        indptr, indices, ALL, ALL.copy(), zeros(COUNT)
    ),
    "copy_inside": lambda indptr, indices: parts.copy_inside(
        indptr, indices, ALL, ALL.copy(), zeros(0), zeros(len(indices)), zeros(len(indices))
    ),
    "change": lambda indptr, indices: _halo.change(
        indptr, indices, np.zeros((2, COUNT, 2), np.uint8), 0, ALL.copy(), COUNT, zeros(COUNT), 1
    ),
    "cost": lambda indptr, indices: _halo.cost(
        indptr,
        indices,
        np.zeros((2, COUNT, 2), np.uint8),
        0,
        ALL,
        10**6,
        *[array.copy() for array in SCRATCH],
    ),
    "recount": lambda indptr, indices: _halo.recount(
        indptr,
        indices,
        np.zeros((2, COUNT, 2), np.uint8),
        ALL,
        np.zeros(COUNT, np.int32),
        zeros(2),
    ),
    "place": lambda indptr, indices: _halo.place(
        *(
            indptr,
            indices,
            np.zeros((1, COUNT, 2), np.uint8),
            ALL,
            ALL,
            0,
            np.array([COUNT, COUNT]),
        ),
        *(np.zeros(COUNT, np.int32), zeros(2), 2.0**-10, 1, *[array.copy() for array in SCRATCH]),
    ),
    "grow": lambda indptr, indices: _halo.grow(
        indptr,
        indices,
        zeros(COUNT + 1),
        zeros(0),
        ALL,
        np.array([32, 32]),
        np.full(COUNT, -1, np.int32),
    ),
    "propagate": lambda indptr, indices: _halo.propagate(
        indptr, indices, ALL, full(1), 10, ALL.copy(), full(1), zeros(COUNT), zeros(COUNT)
    ),
    "count_train_sources": lambda indptr, indices: _paper.count_train_sources(
        indptr, indices, ALL, zeros(COUNT + 1)
    ),
    "fill_train_sources": lambda indptr, indices: _paper.fill_train_sources(
        indptr, indices, ALL, np.minimum(ALL, 9), zeros(len(indices))
    ),
    "assign": assigned,
    "reach": reached,
    "push_uniform": lambda indptr, indices: _vip.push_uniform(
        *draws(indptr, indices),
        np.zeros(0, np.bool_),
        indptr,
        np.full((COUNT, 2), 0.5),
        HOPS,
        np.zeros(COUNT),
    ),
    "push_weighted": pushed_by_weight,
    "turn_rows": lambda indptr, indices: _vip.turn_rows(
        indices, zeros(COUNT), indptr, zeros(len(indices))
    ),
    "mark_mutual": lambda indptr, indices: _vip.mark_mutual(
        indptr, indices, indptr, indices, 10**6, 1, full(-1), np.zeros(0, np.bool_)
    ),
    "column_squares": lambda indptr, indices: layerwise.column_squares(
        indptr, indices, np.zeros(0), np.zeros(COUNT)
    ),
    "has_edge": lambda indptr, indices: [
        walks.has_edge((indptr, indices, COUNT), v, 3) for v in indices
    ],
}
"""Calls of kernels that index by the sources of edges, and most of them by the offsets of rows."""
BY_ROWS = BY_IDS | {
    "number_sources": lambda indptr, indices: _neighbor_rows.number_sources(
        indptr, indices, 0, COUNT // 2, full(-1), zeros(COUNT), zeros(len(indices))
    ),
    "expand_indptr": lambda indptr, indices: _csc.expand_indptr(indptr, zeros(len(indices))),
    "rows_are_sorted": lambda indptr, indices: _csc.rows_are_sorted(
        indptr, np.arange(len(indices))
    ),
    "count_loops": lambda indptr, indices: _csc.count_loops(indptr, indices, zeros(COUNT)),
    "score_edges": lambda indptr, indices: _csc.score_edges(
        indptr, np.zeros(0), 3.0, 0, 16, np.zeros(len(indices) // 16 + 1)
    ),
    "add_block": lambda indptr, indices: _neighbor_rows.add_block(
        indptr,
        indices,
        ALL,
        0,
        COUNT,
        zeros(0),
        ones(COUNT, 2),
        False,
        zeros(COUNT),
        ones(COUNT, 2),
    ),
    "add_attended": attended,
    "append_rows": lambda indptr, indices: parts.append_rows(
        indptr, indices, 0, zeros(COUNT), zeros(len(indices))
    ),
    "row_totals": lambda indptr, indices: _vip.row_totals(
        indptr, ones(len(indices)), np.zeros(COUNT)
    ),
    "solve_rates": lambda indptr, indices: _vip.solve_rates(
        indptr, ones(len(indices)), np.ones(COUNT), 3, np.zeros(COUNT)
    ),
    "expand_rows": lambda indptr, indices: _vip.expand_rows(
        ALL, indptr, zeros(0), np.ones(COUNT), zeros(len(indices)), np.zeros(len(indices))
    ),
    "global_pairs": lambda indptr, indices: edges.global_pairs(
        KEY, indptr, indices, COUNT, False, zeros(0), 10, zeros(500), zeros(500)
    ),
    "keep_positive": lambda indptr, indices: weighted.keep_positive(
        indptr, ones(len(indices)), zeros(COUNT + 1), zeros(len(indices))
    ),
    "fill_tables": lambda indptr, indices: weighted.fill_tables(
        indptr, ones(len(indices)), np.zeros(len(indices)), zeros(len(indices))
    ),
    "sort_rows": lambda indptr, indices: times.sort_rows(
        indptr, zeros(len(indices)), zeros(len(indices))
    ),
}
# Which read no row, or cut it.
for _name in ("count_degrees", "fill_csc", "has_edge", "fill_train_sources"):
    del BY_ROWS[_name]


@pytest.fixture
def arrays():
    csc = rmat(6, edge_factor=8, seed=1).csc
    return csc.indptr.numpy().copy(), csc.indices.numpy().copy()


@pytest.mark.every
@pytest.mark.parametrize("name", BY_IDS)
@pytest.mark.parametrize("wrong", [-1, COUNT, FAR, -FAR, 2**31 - 1])
def test_kernels_refuse_ids_out_of_the_graph(name, wrong, arrays):
    indptr, indices = arrays
    indices[len(indices) // 2] = wrong
    with pytest.raises(FormatError, match="damaged file"):
        BY_IDS[name](indptr, indices)


@pytest.mark.every
@pytest.mark.parametrize("name", BY_ROWS)
@pytest.mark.parametrize("wrong", [-1, FAR, -FAR, 2**31 - 1])
def test_kernels_refuse_rows_out_of_the_edges(name, wrong, arrays):
    indptr, indices = arrays
    indptr[COUNT // 2] = wrong
    with pytest.raises(FormatError, match="damaged file"):
        BY_ROWS[name](indptr, indices)


def test_places_beyond_the_buckets_are_refused():
    with pytest.raises(FormatError, match="damaged file"):
        _orders.split(np.array([0, FAR]), 16, zeros(5), zeros(2))
    with pytest.raises(FormatError, match="damaged file"):
        _orders.edge_places(
            np.array([0, 1, 2]), np.array([1, 0]), np.array([0, 1, 2]), 0, 0, zeros(9)
        )
    with pytest.raises(FormatError, match="damaged file"):
        _edge_sort.count_buckets(np.array([[FAR, 0]]), 0, 0, 2, zeros(8))
    with pytest.raises(FormatError, match="damaged file"):
        _edge_sort.take_distinct(np.array([0, FAR]), COUNT, zeros(COUNT), zeros(2))


def test_a_source_that_was_not_marked_has_no_row(arrays):
    indptr, indices = arrays
    place = np.full(COUNT, FAR)  # as memory is found
    with pytest.raises(FormatError, match="damaged file"):
        _neighbor_rows.add_block(
            indptr, indices, ALL, 0, COUNT, place, ones(4, 2), False, zeros(COUNT), ones(COUNT, 2)
        )
    two = [ones(4, 2), *[ones(COUNT, 2) for _ in range(5)]]
    with pytest.raises(FormatError, match="damaged file"):
        _neighbor_rows.add_attended(
            indptr, indices, ALL, 0, COUNT, place, two[0], two[1], two[0], *two[2:5]
        )


@pytest.fixture
def opened(tmp_path):
    """A graph whose ids were checked, and a function that writes its files as another process
    might."""
    write_graph(rmat(8, edge_factor=8, num_features=3, seed=2), tmp_path / "graph")
    graph = open_graph(tmp_path / "graph", verify=True)
    graph.csc.validate()

    def write(name, at, value):
        path = tmp_path / "graph" / f"edge-{name}.npy"
        before = path.stat()
        array = np.load(path, mmap_mode="r+")
        array[at] = value
        array.flush()
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    return graph, write


USES = {
    "reverse": Graph.reverse,
    "destinations": lambda graph: graph.csc.destinations(),
    "source_counts": lambda graph: graph.csc.source_counts,
    "loop_counts": lambda graph: graph.csc.loop_counts,
    "without_directions": without_directions,
    "sums": lambda graph: NeighborSums(graph, model="sage")[:],
    "sample": lambda graph: NeighborSampler([-1]).sample(graph, torch.arange(graph.num_nodes)),
    "global pairs": lambda graph: GlobalUniformNegatives(1).draw(
        graph.csc, graph.edge_types[0], (torch.arange(3000), torch.arange(3000)), 1
    ),
}


@pytest.mark.every
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("value", [FAR, -FAR, 2**31 - 1])
def test_a_file_that_is_written_while_open(use, value, opened):
    graph, write = opened
    write("indptr", 100, value)
    if use not in ("source_counts", "sums"):  # which read no row, or count it before
        with pytest.raises(ValueError, match="damaged file|must be non-decreasing"):
            USES[use](graph)
    write("indptr", 100, int(graph.csc.indptr[99]))
    if use in ("reverse", "source_counts", "without_directions", "sums", "sample"):
        write("indices", 100, value)
        with pytest.raises(ValueError, match=r"damaged file|must be in \[0, 256\)"):
            USES[use](graph)


@pytest.mark.parametrize("value", [-1, FAR])
def test_edges_are_moved_by_ids_of_the_graph(value, opened, tmp_path):
    graph, write = opened
    place = {graph.only_node_type: np.arange(graph.num_nodes)[::-1].copy()}
    offsets = {
        graph.edge_types[0]: new_indptr(graph, graph.edge_types[0], place[graph.only_node_type])
    }
    write("indices", 100, value)
    with pytest.raises(ValueError, match=r"indices must be in \[0, 256\)"):
        write_moved(graph, tmp_path / "moved", place, offsets, bucket_bytes=2**20)


def test_a_guide_of_other_rows_leads_to_an_edge_of_the_row():
    """Tables of weights were made for the rows as they were; an edge of the row is drawn, whatever
    it is."""
    before = CSC(torch.tensor([0, 4096, 8192]), torch.arange(8192) % 2, 2)
    values = torch.ones(8192)
    values[:4080] = 1e-6  # the guide leads to the row's end at once
    made = edge_weights(before, values)
    kept = made.values.numpy()
    drawn = [
        weighted.draw_edge(np.uint64(key), 0, 0, 64, kept, *made.tables()) for key in range(200)
    ]
    assert 0 <= min(drawn) <= max(drawn) < 64
