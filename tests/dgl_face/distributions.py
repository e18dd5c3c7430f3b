"""Outcomes of random sampling, counted over many draws, against exact probabilities and against
DGL's."""

import itertools
import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from cases import collect, dgl
from scipy import stats

# A right sampler fails a test with a chance below this; seeds are fixed besides.
ALARM = 1e-8


@dataclass(frozen=True, eq=False)
class Forest:
    """Vertices whose in-edges look alike: each is one draw from the same distribution.

    Attributes:
        graph: Vertices ``0 .. copies - 1`` of the type "v" (or of the only type), each with its own
            sources.
        copies: How many.
        positions: For each relation and edge id, which of its destination's in-edges it is.
    """

    graph: Any
    copies: int
    positions: dict[tuple[str, str, str], np.ndarray]


def make_forest(degrees, copies=250, idtype=torch.int64, *, in_order=False, **columns):
    """A forest: one relation for each of ``degrees``; edge ids in no order, or in that of the
    destinations.

    ``columns``: a name to the values over the in-edges of a vertex, for each relation (None: the
    column is missing).
    """
    rng = np.random.default_rng(sum(degrees))
    single = len(degrees) == 1
    etypes = (
        [("_N", "_E", "_N")] if single else [(f"u{i}", f"r{i}", "v") for i in range(len(degrees))]
    )
    counts = {"_N" if single else "v": copies}
    data, positions = {}, {}
    for etype, degree in zip(etypes, degrees, strict=True):
        m = copies * degree
        order = np.arange(m) if in_order else rng.permutation(m)
        first = copies if single else 0
        counts[etype[0]] = first + m
        data[etype] = (
            torch.from_numpy(first + order).to(idtype),
            torch.from_numpy(order // degree).to(idtype),
        )
        positions[etype] = order % degree
    graph = dgl.heterograph(data, counts, idtype=idtype)
    for name, values in columns.items():
        for etype, pattern in zip(etypes, values, strict=True):
            if pattern is not None:
                graph.edges[etype].data[name] = torch.as_tensor(pattern)[
                    torch.from_numpy(positions[etype])
                ]
    return Forest(graph, copies, positions)


def draw(make, forest, sampler, batches=60, *, hop=-1, base=2, **options):
    """The outcome of each vertex in each batch by relation: a number whose digits say how often
    each in-edge came.

    Arrays of shape ``(batches, copies)``.
    """
    dgl.seed(11)
    options |= {"seed": 5} if make.__name__ == "ours" else {}
    ids = torch.arange(forest.copies, dtype=forest.graph.idtype).repeat(batches)
    seeds = ids if len(forest.graph.ntypes) == 1 else {"v": ids}
    found = collect(make(forest.graph, seeds, sampler, batch_size=forest.copies, **options))
    return outcomes(forest, [batch[-1][hop] for batch in found], base)


def outcomes(forest, blocks, base=2):
    """The outcome of each vertex in each block, by relation."""
    rows = {
        etype: np.empty((len(blocks), forest.copies), dtype=np.int64) for etype in forest.positions
    }
    for i, block in enumerate(blocks):
        for etype, positions in forest.positions.items():
            dst = block.edges(etype=etype)[1].numpy()
            digits = base ** positions[block.edges[etype].data[dgl.EID].numpy()].astype(np.int64)
            vertices = block.dstnodes[etype[2]].data[dgl.NID][dst.astype(np.int64)].numpy()
            codes = np.zeros(forest.copies, dtype=np.int64)
            np.add.at(codes, vertices, digits)
            rows[etype][i] = codes
    return rows


def probabilities(weights, fanout, *, replace=False, excluded=(), base=2):
    """The exact probability of each outcome: draws one after the other by weight; excluded edges
    are dropped after."""
    found = Counter()
    candidates = sum(w > 0 for w in weights)
    draws = fanout if replace and candidates else min(fanout, candidates)

    def go(chance, left, code, remaining):
        if left == 0:
            found[code] += chance
            return
        total = sum(remaining.values())
        for i, w in remaining.items():
            others = remaining if replace else {j: v for j, v in remaining.items() if j != i}
            go(chance * w / total, left - 1, code + (0 if i in excluded else base**i), others)

    go(1.0, draws, 0, {i: w for i, w in enumerate(weights) if w > 0})
    return dict(found)


def class_probabilities(classes, fanout, *, replace=False):
    """The exact probability of how many picks have which weight, for ``(weight, number of edges)``
    pairs."""
    chances = {(0,) * len(classes): 1.0}
    for _ in range(fanout):
        after = Counter()
        for picked, chance in chances.items():
            left = [
                w * (n - (0 if replace else k)) for (w, n), k in zip(classes, picked, strict=True)
            ]
            for i, mass in enumerate(left):
                if mass > 0:
                    after[(*picked[:i], picked[i] + 1, *picked[i + 1 :])] += (
                        chance * mass / sum(left)
                    )
        chances = dict(after)
    return chances


def products(*parts):
    """The probabilities of independent outcomes together, as tuples."""
    return {
        tuple(code for code, _ in pairs): math.prod(chance for _, chance in pairs)
        for pairs in itertools.product(*(part.items() for part in parts))
    }


def assert_distribution(codes, chances):
    """Outcomes occur as often as ``chances`` says; neither less nor more regularly than at
    random."""
    seen = Counter(codes)
    assert set(seen) <= set(chances), f"impossible outcomes: {set(seen) - set(chances)}"
    count = seen.total()
    expected = np.array([chances[code] * count for code in chances])
    observed = np.array([seen[code] for code in chances])
    rare = expected < 5
    if rare.any():  # together, as one cell
        expected = np.append(expected[~rare], expected[rare].sum())
        observed = np.append(observed[~rare], observed[rare].sum())
    assert len(expected) > 1
    statistic, pvalue = stats.chisquare(observed, expected)
    assert pvalue > ALARM, (statistic, observed, expected)
    assert stats.chi2.cdf(statistic, len(expected) - 1) > ALARM, "too regular for chance"


def assert_same_distribution(mine, reference):
    """Two samples of outcomes could have come from one distribution."""
    first, second = Counter(mine), Counter(reference)
    codes = sorted(first | second)
    table = np.array([[sample[code] for code in codes] for sample in (first, second)])
    rare = table.sum(0) < 10
    if rare.any():
        table = np.column_stack([table[:, ~rare], table[:, rare].sum(1)])
        table = table[:, table.sum(0) > 0]
    assert table.shape[1] > 1
    assert stats.chi2_contingency(table).pvalue > ALARM, table


def assert_uniform_inclusion(codes_matrix, fanout):
    """Each of ``d`` edges is in a share ``fanout / d`` of the samples without replacement; shape
    ``(draws, d)``.

    Indicators of one sample have covariance ``-p (1 - p) / (d - 1)``, hence the factor.
    """
    n, degree = codes_matrix.shape
    p = fanout / degree
    assert (codes_matrix.sum(1) == fanout).all() and codes_matrix.max() == 1
    deviations = codes_matrix.sum(0) - n * p
    statistic = (deviations**2).sum() / (n * p * (1 - p)) * (degree - 1) / degree
    assert ALARM < stats.chi2.sf(statistic, degree - 1) < 1 - ALARM, statistic
