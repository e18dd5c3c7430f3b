"""One array of a file, whatever form it has."""

import bz2
import contextlib
import gzip
import lzma
import os
import pickle

import numpy as np
import pytest
import torch

from pagraph import FormatError
from pagraph.datasets import read_graph, text_blocks
from pagraph.datasets.arrays import read_array
from pagraph.datasets.tables.number_tables import read_numbers

pa = pytest.importorskip("pyarrow")
import pyarrow.parquet  # noqa: E402

ROWS = np.arange(12, dtype=np.float32).reshape(4, 3) / 7


def test_every_form_holds_the_same(tmp_path):
    np.save(tmp_path / "a.npy", ROWS)
    np.save(tmp_path / "f.npy", np.asfortranarray(ROWS.astype(">f4")))
    np.savez_compressed(tmp_path / "a.npz", rows=ROWS)
    torch.save(torch.from_numpy(ROWS), tmp_path / "a.pt")
    columns = pa.table({str(i): ROWS[:, i] for i in range(3)})
    pyarrow.parquet.write_table(columns, tmp_path / "a.parquet")
    lists = pa.table({"rows": pa.array(list(ROWS), pa.list_(pa.float32()))})
    pyarrow.parquet.write_table(lists, tmp_path / "l.parquet")
    np.savetxt(tmp_path / "a.csv", ROWS, delimiter=",", header="x,y,z", comments="")
    np.savetxt(tmp_path / "a.txt", ROWS)
    for name, pack in (("gz", gzip.compress), ("xz", lzma.compress), ("bz2", bz2.compress)):
        (tmp_path / f"a.csv.{name}").write_bytes(pack((tmp_path / "a.csv").read_bytes()))
    for file in sorted(tmp_path.iterdir()):
        read = read_array(file)
        assert read.dtype == torch.float32 and read.equal(torch.from_numpy(ROWS)), file.name


@pytest.mark.parametrize("size", [7, 64])
def test_text_in_blocks(size, tmp_path, monkeypatch):
    monkeypatch.setattr(text_blocks, "_BLOCK_BYTES", size)
    want = np.arange(300).reshape(100, 3)
    np.savetxt(tmp_path / "a.csv", want, fmt="%d", delimiter=",")
    assert read_numbers(tmp_path / "a.csv").equal(torch.from_numpy(want))
    (tmp_path / "a.csv").write_text((tmp_path / "a.csv").read_text() + "1,nan,\n")
    last = read_numbers(tmp_path / "a.csv")
    assert (
        last.dtype == torch.float32
        and last.shape == (101, 3)
        and last[-1].isnan().tolist() == [False, True, True]
    )


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("0.5  1.5\n 2 3\n", [[0.5, 1.5], [2, 3]]),  # aligned by spaces
        ("1 2 \r\n3   4\r\n", [[1, 2], [3, 4]]),
        (" 1\n20\n", [[1], [20]]),
        ("# a b\n1 2\n3 4\n", [[1, 2], [3, 4]]),
        ("#\n\n  \n# 8 9\n1 2\n", [[1, 2]]),
        ("x,y\n1, 2\n,4.5", [[1, 2], [float("nan"), 4.5]]),
    ],
)
def test_columns_of_text(text, rows, tmp_path):
    (tmp_path / "a.txt").write_bytes(text.encode())
    np.testing.assert_array_equal(read_numbers(tmp_path / "a.txt").numpy(), rows)


def test_no_rows(tmp_path):
    (tmp_path / "a.csv").write_text("\n")
    assert read_numbers(tmp_path / "a.csv").shape == (0, 1)
    (tmp_path / "a.csv").write_text("x,y\n")
    assert read_numbers(tmp_path / "a.csv").shape == (0, 2)


@pytest.mark.parametrize(
    ("name", "write", "message"),
    [
        ("a.bin", lambda p: p.touch(), r"must end in one of \.npy, \.npz"),
        ("a.npy", lambda p: np.save(p, np.array([{}])), "must hold plain numbers"),
        (
            "a.npz",
            lambda p: np.savez(p, a=ROWS, b=ROWS),
            r"must hold 1 array, it holds \['a', 'b'\]",
        ),
        ("a.npz", lambda p: np.savez(p, a=np.array([{}])), r"must hold 1 array, it holds \[\]"),
        (
            "a.npz",
            lambda p: p.write_text("no"),
            "must be an .npz file of arrays: it is not an .npz file",
        ),
        ("a.pt", lambda p: torch.save([1], p), "must hold 1 tensor, it holds a list"),
        (
            "a.pt",
            lambda p: torch.save(torch.nn.Linear(1, 1), p),
            "must hold only tensors and plain values",
        ),
        (
            "a.pt",
            lambda p: p.write_text("no"),
            "must be a file that torch.save wrote|must hold tensors",
        ),
        ("a.csv", lambda p: p.write_text("1,2\n3,x\n"), "must be a table of numbers"),
        ("a.csv", lambda p: p.write_text("1,2\n3\n"), "must be a table of numbers"),
        ("a.parquet", lambda p: p.write_text("no"), "is not a complete Parquet file"),
        (
            *("a.parquet", lambda p: pyarrow.parquet.write_table(pa.table({"a": ["x"]}), p)),
            "column 'a' must hold numbers, got VARCHAR",
        ),
        (
            *("a.parquet", lambda p: pyarrow.parquet.write_table(pa.table({"a": [1, None]}), p)),
            "column 'a' must hold numbers, got missing ones",
        ),
        (
            *(
                "a.parquet",
                lambda p: pyarrow.parquet.write_table(pa.table({"a": [[1], [1, 2]]}), p),
            ),
            "column 'a' must hold lists of the same length",
        ),
    ],
)
def test_refuses(name, write, message, tmp_path):
    write(tmp_path / name)
    with pytest.raises(FormatError, match=message):
        read_array(tmp_path / name)


def test_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match="file must exist, got"):
        read_array(tmp_path / "a.npy")


class Evil:
    """Runs a command when it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("evil",)


@pytest.fixture
def pickled_type(tmp_path, monkeypatch):
    """A Parquet file whose column has a type that some versions of pyarrow unpickle."""
    monkeypatch.chdir(tmp_path)
    kind = {
        "ARROW:extension:name": "arrow.py_extension_type",
        "ARROW:extension:metadata": pickle.dumps(Evil()),
    }
    schema = pa.schema([pa.field("src", pa.int64(), metadata=kind), pa.field("dst", pa.int64())])
    pyarrow.parquet.write_table(pa.table([[0, 1], [1, 0]], schema=schema), tmp_path / "a.parquet")
    return tmp_path / "a.parquet"


@pytest.mark.parametrize("read", [read_array, read_graph])
def test_a_damaged_page_of_a_parquet_file_is_one_line(tmp_path, read):
    """DuckDB says it in the middle of a stream of rows, in the words of Arrow's reader."""
    path = tmp_path / "a.parquet"
    ids = np.arange(9000) * 7919 % 1009
    table = pa.table({"src": ids, "dst": ids[::-1]})
    pyarrow.parquet.write_table(table, path, row_group_size=3000)
    content = path.read_bytes()
    last = pyarrow.parquet.ParquetFile(path).metadata.row_group(2).column(1)
    for place in range(last.dictionary_page_offset, last.dictionary_page_offset + 30):
        path.write_bytes(content[:place] + bytes([content[place] ^ 255]) + content[place + 1 :])
        try:
            read(path)
        except ValueError as error:  # or other numbers are read
            assert "\n" not in str(error) and "ArrowArrayStream" not in str(error)


@pytest.mark.filterwarnings("ignore")
def test_no_type_of_a_parquet_file_is_unpickled(pickled_type, tmp_path):
    for read in (read_array, read_graph):
        with contextlib.suppress(FormatError):  # by versions that know the type and refuse it
            read(pickled_type)
    assert not (tmp_path / "evil").exists()
