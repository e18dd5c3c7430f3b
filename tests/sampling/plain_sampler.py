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
