"""What typed columns become: dtypes, units, words, missing values, and what stays behind."""

import datetime
import math
import re
from decimal import Decimal

import duckdb
import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from pagraph import FormatError, Graph
from pagraph.datasets.numbers import float32_holds
from pagraph.datasets.tables.columns import family

pytestmark = pytest.mark.usefixtures("kept_connection")


def graph_of(rows, **options):
    """The graph of one table, a query of DuckDB's."""
    with duckdb.connect() as connection:
        return Graph.from_tables({"t": connection.sql(rows)}, **options)


def field_of(kind, *values, **options):
    """The one field that a column of these values becomes, written in SQL."""
    rows = ", ".join(f"({value}::{kind})" for value in values)
    return graph_of(f"select * from (values {rows}) t(c)", **options).ndata["c"]


@pytest.mark.every
@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("TINYINT", torch.int8),
        ("SMALLINT", torch.int16),
        ("INTEGER", torch.int32),
        ("BIGINT", torch.int64),
        ("UTINYINT", torch.uint8),
        ("USMALLINT", torch.int32),
        ("UINTEGER", torch.int64),
        ("UBIGINT", torch.int64),
        ("HUGEINT", torch.int64),
        ("DECIMAL(9,0)", torch.int64),
        ("BOOLEAN", torch.bool),
        ("FLOAT", torch.float32),
        ("DOUBLE", torch.float32),
        ("DECIMAL(9,2)", torch.float32),
    ],
)
def test_dtypes(kind, dtype):
    got = field_of(kind, 1, 0)
    assert got.dtype == dtype
    assert got.tolist() == [1, 0]


@settings(max_examples=examples(50))
@given(st.lists(st.floats() | st.integers(0, 10**6).map(lambda n: n / 100), min_size=1))
def test_fractions_keep_their_value(values):
    graph = Graph.from_tables({"t": pd.DataFrame({"c": np.array(values)})})
    if np.isnan(values).all():
        assert "c" not in graph.ndata
        return
    got = graph.ndata["c"]
    want = torch.tensor(values, dtype=torch.float64)
    holds = float32_holds(want.numpy())
    assert got.dtype == (torch.float32 if holds else torch.float64)
    assert torch.equal(got.nan_to_num(7), want.to(got.dtype).nan_to_num(7))


def test_only_feat_is_rounded():
    rows = "select 1600000001.5::double as feat, 1600000001.5::double as other, 3::int as label"
    graph = graph_of(rows)
    assert [graph.ndata[n].dtype for n in ("feat", "other", "label")] == [
        torch.float32,
        torch.float64,
        torch.int64,
    ]


def test_times_are_never_rounded():
    rows = 'select * from (values (0.5::double), (0.25)) t("at")'
    assert graph_of(rows).ndata["at"].dtype == torch.float32
    assert graph_of(rows, times={"t": "at"}).ndata["time"].dtype == torch.float64
    assert graph_of('select 5::int as "at"', times={"t": "at"}).ndata["time"].dtype == torch.int64


def test_times_that_were_rounded_before_are_refused():
    """As float64 nobody could tell any more."""
    times = {"t": "at"}
    near = "select * from (values (16777216::float), ('-inf')) t(\"at\")"
    assert graph_of(near, times=times).ndata["time"].tolist() == [2**24, -math.inf]
    for value in ("1.7e9", "-1.7e9"):
        rows = f'select {value}::float as "at"'
        with pytest.raises(
            FormatError, match=r"t\.at must fit into the 24 bits of FLOAT, .* got -?17"
        ):
            graph_of(rows, times=times)
        assert graph_of(rows.replace("float", "double"), times=times).num_nodes == 1
    assert graph_of(rows).ndata["at"].tolist() == [-1.7e9]  # no time


def test_masks():
    rows = "select * from (values (0, 1), (1, 2)) t(train_mask, other_mask)"
    graph = graph_of(rows)
    assert graph.ndata["train_mask"].tolist() == [False, True]
    assert graph.ndata["other_mask"].tolist() == [1, 2]
    # A row without a value is in no set, and not outside of it either.
    rows = "select * from (values (1), (null)) t(train_mask)"
    with pytest.raises(FormatError, match=r"t\.train_mask must have a value in every row"):
        graph_of(rows)
    assert graph_of(rows, missing=-1).ndata["train_mask"].tolist() == [1, -1]


def test_integers_above_64_bits():
    with pytest.raises(FormatError) as raised:
        field_of("UBIGINT", 2**63, 1)
    assert str(raised.value) == (
        "t.c must hold integers of 64 bits, got 9223372036854775808: leave it out"
    )
    with pytest.raises(FormatError, match=f"got -{2**63 + 1}:"):
        field_of("HUGEINT", -(2**63) - 1, 1)
    assert field_of("UBIGINT", 2**63 - 1).tolist() == [2**63 - 1]
    assert field_of("HUGEINT", -(2**63)).tolist() == [-(2**63)]


@pytest.mark.parametrize(
    ("kind", "texts", "unit", "want"),
    [
        ("DATE", ["1969-12-31", "2020-02-29"], "seconds", [-86400, 1582934400]),
        ("TIMESTAMP", ["1969-12-31 23:59:58", "2020-02-29"], "seconds", [-2, 1582934400]),
        ("TIMESTAMP", ["1969-12-31 23:59:58.5", "1970-01-01"], "microseconds", [-1_500_000, 0]),
        ("TIMESTAMP_S", ["1969-12-31 23:59:58", "1970-01-01"], "seconds", [-2, 0]),
        ("TIMESTAMP_MS", ["1970-01-01 00:00:00.001"], "microseconds", [1000]),
        ("TIMESTAMP_NS", ["1970-01-01 00:00:00.001"], "microseconds", [1000]),
        ("TIMESTAMP_NS", ["1970-01-01 00:00:00.000000001"], "nanoseconds", [1]),
        ("TIMESTAMPTZ", ["1970-01-01 01:00:00+01"], "seconds", [0]),
    ],
)
def test_dates(kind, texts, unit, want):
    rows = ", ".join(f"('{text}'::{kind})" for text in texts)
    graph = graph_of(f"select c from (values {rows}) t(c)")
    assert graph.ndata["time"].tolist() == want
    assert graph.ndata.notes["time"].unit == unit


@pytest.mark.parametrize(
    ("times", "unit", "apart"),
    [
        (["2020-01-01", "2020-01-01 00:00:00.25"], "microseconds", 250_000),
        (["2020-01-01 00:00:00.25", "2020-01-01 00:00:00.250000007"], "nanoseconds", 7),
    ],
)
def test_all_times_of_a_graph_have_one_unit(times, unit, apart):
    """The finest of all, as samplers compare them."""
    earlier, later = (pd.DatetimeIndex([time]) for time in times)
    first = pd.DataFrame({"id": [0], "at": earlier})
    second = pd.DataFrame({"first_id": [0], "at": later})
    graph = Graph.from_tables({"first": first, "second": second})
    units = {graph.node_fields(name).notes["time"].unit for name in graph.node_types}
    assert units == {unit}
    numbers = [int(graph.node_fields(name)["time"]) for name in graph.node_types]
    assert numbers[1] - numbers[0] == apart


def test_zones_become_utc_and_naive_times_stay():
    at = pd.DatetimeIndex(["1960-06-01 12:00", "2020-06-01 12:00"])
    naive = Graph.from_tables({"t": pd.DataFrame({"at": at})})
    assert "seconds; no zone" in str(naive.schema())
    assert naive.ndata["time"].tolist() == [int(t.timestamp()) for t in at.tz_localize("UTC")]
    try:
        zoned = at.tz_localize("America/New_York")
        graph = Graph.from_tables({"t": pd.DataFrame({"at": zoned})})
    except FormatError as error:  # versions 1 of DuckDB ask pytz for the zone
        pytest.skip(f"needs pytz: {error}")
    assert "seconds; UTC" in str(graph.schema())
    assert graph.ndata["time"].tolist() == [int(t.timestamp()) for t in zoned]


@settings(max_examples=examples(40))
@given(st.lists(st.none() | st.datetimes(), min_size=1, max_size=20))
def test_any_times(values):
    array = np.array(values, dtype="datetime64[us]")
    graph_options = {"missing": -5, "times": {"t": "at"}}
    graph = Graph.from_tables({"t": pd.DataFrame({"at": array})}, **graph_options)
    whole = all(value is None or value.microsecond == 0 for value in values)
    start = datetime.datetime(1970, 1, 1)
    unit = datetime.timedelta(seconds=1) if whole else datetime.timedelta(microseconds=1)
    want = [-5 if value is None else (value - start) // unit for value in values]
    assert graph.ndata["time"].tolist() == want


def test_infinite_dates_are_refused():
    with pytest.raises(FormatError) as raised:
        graph_of("select unnest(['2020-01-01'::date, 'infinity'::date]) as \"at\"")
    assert str(raised.value) == "t.at must hold dates, got an infinite one"


WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)


@settings(max_examples=examples(40))
@given(st.lists(st.sampled_from(["b", "a", "it's", 'q"', "ü\n"]) | WORDS | st.none(), min_size=1))
def test_words(values):
    graph = Graph.from_tables({"t": pd.DataFrame({"c": pd.array(values, dtype="object")})})
    present = [value for value in values if value is not None]
    words = sorted(set(present))
    if not words or len(words) > len(present) // 2:
        assert "c" not in graph.ndata
        return
    assert graph.ndata.notes["c"].words == tuple(words)
    got = [None if code < 0 else words[code] for code in graph.ndata["c"].tolist()]
    assert got == values
    assert graph.ndata["c"].dtype == torch.int64


def test_categories_are_words_however_rare():
    values = pd.Categorical(["z", "y", None], categories=["z", "y", "never"])
    graph = Graph.from_tables({"t": pd.DataFrame({"c": values})})
    assert graph.ndata.notes["c"].words == ("never", "y", "z")
    assert graph.ndata["c"].tolist() == [2, 1, -1]


def test_lists_of_one_length():
    assert field_of("FLOAT[2]", "[1, 2]", "[3, 4]").tolist() == [[1, 2], [3, 4]]
    assert field_of("INTEGER[]", "[1, 2]", "[3, 4]").dtype == torch.int32
    assert field_of("DOUBLE[]", "[0.5]", "[0.25]").dtype == torch.float32
    assert field_of("DOUBLE[]", "[1600000001.5]", "[0.25]").dtype == torch.float64
    assert field_of("BOOLEAN[]", "[true, false]").tolist() == [[True, False]]


def test_lists_and_numbers_side_by_side():
    rows = np.random.default_rng(0).random((5000, 3))
    frame = pd.DataFrame({"n": np.arange(5000), "l": list(rows), "b": np.arange(5000) % 2 == 0})
    fields = Graph.from_tables({"t": frame}).ndata
    assert torch.equal(fields["l"], torch.from_numpy(rows))
    assert torch.equal(fields["n"], torch.arange(5000))
    assert torch.equal(fields["b"], torch.arange(5000) % 2 == 0)


@pytest.mark.every
@pytest.mark.parametrize(
    ("kind", "values", "why"),
    [
        ("BLOB", ["'a'", "'b'"], "no field holds BLOB"),
        ("INTERVAL", ["'1 day'", "'2 days'"], "no field holds INTERVAL"),
        ("STRUCT(a INTEGER)", ["{'a': 1}", "{'a': 2}"], "no field holds STRUCT(a INTEGER)"),
        ("INTEGER[][]", ["[[1]]", "[[2]]"], "no field holds INTEGER[][]"),
        ("INTEGER[]", ["[1]", "[1, 2]"], "its lists have 1 to 2 items"),
        ("INTEGER[]", ["[1]", "null"], "1 rows have no list"),
        ("INTEGER[]", ["[1]", "[null]"], "its lists have missing items"),
        ("INTEGER[]", ["[]", "[]"], "its lists have 0 items"),
        ("VARCHAR", ["'a'", "'b'"], "its texts differ from row to row"),
        ("VARCHAR", ["repeat('a', 201)"] * 2, "texts of more than 200 characters"),
        ("INTEGER", ["null", "null"], "no row has a value"),
    ],
)
def test_what_stays_behind_is_named(kind, values, why):
    rows = ", ".join(f"({value}::{kind})" for value in values)
    graph = graph_of(f"select c from (values {rows}) t(c)")
    assert graph.ndata == {}
    (column,) = graph.schema().vertices[0].columns
    assert (column.name, column.why) == ("c", why)
    assert re.search(rf"^t\.c +{re.escape(kind[:6])}", str(graph.schema()), re.MULTILINE)


def test_missing_integers():
    with pytest.raises(FormatError) as raised:
        field_of("INTEGER", 1, "null", "null")
    assert str(raised.value) == (
        "t.c must have a value in every row, as INTEGER has no NaN; row 2 and 1 more has none: "
        "missing=-1 fills them"
    )
    assert field_of("INTEGER", 1, "null", missing=-1).tolist() == [1, -1]
    assert field_of("BOOLEAN", "true", "null", missing=-1).dtype == torch.int8
    assert field_of("INTEGER", 1, "null", missing={"t": {"c": 9}}).tolist() == [1, 9]
    with pytest.raises(ValueError, match="missing must name columns that are read, got 't.d'"):
        field_of("INTEGER", 1, "null", missing={"t": {"d": 9}})
    with pytest.raises(ValueError, match="missing must be a number of int8 for t.c, got 300"):
        field_of("TINYINT", 1, "null", missing=300)
    with pytest.raises(ValueError, match="missing must be a number of int32 for t.c, got 0.5"):
        field_of("INTEGER", 1, "null", missing=0.5)


def test_missing_fractions_and_words():
    # A number for all is for what no float holds; a column that is named is filled.
    got = field_of("DOUBLE", 1, "null", missing=-1)
    assert got.isnan().tolist() == [False, True]
    assert field_of("DOUBLE", 1, "null", missing={"t": {"c": 0.5}}).tolist() == [1, 0.5]
    words = ["'b'", "'b'", "'a'", "'a'", "null"]
    assert field_of("VARCHAR", *words, missing=7).tolist() == [1, 1, 0, 0, -1]
    rows = ", ".join(f"({word}::VARCHAR)" for word in words)
    (column,) = graph_of(f"select c from (values {rows}) t(c)").schema().vertices[0].columns
    assert column.holds == "2 words: a, b; missing: -1 in 1 rows"
    with pytest.raises(ValueError) as raised:
        field_of("VARCHAR", *words, missing={"t": {"c": 7}})
    assert str(raised.value) == "missing must be -1 for the words of t.c, as their codes are"


def test_decimals():
    values = [Decimal("0.01"), Decimal("123456.78")]
    assert field_of("DECIMAL(18,2)", *values).tolist() == pytest.approx([0.01, 123456.78])
    assert field_of("DECIMAL(18,2)", "16000000.01", 1).dtype == torch.float64


def test_other_fields_make_room_for_the_time_and_the_key():
    rows = "select 7 as id, 1::int as time, 2::int as original_id, '2020-01-01'::date as \"at\""
    graph = graph_of(rows)
    assert {name: rows.tolist() for name, rows in graph.ndata.items()} == {
        "time_": [1],
        "original_id_": [2],
        "time": [1577836800],
        "original_id": [7],
    }


@pytest.mark.parametrize(
    ("kind", "want"),
    [
        ("DECIMAL(38,0)", "integer"),
        ("DECIMAL(38,4)", "fraction"),
        ("ENUM('DATE', 'a[')", "text"),
        ("TIMESTAMP WITH TIME ZONE", "time"),
        ("TIME", "other"),
        ("DATE[]", "other"),
        ("DOUBLE[3]", "list"),
        ("MAP(VARCHAR, INTEGER)", "other"),
    ],
)
def test_families(kind, want):
    assert family(kind) == want
