"""Slow, plain references: a part's vertices and edges by sets, lists and loops."""

import torch
from hypothesis import strategies as st

from pagraph import Graph
from pagraph.graph.csc import CSC
from pagraph.partition import Partition


def in_edges(graph):
    """For each vertex of a graph or CSC its in-edges as (source, edge id), in order."""
    csc = graph.csc if isinstance(graph, Graph) else graph
    ids = range(csc.num_edges) if csc.edge_ids is None else csc.edge_ids.tolist()
    pairs = list(zip(csc.indices.tolist(), ids, strict=True))
    ends = csc.indptr.tolist()
    return [pairs[ends[v] : ends[v + 1]] for v in range(csc.num_dst)]


def plain_hops(graph, seeds, hops, without=()):
    """Vertex to the hop at which it is found."""
    rows = in_edges(graph)
    hop_of = dict.fromkeys(seeds, 0)
    for hop in range(1, hops + 1):
        for v in [v for v, h in hop_of.items() if h == hop - 1]:
            for u, _ in rows[v]:
                if u not in hop_of and u not in without:
                    hop_of[u] = hop
    return hop_of


def plain_part(graph, seeds, hops, without=()):
    """Ids nearest first, and each local vertex's in-edges as (local source, edge id)."""
    hop_of = plain_hops(graph, seeds, hops, without)
    ids = sorted(hop_of, key=lambda v: (hop_of[v], v))
    local = {v: i for i, v in enumerate(ids)}
    rows = in_edges(graph)
    edges = [
        [(local[u], e) for u, e in rows[v] if u in local] if hop_of[v] < hops else [] for v in ids
    ]
    return ids, edges


def make_partition(graph, train, parts, num_parts, hops, **more):
    return Partition(
        graph,
        torch.tensor(train),
        torch.tensor(parts, dtype=torch.int32),
        num_parts,
        hops,
        "hash",
        **more,
    )


@st.composite
def partitions(draw, most_vertices=12, most_edges=40):
    """Any small graph (isolated vertices, self-loops, parallel edges, ids or none) divided at
    random."""
    num_nodes = draw(st.integers(1, most_vertices))
    vertex = st.integers(0, num_nodes - 1)
    ends = draw(st.lists(st.tuples(vertex, vertex), max_size=most_edges))
    graph = Graph.from_coo([u for u, _ in ends], [v for _, v in ends], num_nodes)
    if draw(st.booleans()):
        shuffled = draw(st.permutations(range(len(ends))))
        ids = torch.tensor(shuffled, dtype=torch.int64)
        graph = Graph(CSC(graph.csc.indptr, graph.csc.indices, num_nodes, ids))
    num_parts = draw(st.integers(1, min(4, num_nodes)))
    train = sorted(draw(st.sets(vertex, min_size=num_parts)))
    parts = [*range(num_parts)] + [draw(st.integers(0, num_parts - 1)) for _ in train[num_parts:]]
    dropped = None
    if draw(st.booleans()):
        dropped = tuple(
            torch.tensor(sorted(draw(st.sets(vertex))), dtype=torch.int64) for _ in range(num_parts)
        )
    return make_partition(graph, train, parts, num_parts, draw(st.integers(1, 4)), dropped=dropped)
