"""Subgraph sampling in plain Python: slow, obvious, and equal to ``SubgraphSampler`` bit for
bit."""

from types import SimpleNamespace

from plain_sampler import pick
from plain_weighted import pick as pick_weighted

from pagraph.seeds import derive_key


def draw(csc, vertex, drawn_as, fanout, replace, key, weights):
    """Positions drawn for one vertex; ``weights`` in CSC order, or None."""
    start, end = int(csc.indptr[vertex]), int(csc.indptr[vertex + 1])
    if fanout == 0:
        return []
    if weights is None:
        return pick(drawn_as, start, end - start, fanout, replace, key)
    kept = [p for p in range(len(weights)) if weights[p] > 0]
    first = sum(p < start for p in kept)
    last = sum(p < end for p in kept)
    positive = [weights[p] for p in kept]
    if len(set(positive)) <= 1:  # equal weights are drawn uniformly
        return [kept[p] for p in pick(drawn_as, first, last - first, fanout, replace, key)]
    return [kept[p] for p in pick_weighted(drawn_as, first, last, positive, fanout, replace, key)]


def sample(
    graph,
    seeds,
    fanouts,
    key=0,
    replace=False,
    disjoint=False,
    induced=False,
    weights=None,
    timed=None,
    rows=None,
    trees=None,
):
    """A subgraph of any number of types.

    Args:
        graph: A ``pagraph.Graph``.
        seeds: Vertex type to a list.
        fanouts: By hop, the seeds' first; each a number or a mapping from edge type.
        key: As ``SubgraphSampler.sample`` takes it.
        replace, disjoint, induced: As ``SubgraphSampler`` takes them.
        weights: Edge type to weights in CSC order.
        timed: Draws in place of ``draw``, see ``plain_temporal``.
        rows: Positions that induced edges may have, of ``(etype, tree, vertex)``; None: the
            vertex's whole row.
        trees: The tree of each seed, over types in the graph's order; None: one for each.

    Returns:
        ``nodes``, ``trees`` and ``node_ends`` by vertex type, ``src``, ``dst``, ``edge_ids`` and
        ``edge_ends`` by edge type, all of them lists.
    """
    # (tree, vertex); without trees they are all in tree 0.
    known = {t: [] for t in graph.node_types}
    tree = 0
    for t in graph.node_types:
        for v in seeds.get(t, []):
            known[t].append(((tree if trees is None else trees[tree]) if disjoint else 0, v))
            tree += 1
    place = {t: {} for t in graph.node_types}
    for t, vertices in known.items():
        for i, v in enumerate(vertices):
            place[t].setdefault(v, i)
    # (source's place, destination's place, position).
    edges = {etype: [] for etype in graph.edge_types}
    ends = {t: [len(vertices)] for t, vertices in known.items()}
    edge_ends = {etype: [0] for etype in graph.edge_types}
    begin = dict.fromkeys(graph.node_types, 0)
    for hop, entry in enumerate(fanouts):
        for number, etype in enumerate(graph.edge_types):
            s, _, d = etype
            csc, fanout = graph.csc_of(etype), entry[etype] if isinstance(entry, dict) else entry
            hop_key = derive_key(key, hop, number) if number else derive_key(key, hop)
            for i in range(begin[d], ends[d][-1]):
                tree, v = known[d][i]
                drawn_as = tree * graph.num_nodes_of(d) + v
                row_weights = None if weights is None else weights.get(etype)
                row = draw(csc, v, drawn_as, fanout, replace, hop_key, row_weights)
                for p in row if timed is None else timed(etype, tree, v, drawn_as, fanout, hop_key):
                    u = (tree, int(csc.indices[p]))
                    if u not in place[s]:
                        place[s][u] = len(known[s])
                        known[s].append(u)
                    edges[etype].append((place[s][u], i, p))
            edge_ends[etype].append(len(edges[etype]))
        for t in graph.node_types:
            begin[t] = ends[t][-1]
            ends[t].append(len(known[t]))
    if induced:
        edges, edge_ends = (
            all_among(graph, known, place, rows),
            {etype: [0] for etype in graph.edge_types},
        )
    return SimpleNamespace(
        nodes={t: [v for _, v in vertices] for t, vertices in known.items()},
        trees={t: [tree for tree, _ in vertices] for t, vertices in known.items()},
        node_ends=ends,
        src={etype: [e[0] for e in es] for etype, es in edges.items()},
        dst={etype: [e[1] for e in es] for etype, es in edges.items()},
        edge_ids={
            etype: [edge_id(graph.csc_of(etype), e[2]) for e in es] for etype, es in edges.items()
        },
        edge_ends=edge_ends,
    )


def all_among(graph, known, place, rows):
    """All edges among the known vertices of each tree, by edge type."""
    edges = {}
    for etype in graph.edge_types:
        s, _, d = etype
        csc = graph.csc_of(etype)
        edges[etype] = [
            (place[s][tree, int(csc.indices[p])], i, p)
            for i, (tree, v) in enumerate(known[d])
            for p in (
                rows(etype, tree, v) if rows else range(int(csc.indptr[v]), int(csc.indptr[v + 1]))
            )
            if (tree, int(csc.indices[p])) in place[s]
        ]
    return edges


def edge_id(csc, position):
    return position if csc.edge_ids is None else int(csc.edge_ids[position])
