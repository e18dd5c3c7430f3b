"""Blocks of whole lines: nothing lost at the seams, gzip recognised, broken files refused."""

import gzip
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagraph import FormatError
from pagraph.datasets import edge_rows
from pagraph.datasets.edge_rows import Block, read_blocks


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.binary(max_size=12).filter(lambda b: not b.startswith((b"\x1f", b"\xef"))), max_size=20),
    st.sampled_from([b"\n", b"\r\n"]),
    st.booleans(),
    st.integers(1, 9),
)
def test_blocks_join_to_the_file(tmp_path_factory, lines, ending, zipped, size):
    content = ending.join(lines)
    path = tmp_path_factory.mktemp("text") / "file"
    path.write_bytes(gzip.compress(content) if zipped else content)
    old, edge_rows._BLOCK_BYTES = edge_rows._BLOCK_BYTES, size
    try:
        blocks = list(read_blocks(path))
    finally:
        edge_rows._BLOCK_BYTES = old
    assert b"".join(block.data for block in blocks) == content
    line = 1
    for block in blocks[:-1]:
        assert block.first_line == line
        assert block.data.endswith(b"\n")
        line += block.data.count(b"\n")


def test_line_numbers():
    block = Block(b"a\nbb\r\nccc", 10)
    assert [block.line_at(offset) for offset in (0, 2, 6)] == [(10, "a"), (11, "bb"), (12, "ccc")]
    assert block.line_at(6)[1] == "ccc"
    assert len(Block(b"x" * 500, 1).line_at(0)[1]) == 80


def test_byte_order_mark_is_dropped(tmp_path):
    (tmp_path / "a").write_bytes(b"\xef\xbb\xbf1 2\n")
    assert [block.data for block in read_blocks(tmp_path / "a")] == [b"1 2\n"]


def test_gzip_of_several_members(tmp_path):
    (tmp_path / "a").write_bytes(gzip.compress(b"1 2\n") + gzip.compress(b"3 4\n"))
    assert b"".join(block.data for block in read_blocks(tmp_path / "a")) == b"1 2\n3 4\n"


@pytest.mark.parametrize(
    "content",
    [
        gzip.compress(b"1 2\n" * 10_000)[:-9],
        gzip.compress(b"1 2\n" * 10_000)[:30],
        b"\x1f\x8b" + os.urandom(50),
        gzip.compress(b"1 2\n" * 10_000)[:20] + bytes(200),
        gzip.compress(b"1 2\n")[:-8] + bytes(8),
    ],
    ids=["cut at the end", "cut early", "noise", "zeros", "wrong checksum"],  # the bytes themselves differ by run
)
def test_broken_gzip(tmp_path, content):
    (tmp_path / "a.gz").write_bytes(content)
    with pytest.raises(FormatError, match=r"a\.gz is no whole gzip file"):
        list(read_blocks(tmp_path / "a.gz"))


def test_a_line_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr(edge_rows, "_BLOCK_BYTES", 1000)
    monkeypatch.setattr(edge_rows, "_LINE_LIMIT", 5000)
    (tmp_path / "a").write_bytes(b"1 2\n" + bytes(100_000))
    with pytest.raises(FormatError, match="lines of at most 5000 bytes, line 2 is longer"):
        list(read_blocks(tmp_path / "a"))


@pytest.mark.parametrize("zipped", [False, True])
def test_progress_ends_at_the_size_of_the_file(tmp_path, monkeypatch, zipped):
    monkeypatch.setattr(edge_rows, "_BLOCK_BYTES", 1000)
    content = b"1 2\n" * 5000
    path = tmp_path / "a"
    path.write_bytes(gzip.compress(content) if zipped else content)
    calls = []
    list(read_blocks(path, progress=lambda done, total: calls.append((done, total))))
    size = path.stat().st_size
    assert len(calls) == 20
    assert calls[-1] == (size, size)
