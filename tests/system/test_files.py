"""Files that others wrote: only plain ones, no more than is said, none outside of their folder."""

import ast
import gzip
import io
import os
import re

import numpy as np
import pytest

from pagraph import FormatError
from pagraph.system.files import (
    bounded,
    check_inside,
    check_links,
    named_path,
    open_plain,
    read_npy_header,
    read_small,
)


def pipe(path):
    os.mkfifo(path)


def device(path):
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [pipe, device])
@pytest.mark.parametrize("read", [read_small, lambda path: open_plain(path).__enter__()])
def test_pipes_and_devices(make, read, tmp_path):
    make(tmp_path / "a.json")
    with pytest.raises(FormatError, match=r"a\.json must be a file, got something else"):
        read(tmp_path / "a.json")


def test_descriptions_are_small(tmp_path):
    (tmp_path / "a.json").write_bytes(b"x" * 100)
    assert read_small(tmp_path / "a.json", 100) == b"x" * 100
    with pytest.raises(
        FormatError, match=r"a\.json must be a file of at most 99 bytes, it has more"
    ):
        read_small(tmp_path / "a.json", 99)
    os.truncate(tmp_path / "a.json", 2**40)  # of which the disk holds nothing
    with pytest.raises(FormatError, match="must be a file of at most 67108864 bytes"):
        read_small(tmp_path / "a.json")
    with pytest.raises(FileNotFoundError):
        read_small(tmp_path / "b.json")


def test_named_files_stay_in_their_folder(tmp_path):
    (tmp_path / "theirs.npy").write_bytes(b"")
    folder = tmp_path / "graph"
    folder.mkdir()
    (folder / "own.npy").write_bytes(b"")
    (folder / "link.npy").symlink_to("own.npy")
    (folder / "out.npy").symlink_to("../theirs.npy")
    (folder / "gone.npy").symlink_to("../nothing")
    for name in ("own.npy", "link.npy"):
        assert named_path(folder, name, "the manifest") == folder / name
    (tmp_path / "same").symlink_to(folder)  # the folder itself may be reached through a link
    assert named_path(tmp_path / "same", "own.npy", "the manifest").is_file()
    for name, message in (
        ("out.npy", "out.npy must be inside .*graph, it is a link to .*theirs.npy"),
        ("gone.npy", "gone.npy must be a file, and the manifest names it"),
        ("none.npy", "none.npy is missing, and the manifest names it"),
        ("../theirs.npy", "the manifest must name a file inside .*graph, got '../theirs.npy'"),
    ):
        with pytest.raises(FormatError, match=message):
            named_path(folder, name, "the manifest")
    with pytest.raises(FormatError, match="must be inside"):
        check_inside(folder, folder / "out.npy")
    with pytest.raises(FormatError, match="must be inside"):
        check_links(tmp_path / "graph")


def test_no_more_of_a_stream_than_is_allowed():
    packed = io.BytesIO(gzip.compress(b"word\n" * 100))
    assert bounded(gzip.GzipFile(fileobj=packed), "a.gz", 500).read() == b"word\n" * 100
    packed.seek(0)
    with pytest.raises(
        FormatError,
        match="a.gz must have at most 499 B of text, unpacked, to fit into memory, it has",
    ):
        list(bounded(gzip.GzipFile(fileobj=packed), "a.gz", 499))


def described(shape, descr="<f4", fortran="False"):
    return f"{{'descr': {descr!r}, 'fortran_order': {fortran}, 'shape': {shape}}}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (described((-1,)), "impossible"),
        (described((1,) * 33), "impossible"),
        (described((2,), fortran="1"), "impossible"),
        (described((2**61,)), "impossible"),
        (described((0, 2**61)), "impossible"),  # no numbers, but steps that are too large
        (described((2,), descr="|O"), "must hold plain numbers, got dtype '|O'"),
        (described((2,), descr=[("a", "<f4")]), "must hold plain numbers"),
        (described((2.5,)), "unreadable"),
        (described("f()"), "unreadable"),
        ("[" * 5000, "unreadable"),
        ("-" * 60_000 + "1", "unreadable"),
        ("\xff\xfe", "unreadable"),
        ("", "unreadable"),
    ],
)
def test_headers_that_are_none(text, message):
    content = text.encode("latin1")
    file = io.BytesIO(b"\x93NUMPY\x01\x00" + len(content).to_bytes(2, "little") + content)
    with pytest.raises(FormatError, match=re.escape(message)):
        read_npy_header(file)


@pytest.mark.parametrize("failures", [0, 2, 1000])
def test_headers_that_other_threads_parse_too(monkeypatch, failures):
    """CPython 3.11 raises SystemError where a collection lets another thread parse in between; here
    it is raised by hand, as that takes some thousands of headers."""
    whole = ast.literal_eval
    left = [failures]

    def literal(text):
        if left[0]:
            left[0] -= 1
            raise SystemError("AST constructor recursion depth mismatch")
        return whole(text)

    monkeypatch.setattr(ast, "literal_eval", literal)
    file = io.BytesIO()
    np.save(file, np.zeros((3, 4), np.float32))
    file.seek(0)
    if failures == 1000:  # not another thread's
        with pytest.raises(SystemError):
            read_npy_header(file)
    else:
        assert read_npy_header(file).shape == (3, 4)
