"""A shop in any database, and the graph that it is, made of rows and dictionaries."""

from __future__ import annotations

import datetime
import random
from dataclasses import dataclass, field

import torch

# In SQL that SQLite, DuckDB and PostgreSQL all take.
TABLES = {
    "users": (
        "id integer primary key, boss integer references users(id), country varchar(20), "
        "joined timestamp, name varchar(40)"
    ),
    "products": (
        "sku varchar(20) primary key, price double precision, maker_id integer references users(id)"
    ),
    "orders": (
        "id integer primary key, user_id integer references users(id), "
        "giver_id integer references users(id), placed timestamp, returned boolean"
    ),
    # A composite key, of which one column refers.
    "lines": (
        "order_id integer references orders(id), number integer, "
        "sku varchar(20) references products(sku), amount bigint, primary key (order_id, number)"
    ),
    "parcels": (
        "id integer primary key, order_id integer, number integer, weight double precision, "
        "foreign key (order_id, number) references lines(order_id, number)"
    ),
    # Pairs, a table without a key, and one without rows.
    "tags": "user_id integer references users(id), sku varchar(20) references products(sku)",
    "visits": "user_id integer references users(id), pages integer",
    "coupons": "id integer primary key, user_id integer references users(id), worth integer",
}
KEYS = {
    "users": ("id",),
    "products": ("sku",),
    "orders": ("id",),
    "lines": ("order_id", "number"),
    "parcels": ("id",),
    "coupons": ("id",),
}
LINKS = {
    "users": [(("boss",), "users")],
    "products": [(("maker_id",), "users")],
    "orders": [(("user_id",), "users"), (("giver_id",), "users")],
    "lines": [(("order_id",), "orders"), (("sku",), "products")],
    "parcels": [(("order_id", "number"), "lines")],
    "tags": [(("user_id",), "users"), (("sku",), "products")],
    "visits": [(("user_id",), "users")],
    "coupons": [(("user_id",), "users")],
}
TIMES = {"users": "joined", "orders": "placed"}
PAIRS = ("tags",)


def shop_rows(seed: int, num_users: int = 12, num_orders: int = 40) -> dict[str, list[tuple]]:
    """Rows of each table, not in the order of their keys."""
    draw = random.Random(seed)
    ids = draw.sample(range(-50, 10 * num_users), num_users)
    skus = [f"p'{number};" for number in draw.sample(range(1000), 7)]
    orders = draw.sample(range(100, 100 + 3 * num_orders), num_orders)
    first = datetime.datetime(1969, 12, 30)

    def moment():
        return first + datetime.timedelta(seconds=draw.randrange(10**6))

    def some(values):
        return draw.choice([None, *values])

    lines = [(o, n) for o in orders for n in range(draw.randrange(3))]
    return {
        "users": [
            # Of those before alone: DuckDB checks a key when the row comes.
            (i, some(ids[:place]), some(["de", "fr"]), moment(), f"user {place}")
            for place, i in enumerate(ids)
        ],
        "products": [(s, draw.choice([None, 0.1, 2.5]), some(ids)) for s in skus],
        "orders": [
            (o, draw.choice(ids), some(ids), moment(), draw.choice([True, False, None]))
            for o in orders
        ],
        "lines": [(*key, some(skus), draw.choice([1, 2**40])) for key in lines],
        "parcels": [(n, *draw.choice([*lines, (None, None)]), n / 4) for n in range(9)],
        "tags": [(some(ids), some(skus)) for _ in range(20)],
        "visits": [(some(ids), draw.randrange(9)) for _ in range(20)],
        "coupons": [],
    }


@dataclass
class Plain:
    """A graph as lists: sources by destination, and values by vertex."""

    counts: dict[str, int] = field(default_factory=dict)
    edges: dict[tuple[str, str, str], list[list[int]]] = field(default_factory=dict)
    fields: dict[tuple[str, str], list] = field(default_factory=dict)
    # Of the table whose rows are asked: rows by mask.
    masks: dict[str, set[int]] = field(default_factory=dict)


def plain_graph(rows, columns, *, label=None, shares=(0.6, 0.2, 0.2)) -> Plain:
    """The graph of rows by table, whose columns are named; ``label`` is (table, column)."""
    found = Plain()
    rows = {
        name: sorted(map(tuple, of_table), key=_key_of(name, columns))
        for name, of_table in rows.items()
    }
    for pairs in PAIRS:
        rows[pairs].sort(key=lambda row: [(value is None, value) for value in row])
    places = {}
    for name, of_table in rows.items():
        if name in PAIRS:
            continue
        found.counts[name] = len(of_table)
        at = [columns[name].index(column) for column in KEYS.get(name, ())]
        places[name] = {tuple(row[i] for i in at): place for place, row in enumerate(of_table)}
        _set_fields(found, name, of_table, columns[name], label)
    for name, links in LINKS.items():
        ends = []
        for names, target in links:
            at = [columns[name].index(column) for column in names]
            keys = [tuple(row[i] for i in at) for row in rows[name]]
            ends.append([None if None in key else places[target][key] for key in keys])
        if name in PAIRS:
            (_, source), (_, target) = links
            _add(found, (source, name, target), ends[0], ends[1])
            continue
        for (names, target), end in zip(links, ends, strict=True):
            _add(found, (name, "_".join(names), target), range(len(end)), end)
    if label is not None:
        _set_masks(found, label[0], shares)
    return found


def _key_of(name, columns):
    at = [columns[name].index(column) for column in KEYS.get(name, ())]
    return lambda row: tuple(row[i] for i in at)


def _add(found, edge_type, sources, targets):
    source, name, target = edge_type
    pairs = [p for p in zip(sources, targets, strict=True) if None not in p]
    forward = [[] for _ in range(found.counts[target])]
    backward = [[] for _ in range(found.counts[source])]
    for first, last in pairs:
        forward[last].append(first)
        backward[first].append(last)
    found.edges[edge_type] = forward
    found.edges[target, f"rev_{name}", source] = backward


def _set_fields(found, name, rows, columns, label):
    links = {column for names, _ in LINKS[name] for column in names}
    key = KEYS.get(name, ())
    for place, column in enumerate(columns):
        values = [row[place] for row in rows]
        if (column,) == key:
            if values != list(range(len(values))):
                found.fields[name, "original_id"] = values
            continue
        if column in links or (values and set(values) == {None}):
            continue
        if TIMES.get(name) == column:
            found.fields[name, "time"] = [seconds_of(value) for value in values]
            continue
        if any(isinstance(value, str) for value in values):
            words = sorted({value for value in values if value is not None})
            # A word of one row alone says nothing.
            if 2 * len(words) > sum(value is not None for value in values):
                continue
            values = [-1 if value is None else words.index(value) for value in values]
        if label == (name, column):
            column = "label"
            values = [-1 if value is None else int(value) for value in values]
        found.fields[name, column] = values


def seconds_of(moment: datetime.datetime | str) -> int:
    """Seconds since 1970 of a time without a zone."""
    if isinstance(moment, str):
        moment = datetime.datetime.fromisoformat(moment)
    return round((moment - datetime.datetime(1970, 1, 1)).total_seconds())


def _set_masks(found, name, shares):
    """Rows with a label by time: each set ends where the share of rows before is nearest to what
    was asked."""
    times = found.fields[name, "time"]
    known = [row for row, value in enumerate(found.fields[name, "label"]) if value >= 0]
    moments = sorted({times[row] for row in known})
    first = 0
    total = 0.0
    for place, (part, share) in enumerate(zip(("train", "val", "test"), shares, strict=True)):
        total += share
        after = len(shares) - 1 - place

        def distance(last, total=total):
            before = sum(times[row] <= moments[last] for row in known)
            return abs(before - total * len(known))

        last = min(range(len(moments)), key=distance)
        last = min(max(last, first), len(moments) - 1 - after)
        inside = set(moments[first : last + 1])
        found.masks[part] = {row for row in known if times[row] in inside}
        first = last + 1


def check(graph, plain: Plain, *, asked: str = "") -> None:
    """Compare a graph with a plain one: counts, edges both ways, all fields, and the masks."""
    assert graph.num_nodes_by_type == plain.counts
    assert set(graph.edge_types) == set(plain.edges)
    for edge_type, expected in plain.edges.items():
        indptr, indices = graph.csc_of(edge_type).arrays
        bounds = zip(indptr[:-1], indptr[1:], strict=True)
        assert [indices[a:b].tolist() for a, b in bounds] == expected, edge_type
    made = {"feat", "train_mask", "val_mask", "test_mask"} if plain.masks else set()
    names = {(t, n) for t in graph.node_types for n in graph.node_fields(t) if n not in made}
    assert names == set(plain.fields)
    for (name, column), expected in plain.fields.items():
        assert values_of(graph.node_fields(name)[column]) == expected, (name, column)
    for part, rows in plain.masks.items():
        mask = graph.node_fields(asked)[f"{part}_mask"]
        assert set(mask.nonzero().squeeze(1).tolist()) == rows, part


def values_of(rows: torch.Tensor) -> list:
    """A field as its reference has it: words, and None for what is missing."""
    if rows.dim() == 2 and rows.dtype == torch.uint8:
        return [bytes(row).rstrip(b"\0").decode() for row in rows.tolist()]
    if rows.is_floating_point():
        # A decimal is the one that float32 prints.
        decimals = [float(str(value)) for value in rows.numpy()]
        return [None if value != value else value for value in decimals]
    return rows.tolist()
