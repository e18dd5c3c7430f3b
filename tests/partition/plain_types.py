"""Slow, plain references for graphs with several types: a part's vertices and edges by dictionaries
and loops."""

import torch
from hypothesis import strategies as st
from plain_partition import in_edges

from pagraph import Graph
from pagraph.graph.csc import CSC
from pagraph.partition import Partition

EDGE_TYPES = [
    ("a", "to", "a"),
    ("b", "to", "a"),
    ("a", "to", "b"),
    ("c", "to", "b"),
    ("b", "likes", "b"),
    ("b", "to", "b"),
]


class Rows:
    """In-edges of each vertex (type, id), as (edge type, source, edge id) in order."""

    def __init__(self, graph):
        self._rows = {}
        for edge_type in graph.edge_types:
            for v, edges in enumerate(in_edges(graph.csc_of(edge_type))):
                found = [(edge_type, (edge_type[0], u), e) for u, e in edges]
                self._rows.setdefault((edge_type[2], v), []).extend(found)

    def __getitem__(self, vertex):
        return self._rows.get(vertex, [])


def plain_typed_hops(rows, seeds, hops, without=()):
    """Vertex (type, id) to the hop at which it is found."""
    hop_of = dict.fromkeys(seeds, 0)
    for hop in range(1, hops + 1):
        for v in [v for v, h in hop_of.items() if h == hop - 1]:
            for _, u, _ in rows[v]:
                if u not in hop_of and u not in without:
                    hop_of[u] = hop
    return hop_of


def plain_typed_part(graph, seeds, hops, without=()):
    """By type the ids, nearest first; and of each edge type the rows of (local source, edge id) of
    each destination."""
    rows = Rows(graph)
    hop_of = plain_typed_hops(rows, seeds, hops, without)
    ids = {
        name: sorted((v for t, v in hop_of if t == name), key=lambda v: (hop_of[name, v], v))
        for name in graph.node_types
    }
    local = {(name, v): i for name, own in ids.items() for i, v in enumerate(own)}
    edges = {edge_type: [[] for _ in ids[edge_type[2]]] for edge_type in graph.edge_types}
    for vertex, hop in hop_of.items():
        for edge_type, u, e in rows[vertex] if hop < hops else ():
            if u in local:
                edges[edge_type][local[vertex]].append((local[u], e))
    return ids, edges, hop_of


def numbers(partition, pairs):
    """Vertices (type, id) by their numbers over all types."""
    return sorted(partition.numbering.begin(name) + v for name, v in pairs)


@st.composite
def typed_partitions(draw, most_vertices=7, most_edges=15):
    """Any small heterograph (types without vertices or edges, self-loops, parallel edges, ids or
    none), divided."""
    counts = {
        name: draw(st.integers(least, most_vertices))
        for name, least in (("a", 1), ("b", 0), ("c", 0))
    }
    csc = {}
    for edge_type in draw(st.lists(st.sampled_from(EDGE_TYPES), min_size=1, unique=True)):
        num_src, num_dst = counts[edge_type[0]], counts[edge_type[2]]
        pair = st.tuples(st.integers(0, max(0, num_src - 1)), st.integers(0, max(0, num_dst - 1)))
        ends = draw(st.lists(pair, max_size=most_edges)) if num_src and num_dst else []
        found = CSC.from_coo([u for u, _ in ends], [v for _, v in ends], (num_src, num_dst))
        if draw(st.booleans()):
            shuffled = torch.tensor(draw(st.permutations(range(len(ends)))), dtype=torch.int64)
            found = CSC(found.indptr, found.indices, num_src, shuffled)
        csc[edge_type] = found
    graph = Graph(csc, counts)
    node_type = draw(st.sampled_from([name for name, count in counts.items() if count]))
    vertex = st.integers(0, counts[node_type] - 1)
    num_parts = draw(st.integers(1, min(3, counts[node_type])))
    train = sorted(draw(st.sets(vertex, min_size=num_parts)))
    parts = [*range(num_parts)] + [draw(st.integers(0, num_parts - 1)) for _ in train[num_parts:]]
    dropped = None
    if draw(st.booleans()):
        some = st.sets(st.integers(0, graph.num_nodes - 1))
        dropped = tuple(
            torch.tensor(sorted(draw(some)), dtype=torch.int64) for _ in range(num_parts)
        )
    ids, of = torch.tensor(train), torch.tensor(parts, dtype=torch.int32)
    return Partition(
        graph,
        ids,
        of,
        num_parts,
        draw(st.integers(1, 3)),
        "hash",
        dropped=dropped,
        node_type=node_type,
    )
