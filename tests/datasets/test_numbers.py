"""A column of numbers becomes a field of the dtype that holds them all, by every reader, in memory
and in files."""

import struct

import numpy as np
import pytest
import scipy.io
import scipy.sparse
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tiers import examples, pairs

from pagraph import FormatError, Graph
from pagraph.datasets import edge_text, import_graph, numbers, read_graph, text_blocks, write_graph
from pagraph.datasets._numbers import first_unsure
from pagraph.datasets.arrays import read_array
from pagraph.datasets.numbers import float32_holds

pytestmark = pytest.mark.usefixtures("kept_connection")

SINGLES = st.integers(0, 2**32 - 1).map(lambda bits: struct.unpack("f", struct.pack("I", bits))[0])
DECIMALS = st.builds(
    lambda digits, power: float(f"{digits}e{power}"),
    st.integers(-(10**11), 10**11),
    st.integers(-60, 40),
)
SHORT = st.builds(
    lambda digits, power: float(f"{digits}e{power}"),
    st.integers(-(10**5), 10**5),
    st.integers(-9, 9),
)
PRINTED = st.builds(lambda value, digits: float(f"{value:.{digits}e}"), SINGLES, st.integers(0, 11))


def gives_back(value):
    """Whether float32 is the number, or prints it as a decimal of 6 to 9 digits."""
    held = float(np.float32(value))
    return (
        held == value
        or value != value
        or any(float(f"{held:.{k - 1}e}") == value for k in (6, 7, 8, 9))
    )


@settings(max_examples=examples(2000), deadline=None)
@given(st.lists(st.one_of(SINGLES, DECIMALS, SHORT, PRINTED, st.floats()), max_size=5))
@example([0.1, 0.1234567, 0.100000001, -0.0, float("nan"), float("inf")])
@example([1600000001.0])
@example([1e39])
@example([9.99999999])
@example([1e-46])
@example([1.40129846e-45])
@example([3.0517578125e-05, 8.6e9, 0.000999999975])
@pytest.mark.filterwarnings("ignore:overflow")
def test_float32_holds_what_it_gives_back(values):
    column = np.array(values, dtype=np.float64)
    assert float32_holds(column) == all(map(gives_back, values))
    unsure = first_unsure(column, 0)
    assert all(gives_back(value) for value in values[:unsure])


@given(SINGLES)
def test_what_was_written_from_float32_stays(value):
    column = np.array([value, float(f"{value:.8e}"), float(repr(value))])
    assert float32_holds(column)
    assert np.array_equal(column.astype(np.float32), np.full(3, value, np.float32), equal_nan=True)


def test_the_first_block_that_needs_float64_ends_the_search(monkeypatch):
    looked = []
    monkeypatch.setattr(numbers, "float32_holds", lambda block: looked.append(len(block)))
    monkeypatch.setattr(numbers, "_BLOCK_ROWS", 10)
    column = numbers.NumberColumn("a.txt", numbers.NumberField("w"))
    column.append(np.full(50, np.pi))
    assert column.finish().dtype == np.float64 and looked == [10]


TIMES = ["1600000001", "1600000002", "1600000003"]
LARGE = 2**53 + 1
# The text of a column, and the dtype that holds it.
COLUMNS = [
    (TIMES, torch.int64),
    (["-7", "0", str(2**63 - 1)], torch.int64),
    (["+7", "-1", "007"], torch.int64),
    (["1", "0.5", "-3"], torch.float32),
    (["+1", "0.5", "-3"], torch.float32),
    (["0.1", "0.1234567", "123456.789"], torch.float32),
    (["0.100000001", "1e-20", "1.40129846e-45"], torch.float32),
    (["nan", "inf", "-inf"], torch.float32),
    (["1", "nan", "16777217"], torch.float64),
    (["1600000001.5", "1", "2"], torch.float64),
    (["1600000001.0", "1", "2"], torch.float64),
    (["0.1234567891", "1", "2"], torch.float64),
    (["1e39", "1", "2"], torch.float64),
    (["1e20", str(2**53 - 1), "0.5"], torch.float64),
]


def of_duckdb(folder, column, name, monkeypatch):
    monkeypatch.setattr(edge_text, "_FEW_BYTES", 0)
    return of_lines(folder, column, name, None)


def of_lines(folder, column, name, monkeypatch):
    path = folder / "a.csv"
    path.write_text(
        "src,dst,x,w\n" + "".join(f"{i},{i + 1},0,{value}\n" for i, value in enumerate(column))
    )
    return path, {"weight": name}


def of_third_fields(folder, column, name, monkeypatch):
    path = folder / "a.txt"
    path.write_text(
        "# c\n" + "".join(f"{i}  {i + 1} {value} 7\n" for i, value in enumerate(column))
    )
    return path, {"weight": name}


def of_words(folder, column, name, monkeypatch):
    path = folder / "a.txt"
    path.write_text(
        "src dst w\n" + "".join(f"v{i} v{i + 1} {value}\n" for i, value in enumerate(column))
    )
    return path, {"weight": name, "relabel": True}


def of_parquet(folder, column, name, monkeypatch):
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    has_fraction = any(not word.lstrip("+-").isdigit() for word in column)
    values = [float(word) if has_fraction else int(word) for word in column]
    parquet.write_table(
        pa.table({"src": range(3), "dst": range(1, 4), "w": values}), folder / "a.parquet"
    )
    return folder / "a.parquet", {"weight": name}


def of_konect(folder, column, name, monkeypatch):
    path = folder / "out.a"
    path.write_text(
        "% asym weighted\n"
        + "".join(f"{i + 1} {i + 2} {value}\n" for i, value in enumerate(column))
    )
    return path, {"weight": name}


READERS = [of_duckdb, of_lines, of_third_fields, of_words, of_parquet, of_konect]


@pytest.mark.every
@pytest.mark.parametrize(*pairs(make=READERS, case=COLUMNS, block_bytes=[20, 2**20]))
def test_weights(make, case, block_bytes, tmp_path, monkeypatch):
    column, dtype = case
    path, options = make(tmp_path, column, "w", monkeypatch)
    monkeypatch.setattr(text_blocks, "_BLOCK_BYTES", block_bytes)
    monkeypatch.setattr(numbers, "_BLOCK_ROWS", 2)
    weights = read_graph(path, **options).edata["w"]
    assert weights.dtype == dtype
    expected = np.array([int(word) if dtype == torch.int64 else float(word) for word in column])
    assert np.array_equal(weights.numpy(), expected.astype(weights.numpy().dtype), equal_nan=True)
    for both in (False, True):  # in bounded memory, the same bits
        write_graph(read_graph(path, **options, undirected=both), tmp_path / f"memory{both}")
        import_graph(path, tmp_path / f"files{both}", **options, undirected=both)
        for file in (tmp_path / f"memory{both}").iterdir():
            assert file.read_bytes() == (tmp_path / f"files{both}" / file.name).read_bytes()


@pytest.mark.every
@pytest.mark.parametrize("make", [of_duckdb, of_lines, of_third_fields, of_words, of_konect])
@pytest.mark.parametrize("block_bytes", [20, 2**20])
@pytest.mark.parametrize(
    ("column", "wrong"),
    [
        (["1", "0.5", str(LARGE)], LARGE),
        (["1", "0.5", str(2**53)], 2**53),
        (["1", "nan", f"+{LARGE}"], LARGE),
        ([str(-LARGE), "1", "0.5"], -LARGE),
        (["1", str(LARGE), "nan"], LARGE),
        (["1", "2", str(2**63)], 2**63),
        (["1", "-9999999999999999999", "2"], -9999999999999999999),
    ],
)
def test_integers_that_are_not_held(make, block_bytes, column, wrong, tmp_path, monkeypatch):
    path, options = make(tmp_path, column, "w", monkeypatch)
    monkeypatch.setattr(text_blocks, "_BLOCK_BYTES", block_bytes)
    message = (
        rf"(line|row) \d must hold an integer of 64 bits.*'w', got {wrong}; weight=w:float64 "
        r"rounds it"
    )
    for read in (read_graph, lambda path, **options: import_graph(path, tmp_path / "g", **options)):
        with pytest.raises(FormatError, match=message):
            read(path, **options)
    path, options = make(tmp_path, column, "w:float64", monkeypatch)
    got = read_graph(path, **options).edata["w"]
    assert got.dtype == torch.float64 and np.array_equal(
        got.numpy(), np.array(column, float), equal_nan=True
    )


def test_the_line_is_named(tmp_path):
    (tmp_path / "a.txt").write_text(f"# c\n0 1 0.5\n\n1 2 {LARGE}\n")
    with pytest.raises(FormatError, match=r"a\.txt, line 4 must hold .* got 9007199254740993"):
        read_graph(tmp_path / "a.txt", weight="w")


@pytest.mark.every
@pytest.mark.parametrize("make", READERS)
@pytest.mark.parametrize(
    ("column", "dtype", "expected"),
    [
        (TIMES, "float32", [1.6e9] * 3),
        (TIMES, "int32", [1600000001, 1600000002, 1600000003]),
        (["0.1", "1", "2"], "float64", [0.1, 1, 2]),
        (["0.1234567891", "1", "2"], "float32", [float(np.float32(0.1234567891)), 1, 2]),
        (["1.0", "2", "1e3"], "int64", [1, 2, 1000]),
    ],
)
def test_a_dtype_that_is_asked_for(make, column, dtype, expected, tmp_path, monkeypatch):
    path, options = make(tmp_path, column, f"w:{dtype}", monkeypatch)
    for graph in (read_graph(path, **options), import_graph(path, tmp_path / "g", **options)):
        assert str(graph.edata["w"].dtype) == f"torch.{dtype}"
        assert graph.edata["w"].tolist() == expected


@pytest.mark.parametrize("make", READERS)
@pytest.mark.parametrize(
    ("column", "dtype", "row", "got"),
    [
        (["1", "0.5", "2"], "int64", 2, "0.5"),
        (["1", "2", "nan"], "int32", 3, "nan"),
        (["1", "2147483648", "3"], "int32", 2, "2147483648"),
        (["1e30", "2", "3"], "int64", 1, r"1e\+30"),
        (["1.5", "1e39", "3"], "float32", 2, r"1e\+39"),
    ],
)
def test_what_a_dtype_does_not_hold(make, column, dtype, row, got, tmp_path, monkeypatch):
    path, options = make(tmp_path, column, f"w:{dtype}", monkeypatch)
    with pytest.raises(
        FormatError, match=f"row {row} must hold a number of {dtype} for 'w:{dtype}', got {got}"
    ):
        read_graph(path, **options)


def test_names_with_colons(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("src,dst,a,a:b,a:float32,b:float32\n0,1,1,2,3,4\n")
    assert read_graph(path, weight="a:b").edata["a:b"].tolist() == [2]
    assert read_graph(path, weight="a:int32").edata["a"].tolist() == [1]
    for name in ("a:float32", "b:float32"):
        with pytest.raises(
            ValueError, match=f"weight must not be both .* got '{name}', which is a column of "
        ):
            read_graph(path, weight=name)
    weights = read_graph(path, weight="a:float32:int64").edata["a:float32"]
    assert weights.tolist() == [3] and weights.dtype == torch.int64
    with pytest.raises(ValueError, match="weight must be NAME or NAME:DTYPE, got ':int64'"):
        read_graph(path, weight=":int64")
    with pytest.raises(FormatError, match="must have a column 'a:float16' for the weights"):
        read_graph(path, weight="a:float16")


def test_times_of_konect(tmp_path):
    path = tmp_path / "out.a"
    path.write_text("% asym weighted\n1 2 5 1600000001\n2 3 0.5 1600000002\n")
    graph = read_graph(path, weight="w")
    assert graph.edata["w"].dtype == torch.float32
    assert (
        graph.edata["time"].tolist() == [1600000001, 1600000002]
        and graph.edata["time"].dtype == torch.int64
    )
    path.write_text("% asym weighted\n1 2 5 1600000001.5\n2 3 1 1\n")
    assert read_graph(path).edata["time"].tolist() == [1600000001.5, 1]


class TestMatrices:
    def market(self, folder, field, *values):
        lines = [f"{i + 1} {i + 2} {value}\n" for i, value in enumerate(values)]
        text = (
            f"%%MatrixMarket matrix coordinate {field} general\n% c\n9000000 9000000 "
            f"{len(values)}\n"
        )
        (folder / "m.mtx").write_text(text + "".join(lines))
        return folder / "m.mtx"

    def test_integers_and_reals_are_what_the_head_says(self, tmp_path):
        weights = read_graph(self.market(tmp_path, "integer", *TIMES), weight="w").edata["w"]
        assert weights.tolist() == list(map(int, TIMES)) and weights.dtype == torch.int64
        weights = read_graph(self.market(tmp_path, "real", *TIMES), weight="w").edata["w"]
        assert weights.tolist() == list(map(int, TIMES)) and weights.dtype == torch.float64
        assert (
            read_graph(self.market(tmp_path, "real", "1", "2"), weight="w").edata["w"].dtype
            == torch.float32
        )
        with pytest.raises(
            FormatError, match="must hold integers as its header says, got fractions"
        ):
            read_graph(self.market(tmp_path, "integer", "1", "0.5"), weight="w")
        with pytest.raises(
            FormatError, match=f"row 1 must hold .* got {LARGE}; weight=w:float64 rounds it"
        ):
            read_graph(self.market(tmp_path, "real", LARGE), weight="w")

    @pytest.mark.parametrize("dtype", ["int64", "float32", "float64"])
    def test_scipys_own_writer(self, dtype, tmp_path):
        matrix = scipy.sparse.random(30, 30, 0.2, random_state=0, dtype=np.float64).tocsr()
        matrix.data = (matrix.data * 1e9).astype(dtype)
        scipy.io.mmwrite(tmp_path / "m.mtx", matrix)
        weights = read_graph(tmp_path / "m.mtx", weight="w").edata["w"]
        assert str(weights.dtype) == f"torch.{dtype}"
        assert sorted(weights.tolist()) == sorted(matrix.data.tolist())

    @pytest.mark.parametrize("benchmark", [False, True])
    def test_arrays_keep_their_dtype_unless_another_is_asked_for(self, benchmark, tmp_path):
        path = tmp_path / "m.npz"

        def save(values):
            matrix = scipy.sparse.csr_matrix((values, ([0, 1], [1, 0])), (2, 2))
            if not benchmark:
                return scipy.sparse.save_npz(path, matrix)
            return np.savez(
                path,
                **{f"adj_{n}": getattr(matrix, n) for n in ("data", "indices", "indptr", "shape")},
            )

        for dtype in ("int64", "int32", "uint8", "float32", "float64", "bool"):
            save(np.array([1, 1], dtype))
            assert str(read_graph(path, weight="w").edata["w"].dtype) == f"torch.{dtype}"
        save(np.array([2**60 + 1, 3]))
        assert read_graph(path, weight="w").edata["w"].tolist() == [2**60 + 1, 3]
        assert read_graph(path, weight="w:float32").edata["w"].tolist() == [2**60, 3]
        with pytest.raises(
            FormatError, match="row 1 must hold a number of int32 for 'w:int32', got 11529"
        ):
            read_graph(path, weight="w:int32")
        save(np.array([2**63, 3], np.uint64))
        with pytest.raises(
            FormatError, match="must hold an integer of 64 bits.* got 9223372036854775808"
        ):
            read_graph(path, weight="w:int64")
        save(np.array([1j, 3]))
        with pytest.raises(
            FormatError, match="must hold real numbers for 'w:int64', got complex128"
        ):
            read_graph(path, weight="w:int64")


class TestParquet:
    @pytest.fixture
    def read(self, tmp_path):
        pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")

        def read(values, type_=None, weight="w"):
            columns = {"src": [0, 1], "dst": [1, 0], "w": pa.array(values, type_)}
            parquet.write_table(pa.table(columns), tmp_path / "a.parquet")
            return read_graph(tmp_path / "a.parquet", weight=weight).edata["w"]

        return read

    def test_types(self, read):
        import decimal

        import pyarrow as pa

        for type_, dtype in (
            (pa.int8(), torch.int64),
            (pa.uint64(), torch.int64),
            (pa.float32(), torch.float32),
        ):
            assert read([1, 2], type_).dtype == dtype
        exact = [decimal.Decimal(2**60 + 1), decimal.Decimal(1)]
        assert read(exact, pa.decimal128(38, 0)).tolist() == [2**60 + 1, 1]
        assert (
            read([decimal.Decimal("0.10"), decimal.Decimal("2.00")], pa.decimal128(9, 2)).dtype
            == torch.float32
        )

    def test_integers_of_more_bits(self, read):
        import pyarrow as pa

        with pytest.raises(FormatError, match="9223372036854775808"):
            read([2**63, 1], pa.uint64())
        assert read([2**63, 1], pa.uint64(), "w:float64").tolist() == [2.0**63, 1]


class TestTables:
    @pytest.fixture(autouse=True)
    def _arrow(self):
        pytest.importorskip("pyarrow")

    def array(self, folder, text, **options):
        (folder / "a.csv").write_text(text)
        return read_array(folder / "a.csv", **options)

    @pytest.mark.parametrize(
        ("text", "dtype"),
        [
            ("1600000001\n1600000002\n", torch.int64),
            ("x,y\n0.1,1\n2, 0.123\n", torch.float32),
            ("1600000001,0.5\n1600000002,1.5\n", torch.float64),
            ("1600000001\n \n1600000002\n,\n", None),
            ("16777217,\n,2\n", torch.float64),
        ],
    )
    @pytest.mark.parametrize("block_bytes", [10, 2**20])
    def test_labels(self, text, dtype, block_bytes, tmp_path, monkeypatch):
        monkeypatch.setattr(text_blocks, "_BLOCK_BYTES", block_bytes)
        if dtype is None:
            with pytest.raises(FormatError, match="must be a table of numbers"):
                self.array(tmp_path, text, field="label")
            return
        got = self.array(tmp_path, text, field="label")
        lines = [line.split(",") for line in text.replace("x,y\n", "").splitlines()]
        expected = np.array([[float(word or "nan") for word in line] for line in lines])
        assert got.dtype == dtype
        assert np.array_equal(got.numpy(), expected.astype(got.numpy().dtype), equal_nan=True)

    @pytest.mark.parametrize("block_bytes", [20, 2**20])
    def test_labels_that_are_not_held(self, block_bytes, tmp_path, monkeypatch):
        monkeypatch.setattr(text_blocks, "_BLOCK_BYTES", block_bytes)
        for text in (
            f"1,1\n{LARGE},2\n3,0.5\n",
            f"1,1\n{LARGE},0.5\n3,1\n",
            f"1,0.5\n{2**63},2\n3,1\n",
        ):
            with pytest.raises(
                FormatError, match=r"a\.csv, row 2 must hold .* in the field 'label', got 9"
            ):
                self.array(tmp_path, text, field="label")

    def test_fractions_of_features_are_float32(self, tmp_path):
        assert self.array(tmp_path, "1600000001,0.5\n", field="feat").dtype == torch.float32
        (tmp_path / "e.txt").write_text("0 1\n")
        (tmp_path / "x.csv").write_text("1600000001,0.5\n2,0.5\n")
        graph = read_graph(
            tmp_path / "e.txt", features=tmp_path / "x.csv", labels=tmp_path / "x.csv"
        )
        assert (graph.ndata["feat"].dtype, graph.ndata["label"].dtype) == (
            torch.float32,
            torch.float64,
        )

    def test_columns_of_parquet_side_by_side(self, tmp_path):
        import pyarrow as pa
        import pyarrow.parquet

        pa.parquet.write_table(pa.table({"a": [LARGE], "b": [0.5]}), tmp_path / "a.parquet")
        with pytest.raises(
            FormatError, match=f"column 'a' must hold integers below 2\\*\\*53 .* got {LARGE}"
        ):
            read_array(tmp_path / "a.parquet")
        pa.parquet.write_table(pa.table({"a": [LARGE], "b": [5]}), tmp_path / "a.parquet")
        assert read_array(tmp_path / "a.parquet").tolist() == [[LARGE, 5]]

    @pytest.mark.parametrize("ending", ["csv", "parquet"])
    def test_described_tables(self, ending, tmp_path):
        pd = pytest.importorskip("pandas")
        table = pd.DataFrame(
            {"id": ["a", "b"], "t": [1600000001, 1600000002], "x": [0.5, 0.1], "big": [LARGE, 1]}
        )
        getattr(table, f"to_{ending}")(tmp_path / f"v.{ending}", index=False)
        (tmp_path / "e.csv").write_text("s,d\na,b\n")

        def read(fields):
            (tmp_path / "g.yaml").write_text(
                f"nodes:\n  v: {{file: v.{ending}, id: id, fields: {fields}}}\n"
                "edges:\n  'v:to:v': {file: e.csv, src: s, dst: d}\n"
            )
            return read_graph(tmp_path / "g.yaml").ndata

        fields = read("{time: t, x: x, both: [t, x], whole: [t, big], feat: [t, x]}")
        assert fields["time"].tolist() == [1600000001, 1600000002]
        assert fields["x"].dtype == torch.float32
        assert fields["both"].tolist() == [[1600000001, 0.5], [1600000002, 0.1]]
        assert fields["whole"].tolist() == [[1600000001, LARGE], [1600000002, 1]]
        assert fields["feat"].shape == (2, 2)
        with pytest.raises(
            FormatError, match=rf"'both' must be .*v\.{ending}: integers of 2.* got {LARGE}"
        ):
            read("{both: [x, big]}")


def test_ogbs_tables(tmp_path):
    pytest.importorskip("pyarrow")
    import gzip

    tables = {
        "edge": "0,1\n1,2\n",
        "num-node-list": "3\n",
        "node-feat": "1600000001,0.5\n1,2\n3,4\n",
        "node_time": "1600000001.5\n1600000002\n1600000003\n",
        "node-label": "0.1\n0.2\n0.3\n",
        "edge_time": "1600000001\n1600000002\n",
    }
    (tmp_path / "raw").mkdir()
    for name, text in tables.items():
        (tmp_path / "raw" / f"{name}.csv.gz").write_bytes(gzip.compress(text.encode()))
    graph = read_graph(tmp_path)
    assert graph.ndata["time"].tolist() == [1600000001.5, 1600000002, 1600000003]
    assert graph.ndata["label"].dtype == graph.ndata["feat"].dtype == torch.float32
    assert graph.edata["time"].tolist() == [1600000001, 1600000002]


def test_no_edges(tmp_path):
    (tmp_path / "a.txt").write_text("# none\n")
    graph = read_graph(tmp_path / "a.txt", num_nodes=2, weight="w:float64")
    assert isinstance(graph, Graph) and graph.edata["w"].dtype == torch.float64
