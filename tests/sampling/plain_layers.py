"""Layer-wise sampling and LABOR in plain Python, one vertex at a time: what the kernels must
equal."""

MASK = 2**64 - 1
A = 0x9E3779B97F4A7C15
B = 0xD1342543DE82EF95


def mix(x):
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def unit(x):
    return (x >> 11) * 2.0**-53


class Layer:
    """A frontier's in-edges: positions row by row, weights, and the shares that add up to 1 in each
    row."""

    def __init__(self, csc, frontier, weights=None):
        indptr, self.indices = csc.indptr.tolist(), csc.indices.tolist()
        every = [1.0] * len(self.indices) if weights is None else weights
        self.rows = [range(indptr[v], indptr[v + 1]) for v in frontier]
        self.weight = every
        self.share = {}
        for row in self.rows:
            total = 0.0
            for p in row:
                total += every[p]
            for p in row:
                self.share[p] = every[p] * (1.0 / total) if total > 0 else 0.0

    def candidates(self):
        """Sources in the order of their discovery, with the sum of the squares of their edges'
        shares."""
        importance = {}
        for row in self.rows:
            for p in row:
                u = self.indices[p]
                importance[u] = importance.get(u, 0.0) + self.share[p] * self.share[p]
        return importance

    def take(self, factor):
        """Edges from the vertices that have a factor: (indptr, positions, weights)."""
        indptr, positions, weights = [0], [], []
        for row in self.rows:
            for p in row:
                weight = self.share[p] * factor.get(self.indices[p], 0.0)
                if weight > 0:
                    positions.append(p)
                    weights.append(weight)
            indptr.append(len(positions))
        return indptr, positions, weights


def inclusion(importance, size):
    """``min(1, c * p)`` of each vertex, adding up to ``size``, by sorting."""
    rest = sorted((p for p in importance.values() if p > 0), reverse=True)
    if len(rest) <= size:
        return {u: float(p > 0) for u, p in importance.items()}
    certain = 0
    while rest[certain] * (size - certain) >= sum(rest[certain:]):
        certain += 1
    c = (size - certain) / sum(rest[certain:])
    return {u: min(1.0, c * p) for u, p in importance.items()}


def ladies(csc, frontier, size, key, weights=None):
    """The pivotal method over the candidates in the order of their discovery."""
    layer = Layer(csc, frontier, weights)
    importance = layer.candidates()
    pi = inclusion(importance, size)
    chosen = [u for u in importance if pi[u] >= 1.0]
    undecided, chance = None, 0.0
    for i, u in enumerate(importance):
        if pi[u] <= 0 or pi[u] >= 1:
            continue
        r, both = unit(mix((key + i * B) & MASK)), chance + pi[u]
        if both < 1:
            undecided, chance = (u if r * both < pi[u] else undecided), both
        elif r * (2 - both) < 1 - chance:
            chosen.append(u)
            chance = both - 1
        else:
            chosen.append(undecided)
            undecided, chance = u, both - 1
    if len(chosen) < min(size, sum(p > 0 for p in pi.values())):
        chosen.append(undecided)
    return layer.take({u: 1.0 / pi[u] for u in chosen})


def fastgcn(csc, frontier, size, key, weights=None):
    """Independent draws from all vertices."""
    importance = Layer(csc, range(csc.num_dst), weights).candidates()
    layer = Layer(csc, frontier, weights)
    q = [importance.get(u, 0.0) for u in range(csc.num_src)]
    if sum(p > 0 for p in q) <= size:
        return layer.take({u: 1.0 for u, p in enumerate(q) if p > 0})
    draws = []
    for j in range(size):
        x, reached = unit(mix((key + j * B) & MASK)) * sum(q), 0.0
        for u, p in enumerate(q):
            reached += p
            if reached > x:
                draws.append(u)
                break
    return layer.take({u: draws.count(u) * sum(q) / (size * q[u]) for u in draws})


def scale_for(shares, pi, target, scale):
    """The scale at which the variance is the target, by the fixed-point iteration alone."""
    while True:
        variance = sum(a * a / min(1.0, scale * pi[u]) for u, a in shares if a > 0)
        scale *= variance / target
        if min(variance, target) / max(variance, target) >= 1 - 1e-4:
            return scale


def labor_probabilities(csc, frontier, fanout, weights=None, importance_sampling=0):
    """The probability of each in-edge, as the paper's authors compute it for DGL: position ->
    probability."""
    layer = Layer(csc, frontier, weights)
    if fanout == -1:
        return layer, {p: 1.0 for row in layer.rows for p in row}
    rows = [[p for p in row if layer.weight[p] > 0] for row in layer.rows]
    sums = [sum(layer.weight[p] for p in row) for row in layer.rows]
    scales = [fanout / total if total > 0 else 0.0 for total in sums]

    def solve(pi_of):
        for i, (row, every) in enumerate(zip(rows, layer.rows, strict=True)):
            if row:
                shares = [(p, layer.weight[p] / sums[i]) for p in row]
                target = 1 / min(fanout, len(every))
                if weights is not None:
                    target += sum(a * a for _, a in shares) - 1 / len(every)
                scales[i] = scale_for(shares, {p: pi_of(p) for p in row}, target, scales[i])

    def of_weight(p):
        return layer.weight[p]

    if weights is not None:
        solve(of_weight)
    if not importance_sampling:
        of_source = of_weight
    else:
        pi, before, step = {}, float("inf"), 0
        while step != importance_sampling:
            largest = {}
            for scale, row in zip(scales, layer.rows, strict=True):
                for p in row:
                    u = layer.indices[p]
                    largest[u] = max(
                        largest.get(u, 0.0), scale * (layer.weight[p] if step == 0 else 1.0)
                    )
            pi = {u: largest[u] * pi.get(u, 1.0) for u in largest}

            def of_source(p, pi=pi):
                return pi[layer.indices[p]]

            solve(of_source)
            now = sum(min(1.0, p) for p in pi.values())
            if now >= (1 - 1e-4) * before:
                break
            before, step = now, step + 1
    chances = {p: min(1.0, scales[i] * of_source(p)) for i, row in enumerate(rows) for p in row}
    return layer, {p: chances.get(p, 0.0) for row in layer.rows for p in row}


def labor(csc, frontier, fanout, key, weights=None, importance_sampling=0, counter=int):
    """Edges of probability above their source's number: (indptr, positions, weights or None).

    ``counter`` gives the number that a source's random one is drawn for.
    """

    def number(p):
        return unit(mix((key + counter(layer.indices[p]) * A) & MASK))

    layer, chances = labor_probabilities(csc, frontier, fanout, weights, importance_sampling)
    indptr, positions, out = [0], [], []
    for row in layer.rows:
        taken = [p for p in row if layer.weight[p] > 0 and number(p) < chances[p]]
        ratios = [layer.weight[p] / chances[p] for p in taken]
        positions += taken
        out += [r * len(ratios) / sum(ratios) for r in ratios]
        indptr.append(len(positions))
    return indptr, positions, out if weights is not None or importance_sampling else None
