"""The features that a task's types get from their columns, and what is said of each column."""

import math

import numpy as np
import pandas as pd
import pytest

from pagraph import Graph

ROWS = 300
DRAW = np.random.default_rng(0)


def graph_of(columns, **options):
    """A graph of one table with a task, whose rows also have these columns."""
    users = pd.DataFrame({"id": range(3), "size": [1.5, 2.5, 3.5]})
    orders = pd.DataFrame(
        {
            "user_id": DRAW.integers(0, 3, ROWS),
            "placed": pd.Timestamp("2024-01-01") + pd.to_timedelta(np.arange(ROWS), "D"),
            "good": DRAW.integers(0, 2, ROWS),
            **columns,
        }
    )
    tables = {"users": users, "orders": orders}
    return Graph.from_tables(tables, task="orders:good:placed", **options)


def feature(columns, **options):
    return graph_of(columns, **options).node_fields("orders")["feat"].numpy()


def said(graph, name):
    """What the schema says of a column."""
    columns = [c for vertex in graph.tables.vertices for c in vertex.columns if c.name == name]
    (column,) = columns
    return column.holds


@pytest.mark.parametrize(
    "values",
    [
        1_700_000_000_000 + DRAW.integers(0, 60_000, ROWS),
        1e15 + DRAW.normal(0, 3e5, ROWS),
        1_700_000_000_000_000_000 + DRAW.integers(0, 100, ROWS),
        np.where(np.arange(ROWS) == 7, 1e15 + 0.125, 1e15),
    ],
)
def test_numbers_whose_spread_is_small(values):
    found = feature({"x": values})[:, 0]
    exact = values - values.min()
    expected = (exact - exact.mean()) / exact.std()
    assert np.allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_equal_numbers_are_zeros_and_this_is_said():
    graph = graph_of({"x": np.full(ROWS, 1e15), "y": np.arange(ROWS)})
    assert not graph.node_fields("orders")["feat"][:, 0].any()
    assert said(graph, "x") == "in feat: 0, as it is constant"
    assert said(graph, "y") == "in feat: scaled"


@pytest.mark.parametrize("missing", [-1, -1e6, {"orders": {"n": -1, "x": -1, "b": -1}}])
def test_what_is_missing_does_not_count(missing):
    gaps = DRAW.random(ROWS) < 0.3
    # -1 is also a value.
    n = pd.Series(DRAW.integers(-1, 5, ROWS), dtype="Int32").mask(gaps)
    x = pd.Series(DRAW.normal(9, 2, ROWS)).mask(gaps)
    b = pd.Series(DRAW.random(ROWS) < 0.5, dtype="boolean").mask(gaps)
    if missing == -1e6:
        b = b.fillna(False)  # a byte holds no -1000000
    graph = graph_of({"n": n, "x": x, "b": b}, missing=missing)
    fields = graph.node_fields("orders")
    fill = -1 if isinstance(missing, dict) else missing
    assert set(fields["n"][gaps].tolist()) == {fill}
    for place, column in enumerate([n, x, b]):
        numbers = column.astype("Float64").to_numpy(dtype=float, na_value=math.nan)
        expected = (numbers - np.nanmean(numbers)) / np.nanstd(numbers)
        found = fields["feat"][:, place].numpy()
        assert np.allclose(found, np.nan_to_num(expected), atol=1e-6)
    assert f"{gaps.sum()} missing ones are {fill:.0f}" in said(graph, "n")


def words(count):
    """Of rising frequency: the last word is the most frequent."""
    ranks = DRAW.choice(count, ROWS - 2 * count, p=np.arange(count) / sum(range(count)))
    return [f"w{rank:03}" for rank in [*ranks, *range(count), *range(count)]]


def test_many_words_are_named_or_the_rarer_ones_are_one_class():
    column = words(60)
    graph = graph_of({"kind": column})
    assert graph.node_fields("orders")["feat"].tolist() == [[1]] * ROWS
    assert "not in feat, which takes at most 32 words, here 60" in said(graph, "kind")
    assert "words=32 keeps the most frequent" in str(graph.schema())
    graph = graph_of({"kind": column}, words=10)
    fields = graph.node_fields("orders")
    counts = pd.Series(column).value_counts()
    kept = sorted(sorted(counts.index, key=lambda word: (-counts[word], word))[:10])
    assert fields.notes["kind"].words == (*kept, "other")
    codes = [kept.index(word) if word in kept else 10 for word in column]
    assert fields["kind"].tolist() == codes
    assert fields["feat"].shape == (ROWS, 11)
    assert fields["feat"].argmax(1).tolist() == codes
    rare = sum(code == 10 for code in codes)
    assert f"other: {rare} rows of rarer words" in said(graph, "kind")
    # All words fit: no class for others.
    graph = graph_of({"kind": column}, words=60)
    assert graph.node_fields("orders")["feat"].shape == (ROWS, 60)


def test_texts_of_which_some_repeat():
    column = [None, *["often"] * 9, *["other"] * 5, *(f"t{i}" for i in range(ROWS - 15))]
    assert said(graph_of({"t": column}), "t") == "its texts differ from row to row"
    fields = graph_of({"t": column}, words=1).node_fields("orders")
    assert fields.notes["t"].words == ("often", "other")
    fields = graph_of({"t": column}, words=2).node_fields("orders")
    # A word of the column is no word for others.
    assert fields.notes["t"].words == ("often", "other", "other_")
    assert fields["t"].tolist() == [-1, *[0] * 9, *[1] * 5, *[2] * (ROWS - 15)]
    assert fields["feat"][0].tolist() == [0, 0, 0]
    # No word is in two rows.
    graph = graph_of({"t": [f"t{i}" for i in range(ROWS)]}, words=5)
    assert said(graph, "t") == "its texts differ from row to row"


def test_categories_beyond_the_number():
    column = pd.Categorical(words(40), categories=[f"w{i:03}" for i in range(90)])
    fields = graph_of({"kind": column}, words=3).node_fields("orders")
    assert len(fields.notes["kind"].words) == 4


@pytest.mark.parametrize("words", [0, -1, 1.5, True, "3", 2**16 + 1])
def test_a_number_of_words_that_is_none(words):
    with pytest.raises(ValueError, match="words must be from 1 to 65536, got"):
        graph_of({}, words=words)


def test_a_table_with_features_of_its_own():
    graph = graph_of({"feat": DRAW.random(ROWS), "x": DRAW.random(ROWS)})
    assert said(graph, "x") == "not in feat, which is a column"
    assert said(graph, "good").endswith("not in feat, which is a column")


class TestTask:
    """A task of DataFrames is that of a database."""

    def test_sets_and_features(self):
        graph = graph_of({"x": DRAW.random(ROWS)}, train=0.5, val=0.3, test=0.2)
        fields = graph.node_fields("orders")
        sizes = [int(fields[f"{part}_mask"].sum()) for part in ("train", "val", "test")]
        assert sizes == [150, 90, 60]
        assert fields["label"].dtype.is_floating_point is False
        assert graph.node_fields("users")["feat"].shape == (3, 1)
        assert said(graph, "size") == "in feat: scaled"

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"task": "orders"}, "task must be TABLE:LABEL or TABLE:LABEL:TIME, got 'orders'"),
            ({"task": "users:x"}, "task must name columns of users"),
            ({"train": 0.5}, "train must come with task for tables, got 0.5"),
            ({"task": "users:name", "val": 2}, "val must be a share of the task's rows"),
        ],
    )
    def test_what_is_refused(self, options, message):
        users = pd.DataFrame({"id": [1, 2], "name": ["a", "a"]})
        with pytest.raises(ValueError, match=message):
            Graph.from_tables({"users": users}, **options)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"b.a_x": "a", "a": ["x", "y"]},
            "got 'b.a_x' for 'a', whose key is x, y: pass keys={'a': 'COLUMN'} to give another",
        ),
        ({"b.a_x": "a"}, "got 'b.a_x' for 'a', which has no key: pass keys="),
    ],
)
def test_a_reference_that_does_not_fit_a_key_is_named_as_it_was_written(keys, message):
    tables = {"a": pd.DataFrame({"x": [1, 2], "y": [1, 2]}), "b": pd.DataFrame({"a_x": [1, 2]})}
    with pytest.raises(ValueError) as raised:
        Graph.from_tables(tables, keys=keys)
    assert message in str(raised.value)
