"""Rows of options in which every two values of every two options meet."""

import itertools


def pairwise(**options):
    """A short list of dicts: every pair of values of two options is in at least one (greedy, always
    the same list)."""
    values = {name: list(range(len(choices))) for name, choices in options.items()}
    waiting = {
        frozenset({(a, i), (b, j)})
        for a, b in itertools.combinations(values, 2)
        for i, j in itertools.product(values[a], values[b])
    }
    rows = []
    while waiting:
        row = dict(min(sorted(pair) for pair in waiting))
        for name in sorted(
            (name for name in values if name not in row), key=lambda name: -len(values[name])
        ):
            row[name] = max(
                values[name], key=lambda i, at=(name, row): _gain(waiting, *at, i, len(rows))
            )
        waiting -= {frozenset(pair) for pair in itertools.combinations(row.items(), 2)}
        rows.append({name: choices[row[name]] for name, choices in options.items()})
    return rows


def _gain(waiting, name, row, i, turn):
    """How many waiting pairs the value ``i`` completes; among equals, each has its turn."""
    return sum(frozenset({(name, i), other}) in waiting for other in row.items()), -((i + turn) % 7)
