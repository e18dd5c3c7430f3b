"""Sparse matrices from files: only sound ones reach scipy's C++ code."""

import os
import zipfile

import numpy as np
import pytest
import scipy.sparse

from pagraph import FormatError
from pagraph.datasets.scipy_npz import load_sparse


@pytest.fixture
def path(tmp_path):
    return tmp_path / "m.npz"


def sound(form="csr"):
    return scipy.sparse.random(20, 30, 0.2, form, rng=np.random.default_rng(1))


@pytest.mark.parametrize("form", ["csr", "csc", "coo"])
@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("kind", ["matrix", "array"])
def test_round_trip(path, form, compressed, kind):
    want = sound(form)
    if kind == "array":
        want = getattr(scipy.sparse, f"{form}_array")(want)
    scipy.sparse.save_npz(path, want, compressed=compressed)
    got = load_sparse(path)
    assert got.format == form
    assert (got.toarray() == want.toarray()).all()


@pytest.mark.parametrize("form", ["bsr", "dia"])
def test_other_forms_are_refused(path, form):
    scipy.sparse.save_npz(path, sound().asformat(form))
    with pytest.raises(FormatError, match=f"the format must be csr, csc or coo in 2 dimensions, got '{form}'"):
        load_sparse(path)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("indptr", lambda a: a[::-1].copy(), "indptr|index pointer"),
        ("indptr", lambda a: np.where(np.arange(len(a)) == 3, 10**6, a), "index pointer|indptr"),
        ("indptr", lambda a: a[:-1], "index pointer size"),
        ("indptr", lambda a: np.where(np.arange(len(a)) == 0, 5, a), "index pointer should start with 0"),
        ("indices", lambda a: a + 30, "column|indices|index"),
        ("indices", lambda a: a - 5, "column|indices|index|negative"),
        ("indices", lambda a: a[:-1], "indices"),
        ("indices", lambda a: a.astype(float), "indices must hold integers, got float64"),
        ("data", lambda a: a[:-1], "data"),
        ("shape", lambda a: np.array([20]), "2 dimensions"),
        ("shape", lambda a: np.array([-20, 30]), "shape|dimension|index"),
        ("format", lambda a: np.array(b"evil"), "got 'evil'"),
        ("data", lambda a: np.array([None] * len(a), dtype=object), "pickle"),
    ],
)
def test_corrupt_csr_is_refused(path, name, change, message):
    matrix = sound()
    arrays = {
        "indptr": matrix.indptr,
        "indices": matrix.indices,
        "data": matrix.data,
        "shape": np.array(matrix.shape),
        "format": np.array(b"csr"),
    }
    np.savez(path, allow_pickle=True, **{**arrays, name: change(arrays[name])})
    with pytest.raises(FormatError, match=message) as caught:
        load_sparse(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(("row", "message"), [([0, 20], "row index"), ([0, -1], "negative row"), ([0], "row")])
def test_corrupt_coo_is_refused(path, row, message):
    arrays = {"row": np.array(row), "col": np.array([1, 2]), "data": np.ones(2)}
    np.savez(path, format=np.array(b"coo"), shape=np.array([20, 30]), **arrays)
    with pytest.raises(FormatError):
        load_sparse(path)


def test_a_missing_member_is_refused(path):
    np.savez(path, format=np.array(b"csr"), shape=np.array([2, 2]), data=np.ones(1))
    with pytest.raises(FormatError, match="indices"):
        load_sparse(path)
    np.savez(path, x=np.ones(1))
    with pytest.raises(FormatError, match=r"it holds \['x'\], and neither 'format' nor 'shape'"):
        load_sparse(path)


def test_a_zip_file_of_other_things_is_refused(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("format", "csr")
        archive.writestr("shape.npy", "text")
    with pytest.raises(FormatError, match="must be a sparse matrix saved by scipy"):
        load_sparse(path)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x80\x04\x95pickle", os.urandom(500)])
def test_what_is_no_npz_is_refused(path, content):
    path.write_bytes(content)
    with pytest.raises(FormatError, match=r"must be a sparse matrix saved by scipy: it is no \.npz file"):
        load_sparse(path)


def test_a_flipped_byte_is_found(path):
    scipy.sparse.save_npz(path, sound())
    content = bytearray(path.read_bytes())
    content[200] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(FormatError):
        load_sparse(path)


def test_missing_file(path):
    with pytest.raises(FileNotFoundError):
        load_sparse(path)
