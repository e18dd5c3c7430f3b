"""Temporal sampling in plain Python: slow, obvious, and equal to ``SubgraphSampler`` bit for bit."""

from plain_sampler import pick
from plain_subgraph import edge_id
from plain_subgraph import sample as sample_with


def times_in_csc_order(graph, etype, name):
    """The time of each edge, or None where the edge type has none."""
    csc = graph.csc_of(etype)
    if name in graph.edge_fields(etype):
        values = graph.edge_fields(etype)[name].tolist()
        return [values[edge_id(csc, p)] for p in range(csc.num_edges)]
    if name in graph.node_fields(etype[0]):
        values = graph.node_fields(etype[0])[name].tolist()
        return [values[u] for u in csc.indices.tolist()]
    return None


def sample(graph, seeds, fanouts, name, limits, key=0, replace=False, latest=False, induced=False):
    """What ``plain_subgraph.sample`` returns; ``limits`` has the time of each seed, over types in the graph's order."""
    times = {etype: times_in_csc_order(graph, etype, name) for etype in graph.edge_types}

    def valid(etype, tree, vertex):
        csc = graph.csc_of(etype)
        row = range(int(csc.indptr[vertex]), int(csc.indptr[vertex + 1]))
        if times[etype] is None:
            return row
        return sorted((p for p in row if times[etype][p] <= limits[tree]), key=lambda p: times[etype][p])

    def draw(etype, tree, vertex, drawn_as, fanout, hop_key):
        row = valid(etype, tree, vertex)
        if times[etype] is not None and latest and fanout >= 0:
            row = row[max(len(row) - fanout, 0) :]
        return [row[i] for i in pick(drawn_as, 0, len(row), fanout, replace, hop_key)] if fanout else []

    return sample_with(graph, seeds, fanouts, key, disjoint=True, induced=induced, timed=draw, rows=valid)
