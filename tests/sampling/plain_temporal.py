"""Temporal sampling in plain Python: slow, obvious, and equal to ``SubgraphSampler`` bit for
bit."""

from exact_times import exact, within
from plain_sampler import pick
from plain_subgraph import edge_id
from plain_subgraph import sample as sample_with


def times_in_csc_order(graph, etype, name):
    """The exact time of each edge, None where it is missing; or None where the edge type has
    none."""
    csc, found = graph.csc_of(etype), []
    if name in graph.edge_fields(etype):
        values = exact(graph.edge_fields(etype)[name])
        found.append([values[edge_id(csc, p)] for p in range(csc.num_edges)])
    if name in graph.node_fields(etype[0]):
        values = exact(graph.node_fields(etype[0])[name])
        found.append([values[u] for u in csc.indices.tolist()])
    return (
        [None if None in both else max(both) for both in zip(*found, strict=True)]
        if found
        else None
    )


def sample(
    graph,
    seeds,
    fanouts,
    name,
    limits,
    key=0,
    replace=False,
    latest=False,
    induced=False,
    window=None,
    share=False,
):
    """What ``plain_subgraph.sample`` returns.

    ``limits`` has the exact time of each seed, over types in the graph's order; ``window`` one
    length, or some by type.
    """
    times = {etype: times_in_csc_order(graph, etype, name) for etype in graph.edge_types}
    trees = (
        [sorted(set(limits)).index(limit) for limit in limits]
        if share
        else list(range(len(limits)))
    )
    limit_of = dict(zip(trees, limits, strict=True))

    def valid(etype, tree, vertex):
        csc = graph.csc_of(etype)
        row = range(int(csc.indptr[vertex]), int(csc.indptr[vertex + 1]))
        if times[etype] is None:
            return row
        length = window.get(etype) if isinstance(window, dict) else window
        in_time = (p for p in row if within(limit_of[tree], times[etype][p], length))
        return sorted(in_time, key=lambda p: times[etype][p])

    def draw(etype, tree, vertex, drawn_as, fanout, hop_key):
        row = valid(etype, tree, vertex)
        if times[etype] is not None and latest and fanout >= 0:
            row = row[max(len(row) - fanout, 0) :]
        return (
            [row[i] for i in pick(drawn_as, 0, len(row), fanout, replace, hop_key)]
            if fanout
            else []
        )

    return sample_with(
        graph,
        seeds,
        fanouts,
        key,
        disjoint=True,
        induced=induced,
        timed=draw,
        rows=valid,
        trees=trees,
    )
