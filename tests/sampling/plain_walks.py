"""Random walks in plain Python: slow, obvious, and the same as the kernel's; and the probabilities
of their steps."""

from collections import Counter

from plain_sampler import MASK, A, B, draw_below, mix
from plain_weighted import draw, groups, running_sums, scan, unit

from pagraph.seeds import derive_key


class Rows:
    """The edges of positive weight by the vertex that they are left from, as positions in a CSC."""

    def __init__(self, csc, weights=None):
        self.ends = csc.indices.tolist()
        self.kept = [e for e in range(len(self.ends)) if weights is None or weights[e] > 0]
        indptr = csc.indptr.tolist()
        of = [v for v in range(len(indptr) - 1) for _ in range(indptr[v], indptr[v + 1])]
        self.begin = [sum(of[e] < v for e in self.kept) for v in range(len(indptr))]
        self.neighbors = [set(self.ends[indptr[v] : indptr[v + 1]]) for v in range(len(indptr) - 1)]
        self.weights = None if weights is None else [weights[e] for e in self.kept]
        if self.weights is not None and len(set(self.weights)) <= 1:
            self.weights = None  # equal weights are drawn uniformly

    def draw(self, stream, j, v):
        start, end = self.begin[v], self.begin[v + 1]
        if self.weights is None:
            return self.kept[start + draw_below(stream, j, end - start)]
        if groups(start, end):
            return self.kept[draw(stream, j, start, end, self.weights)]
        return self.kept[
            scan(
                self.weights,
                start,
                end,
                unit(stream, j) * running_sums(self.weights[start:end])[-1],
            )
        ]


def bias(rows, x, before, p, q):
    """node2vec's factor of an edge to ``x`` after one from ``before``."""
    return 1 / p if x == before else 1.0 if before in rows.neighbors[x] else 1 / q


def draw_looking_back(rows, stream, v, before, p, q):
    """Tries, and after as many as there are edges (at least 4) one pass over all edges."""
    most = max(1 / p, 1.0, 1 / q)
    start, end = rows.begin[v], rows.begin[v + 1]
    tries = max(4, end - start)
    for k in range(tries):
        e = rows.draw(stream, 2 * k, v)
        if unit(stream, 2 * k + 1) < bias(rows, rows.ends[e], before, p, q) / most:
            return e
    total = 0.0
    for r in range(start, end):
        e = rows.kept[r]
        share = (rows.weights[r] if rows.weights else 1.0) * (
            bias(rows, rows.ends[e], before, p, q) / most
        )
        total += share
        if unit(stream, 2 * tries + r - start) * total < share:
            pick = e
    return pick


def walk(rows_of_steps, starts, key, *, p=1.0, q=1.0, ends=None, stay=False):
    """Vertices and positions of the edges of each walk, -1 after its end; one ``Rows`` for each
    step."""
    step_key, end_key = derive_key(key, 0), derive_key(key, 1)
    walks = []
    for i, start in enumerate(starts):
        vertices, edges = [start], []
        for t, rows in enumerate(rows_of_steps):
            v, stream = vertices[-1], (step_key + i * A + t * B) & MASK
            ended = v < 0 or (ends is not None and unit((end_key + i * A) & MASK, t) < ends[t])
            if ended or rows.begin[v] == rows.begin[v + 1]:
                vertices.append(v if stay and not ended else -1)
                edges.append(-1)
                continue
            if t > 0 and (p, q) != (1, 1):
                edges.append(draw_looking_back(rows, mix(stream), v, vertices[-2], p, q))
            else:
                edges.append(rows.draw(stream, 0, v))
            vertices.append(rows.ends[edges[-1]])
        walks.append((vertices, edges))
    return [vertices for vertices, _ in walks], [edges for _, edges in walks]


def chances(rows, v, before, p, q):
    """Probability of each next vertex from ``v``, reached from ``before`` (None: not at all)."""
    shares = Counter()
    for r in range(rows.begin[v], rows.begin[v + 1]):
        x = rows.ends[rows.kept[r]]
        shares[x] += (rows.weights[r] if rows.weights else 1.0) * (
            1.0 if before is None else bias(rows, x, before, p, q)
        )
    total = sum(shares.values())
    return {x: share / total for x, share in shares.items()}


def most_visited(walks, per_start, every, most):
    """For each start its most visited vertices: (vertex, start, visits)."""
    found = []
    for low in range(0, len(walks), per_start):
        visits = Counter(
            v for row in walks[low : low + per_start] for v in row[every::every] if v >= 0
        )
        ranked = sorted(((count, v) for v, count in visits.items()), reverse=True)[:most]
        found += [(v, walks[low][0], count) for count, v in ranked]
    return found
