"""DataFrames, their columns, Arrow arrays and relations as fields of a graph."""

import numpy as np
import pytest
import torch

from pagraph import Graph
from pagraph.sampling import SubgraphSampler

pd = pytest.importorskip("pandas", reason="needs pandas")
DAYS = ["2024-01-02", "1969-12-31", "2000-01-01"]


@pytest.fixture
def graph():
    return Graph.from_coo([0, 1], [1, 2])


def given(graph, value, name="x"):
    graph.ndata[name] = value
    rows = graph.ndata[name]
    return rows.dtype, rows.tolist(), graph.node_fields("_N").notes.get(name)


def seconds(texts):
    return [int((pd.Timestamp(text) - pd.Timestamp(0)).total_seconds()) for text in texts]


def test_numbers_keep_their_dtype(graph):
    floats = given(graph, pd.Series([0.1, 2, 3]))
    assert floats == (torch.float64, [0.1, 2, 3], None)
    assert given(graph, pd.Series([1, 2, 3], dtype="int32"))[0] == torch.int32
    assert given(graph, pd.DataFrame({"a": [1, 2, 3], "b": [0.5, 1, 2]})) == (
        torch.float64,
        [[1, 0.5], [2, 1], [3, 2]],
        None,
    )
    assert given(graph, pd.Series([True, False, True]))[:2] == (torch.bool, [True, False, True])


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_times(graph, unit):
    dtype, values, note = given(graph, pd.Series(DAYS).astype(f"datetime64[{unit}]"))
    assert (dtype, values, note.unit) == (torch.int64, seconds(DAYS), "seconds")
    fine = pd.Series(pd.to_datetime([f"{day} 00:00:00.25" for day in DAYS])).astype(
        "datetime64[us]"
    )
    dtype, values, note = given(graph, fine)
    assert values == [1_000_000 * s + 250_000 for s in seconds(DAYS)]
    assert note.unit == "microseconds"


def test_times_of_numpy_and_in_zones(graph):
    assert given(graph, np.array(DAYS, dtype="datetime64[D]"))[1] == seconds(DAYS)
    zoned = pd.Series(pd.to_datetime(DAYS)).dt.tz_localize("Asia/Tokyo")
    assert given(graph, zoned)[1] == [s - 9 * 3600 for s in seconds(DAYS)]


def test_words(graph):
    dtype, codes, note = given(graph, pd.Series(["b", "a", "b"], dtype="category"))
    assert (dtype, codes, note.words) == (torch.int64, [1, 0, 1], ("a", "b"))
    graph.ndata["x"] = torch.zeros(3)
    assert graph.node_fields("_N").notes == {}  # others stand for nothing


def test_arrow(graph):
    pa = pytest.importorskip("pyarrow", reason="needs pyarrow")
    assert given(graph, pa.array([2**60 + 1, 2, 3]))[:2] == (torch.int64, [2**60 + 1, 2, 3])
    assert given(graph, pa.chunked_array([[0.1], [2, 3]]))[:2] == (torch.float64, [0.1, 2, 3])
    lists = pa.array([[0.1, 2], [3, 4], [5, 6]])
    assert given(graph, lists)[:2] == (torch.float64, [[0.1, 2], [3, 4], [5, 6]])
    table = pa.table({"a": pa.array([1, 2, 3], pa.int8()), "b": pa.array([4, 5, 6], pa.int16())})
    assert given(graph, table)[:2] == (torch.int16, [[1, 4], [2, 5], [3, 6]])


def test_polars(graph):
    pl = pytest.importorskip("polars", reason="needs polars")
    assert given(graph, pl.Series([1, 2, 3]))[:2] == (torch.int64, [1, 2, 3])
    days = pl.Series(DAYS).str.to_date()
    assert given(graph, days)[1] == seconds(DAYS)
    assert given(graph, pl.DataFrame({"a": [1, 2, 3]}))[1] == [[1], [2], [3]]


def test_a_relation(graph):
    duckdb = pytest.importorskip("duckdb")
    connection = duckdb.connect()
    relation = connection.sql("select i, i * 0.5::DOUBLE as j from range(3) t(i)")
    assert given(graph, relation)[1] == [[0, 0], [1, 0.5], [2, 1]]


def test_edges_and_the_constructors_take_them_too():
    graph = Graph.from_coo(
        pd.Series([0, 1]), pd.Series([1, 2]), ndata={"when": pd.Series(pd.to_datetime(DAYS))}
    )
    graph.set_field("kind", pd.Series(["a", "a"], dtype="category"), edge_type=("_N", "_E", "_N"))
    assert graph.ndata["when"].tolist() == seconds(DAYS)
    assert graph.edge_fields(("_N", "_E", "_N")).notes["kind"].words == ("a",)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (pd.Series(["a", "b", "c"]), "field 'x' must hold values .* differ from row to row"),
        (pd.Series([1, None, 3], dtype="Int64"), "field.x must have a value .* row 2 .*fill them"),
        (pd.Series(pd.to_datetime(["2024-01-01", None, "2024-01-01"])), "row 2 has none"),
        (pd.Series([b"a", b"b", b"c"]), "no field holds BLOB"),
        (pd.DataFrame({"a": [1, 2, 3], "b": pd.to_datetime(DAYS)}), "columns of numbers alone"),
        (pd.DataFrame({"a": [2**53 + 1, 2, 3], "b": [0.5, 1, 2]}), "below 2\\*\\*53 together"),
        (pd.Series(pd.to_datetime(DAYS[:2])), "one row per vertex \\(3\\), got 2"),
        (np.array(["a", "b", "c"], dtype=object), "must be a tensor or rows of numbers"),
        (np.array([1, 2, 3], dtype="timedelta64[s]"), "must be a tensor or rows of numbers"),
    ],
)
def test_what_is_refused(graph, value, message):
    with pytest.raises((TypeError, ValueError), match=message):
        graph.ndata["x"] = value
    assert "x" not in graph.ndata


def test_times_in_two_units_are_not_compared():
    """One of them would be a thousand times the other."""
    graph = Graph.from_coo([0, 1], [1, 2])
    graph.ndata["time"] = pd.Series(pd.to_datetime(DAYS))
    fine = pd.Series(pd.to_datetime(["2024-01-01 00:00:00.5", "2024-01-01"], format="mixed"))
    graph.edata["time"] = fine
    sampler = SubgraphSampler([2], time="time", disjoint=True)
    seeds = torch.tensor([1, 2])
    with pytest.raises(ValueError, match="one unit, got 'time' in seconds of '_N', microseconds"):
        sampler.sample(graph, seeds, key=1)
