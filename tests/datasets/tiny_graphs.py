"""Random graphs with fields, and what two graphs must have in common to be the same."""

import numpy as np
import torch

from pagraph import Graph
from pagraph.graph.graph import CSC, EDGE_TYPE, NODE_TYPE

HOMOGENEOUS = {NODE_TYPE: 7}, [EDGE_TYPE]
HETEROGENEOUS = (
    {"paper": 6, "author": 4},
    [("author", "writes", "paper"), ("paper", "cites", "paper")],
)


def random_graph(types, seed, num_edges=20):
    """A graph with parallel edges and self-loops, without fields."""
    counts, edge_types = types
    draw = np.random.default_rng(seed)
    csc = {}
    for source, relation, target in edge_types:
        src, dst = (
            draw.integers(0, max(counts[end], 1), num_edges * bool(counts[end]))
            for end in (source, target)
        )
        size = min(len(src), len(dst))
        csc[source, relation, target] = CSC.from_coo(
            src[:size], dst[:size], (counts[source], counts[target])
        )
    return Graph(csc, counts)


def ends(graph, edge_type):
    """Source and target of each edge, by its id."""
    csc = graph.csc_of(edge_type)
    ids = torch.arange(csc.num_edges) if csc.edge_ids is None else csc.edge_ids.long()
    found = torch.empty(csc.num_edges, 2, dtype=torch.int64)
    found[ids, 0], found[ids, 1] = csc.indices.long(), csc.destinations().long()
    return found


def assert_same(got, want):
    assert got.num_nodes_by_type == want.num_nodes_by_type
    assert set(got.edge_types) == set(want.edge_types)
    for edge_type in want.edge_types:
        assert torch.equal(ends(got, edge_type), ends(want, edge_type))
        assert_same_fields(got.edge_fields(edge_type), want.edge_fields(edge_type))
    for node_type in want.node_types:
        assert_same_fields(got.node_fields(node_type), want.node_fields(node_type))


def assert_same_fields(got, want):
    assert set(got) == set(want)
    for name, values in want.items():
        assert (got[name].dtype, got[name].shape) == (values.dtype, values.shape), name
        # NaN, too.
        assert (
            got[name].contiguous().view(torch.uint8).equal(values.contiguous().view(torch.uint8))
        ), name
