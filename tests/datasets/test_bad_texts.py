"""Texts that are no edge lists, or odd ones: refused in one line, and read alike by DuckDB and line
by line."""

import re
import signal
import subprocess
import time

import pytest
from fresh_processes import HANGING, forked_python

from pagraph import FormatError
from pagraph.datasets import edge_text, import_graph, read_edge_list, text_blocks

IDS = "must begin with two integers, got"


@pytest.fixture(params=[0, 2**30], ids=["DuckDB", "lines"])
def read(request, tmp_path, monkeypatch):
    monkeypatch.setattr(edge_text, "_FEW_BYTES", request.param)

    def read(data, **options):
        path = tmp_path / "edges.csv"
        path.write_bytes(data)
        return read_edge_list(path, **options)

    return read


@pytest.mark.every
@pytest.mark.parametrize(
    ("data", "of_ids", "of_words"),
    [
        ("0 1\n1 2\n".encode("utf-16"), "must be UTF-8 text, it begins as UTF-16 does", None),
        ("0 1\n1 2\n".encode("utf-16-be"), f"line 2 {IDS}", "hold two ids|zero byte"),
        (b"0 1\n1 2\0\n", f"line 2 {IDS} '1 2\\\\x00'", "no zero byte in them, got '2\\\\x00'"),
        (b"a,b\xff\nb,a\n", IDS, "must be UTF-8 text"),
        (b"0 1\n9223372036854775808 2\n", f"line 2 {IDS} '9223372036854775808 2'", ""),
        (b"0 1\n1.7 2\n", f"line 2 {IDS} '1.7 2'", ""),
        (b"0 1\n1e3 2\n", f"line 2 {IDS} '1e3 2'", ""),
        (b"0 1\n1_0 2\n", f"line 2 {IDS} '1_0 2'", ""),
        # In the first line, where DuckDB's own look takes them for names of columns.
        (b"1,99999999999999999999\n1,2\n", f"line 1 {IDS} '1,99999999999999999999'", ""),
        (b"1.0,2\n1,2\n", f"line 1 {IDS} '1.0,2'", ""),
        (b"1.0,2.0\n1,2\n", f"line 1 {IDS} '1.0,2.0'", ""),
        (b"-.5 1e3\n1 2\n", f"line 1 {IDS} '-.5 1e3'", ""),
        (b"", "must hold at least 1 edge, got none", None),
        (b"# 0 1\n\n", "must hold at least 1 edge, got none", None),
        # The second line would be an edge of its own.
        (b'src,dst,note\n0,1,"a\n3,4",5\n', "line 2 must close the quotation mark", None),
        (b'0,1,"a\n3,4",5\n', "line 1 must close the quotation mark", None),
        (b'0\t1\t"a\n3\t4"\t5\n', "line 1 must close the quotation mark", None),
    ],
)
def test_is_refused(read, data, of_ids, of_words):
    """``of_words``: the error with ``relabel``; None: the same; empty: these are words."""
    with pytest.raises(FormatError, match=of_ids) as error:
        read(data)
    assert "\n" not in str(error.value)
    message = of_ids if of_words is None else of_words
    if not message:
        assert read(data, relabel=True).num_edges == 2
        return
    with pytest.raises(FormatError, match=message) as error:
        read(data, relabel=True)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "data",
    [
        b"\xef\xbb\xbf0,1,5\n1,2,6\n",
        b"0,1,5\r\n1,2,6\r\n",
        b"0,1,5\r\n1,2,6\r",
        b"# c\n0,1,5\n\n1,2,6",
        b'0,1,5,"a, b"\n1,2,6,"say ""hi"""\n',
        b'0,1,5,a"b\n1,2,6,c\n',
    ],
)
def test_is_read(read, data):
    graph = read(data, weight="w")
    assert graph.csc.indices.tolist() == [0, 1] and graph.edata["w"].tolist() == [5, 6]


def test_a_line_of_100_megabytes(tmp_path):
    path = tmp_path / "edges.csv"
    path.write_bytes(b"0,1\n1,2," + b"x" * 10**8 + b"\n")
    limit = text_blocks.LINE_LIMIT
    for options in ({}, {"relabel": True}):
        with pytest.raises(FormatError, match=f"lines of at most {limit} bytes, line 2 is longer"):
            read_edge_list(path, **options)


@pytest.mark.attack
def test_interrupted_nothing_is_left(tmp_path):
    """Ctrl-C in the middle of reading, and of numbering words."""
    with open(tmp_path / "edges.csv", "w") as file:
        file.writelines(
            f"user-{i * 7919 % 50021},user-{i * 104729 % 50021}\n" for i in range(10**6)
        )
    script = (
        "import sys\n"
        "from pagraph.datasets import import_graph\n"
        "print('ready', flush=True)\n"
        "import_graph('edges.csv', 'out', relabel=True, memory='1GiB')\n"
    )
    run = subprocess.Popen(
        [forked_python(), "-c", script],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    run.stdout.readline()
    time.sleep(0.7)
    run.send_signal(signal.SIGINT)
    error = run.communicate(timeout=HANGING)[1]
    # So early that it was not done; should it be, the folder is whole.
    if run.returncode:
        assert re.search("KeyboardInterrupt|must hold|nterrupt", error)
        assert [path.name for path in tmp_path.iterdir()] == ["edges.csv"]


def test_refused_nothing_is_left(tmp_path):
    (tmp_path / "edges.csv").write_bytes(b"a,b\n" * 50_000 + b'c,"d\n')
    with pytest.raises(FormatError, match="line 50001 must close the quotation mark"):
        import_graph(tmp_path / "edges.csv", tmp_path / "out", relabel=True, memory="1GiB")
    assert [path.name for path in tmp_path.iterdir()] == ["edges.csv"]
