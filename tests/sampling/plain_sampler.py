"""Neighbour sampling in plain Python: slow, obvious, and equal to the kernels bit for bit."""

MASK = 2**64 - 1
A, B = 0x9E3779B97F4A7C15, 0xD1342543DE82EF95


def mix(x):
    x &= MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def draw_below(base, j, bound):
    return ((mix(base + j * B) >> 32) * bound) >> 32


def pick(vertex, start, degree, fanout, replace, key):
    """Positions drawn for one vertex."""
    base = (key + vertex * A) & MASK
    if degree == 0:
        return []
    if fanout == -1 or (not replace and degree <= fanout):
        return list(range(start, start + degree))
    if replace:
        return [start + draw_below(base, j, degree) for j in range(fanout)]
    chosen = []
    for j, top in enumerate(range(degree - fanout, degree)):
        candidate = draw_below(base, j, top + 1)
        chosen.append(top if candidate in chosen else candidate)
    return [start + position for position in chosen]


def sample(indptr, indices, seeds, fanouts, hop_keys, replace=False):
    """Blocks innermost first: (indptr, local indices, positions, nodes) for each hop."""
    nodes = list(seeds)
    local = {}
    for i, v in enumerate(nodes):
        local.setdefault(v, i)
    hops = []
    for fanout, key in zip(reversed(fanouts), hop_keys, strict=True):
        out_indptr, positions = [0], []
        for v in nodes:
            positions += pick(v, indptr[v], indptr[v + 1] - indptr[v], fanout, replace, key)
            out_indptr.append(len(positions))
        ids = []
        for p in positions:
            if indices[p] not in local:
                local[indices[p]] = len(nodes)
                nodes.append(indices[p])
            ids.append(local[indices[p]])
        hops.append((out_indptr, ids, positions, list(nodes)))
    return hops


def sample_types(graph, seeds, fanouts, keys_of, replace=False, excluded=None):
    """Blocks innermost first of a graph with several types; ``graph`` is a ``pagraph.Graph``.

    Each hop is a mapping from edge type to (indptr, local indices, positions), with all vertices by
    type. ``keys_of`` gives the key of (hop, number of the edge type); ``excluded`` maps edge types
    to positions that must not occur.
    """
    nodes = {t: list(seeds.get(t, [])) for t in graph.node_types}
    local = {t: {} for t in graph.node_types}
    for t, ids in nodes.items():
        for i, v in enumerate(ids):
            local[t].setdefault(v, i)
    hops = []
    for hop, fanout_of in enumerate(reversed(fanouts)):
        frontier = {t: list(ids) for t, ids in nodes.items()}
        edges = {}
        for number, etype in enumerate(graph.edge_types):
            csc = graph.csc_of(etype)
            indptr, indices = csc.indptr.tolist(), csc.indices.tolist()
            fanout = fanout_of[etype] if isinstance(fanout_of, dict) else fanout_of
            out_indptr, positions = [0], []
            for v in frontier[etype[2]]:
                start, degree = indptr[v], indptr[v + 1] - indptr[v]
                drawn = (
                    pick(v, start, degree, fanout, replace, keys_of(hop, number)) if fanout else []
                )
                positions += [p for p in drawn if p not in (excluded or {}).get(etype, ())]
                out_indptr.append(len(positions))
            ids = []
            for p in positions:
                u, known = indices[p], local[etype[0]]
                if u not in known:
                    known[u] = len(nodes[etype[0]])
                    nodes[etype[0]].append(u)
                ids.append(known[u])
            edges[etype] = (out_indptr, ids, positions)
        hops.append((edges, {t: list(ids) for t, ids in nodes.items()}))
    return hops
