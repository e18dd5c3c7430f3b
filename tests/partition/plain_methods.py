"""Plain references for methods: sets and loops, and the graphs to try them on."""

import torch
from hypothesis import strategies as st

import pagraph


def rows_of(graph):
    """In-neighbours of every vertex, a list of lists."""
    indptr, indices = graph.csc.indptr.tolist(), graph.csc.indices.tolist()
    return [indices[indptr[v] : indptr[v + 1]] for v in range(graph.num_nodes)]


def reach(rows, start, hops):
    """Distance of all that ``start`` (an iterable) reaches within ``hops`` in-edges."""
    distance = dict.fromkeys(start, 0)
    frontier = list(distance)
    for hop in range(1, hops + 1):
        found = []
        for u in frontier:
            for v in rows[u]:
                if v not in distance:
                    distance[v] = hop
                    found.append(v)
        frontier = found
    return distance


def paper_parts(graph, train, num_parts, hops):
    """The paper's score with exact sets, over training vertices in ascending order; sizes differ by
    one at most."""
    rows = rows_of(graph)
    train_of, held = [set() for _ in range(num_parts)], [set() for _ in range(num_parts)]
    floor, average = len(train) // num_parts, len(train) / num_parts
    parts = []
    for t in train.tolist():
        near = reach(rows, [t], hops).keys()
        larger = sum(len(own) > floor for own in train_of)

        def score(i, near=near):
            return (1 + len(train_of[i] & near)) * (average - len(train_of[i])) / (len(held[i]) + 1)

        limit = floor + (larger < len(train) % num_parts)
        part = max(
            (i for i in range(num_parts) if len(train_of[i]) < limit),
            key=lambda i: (score(i), -len(train_of[i]), i),
        )
        train_of[part].add(t)
        held[part] |= near
        parts.append(part)
    return parts


@st.composite
def graphs(draw, max_nodes=30, max_edges=120):
    """Any small multigraph: isolated vertices, self-loops, parallel edges, no edges at all, int32
    or int64."""
    n = draw(st.integers(1, max_nodes))
    ends = st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=max_edges)
    edges = draw(ends)
    graph = pagraph.Graph.from_coo([u for u, _ in edges], [v for _, v in edges], n)
    return wide(graph) if draw(st.booleans()) else graph


def wide(graph):
    """The same graph with int64 ids."""
    csc = graph.csc
    ids = None if csc.edge_ids is None else csc.edge_ids.long()
    return pagraph.Graph(
        pagraph.graph.graph.CSC(csc.indptr.long(), csc.indices.long(), csc.num_src, ids)
    )


@st.composite
def train_sets(draw, graph, minimum=1):
    """Ascending ids of some vertices."""
    chosen = draw(
        st.sets(st.integers(0, graph.num_nodes - 1), min_size=min(minimum, graph.num_nodes))
    )
    return torch.tensor(sorted(chosen), dtype=torch.int64)
