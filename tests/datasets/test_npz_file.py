"""Arrays of ``.npz`` files over mapped memory: those that NumPy reads, and one error for damage."""

import io
import struct
import zipfile

import numpy as np
import pytest

from pagraph import FormatError
from pagraph.datasets import arrays
from pagraph.datasets.arrays import file_arrays, load_npz
from pagraph.datasets.column_files import Scratch

ARRAYS = {
    "a": np.arange(10.0),
    "matrix": np.arange(6, dtype=np.int32).reshape(2, 3),
    "columns first": np.asfortranarray(np.arange(6, dtype=np.int8).reshape(2, 3)),
    "other order": np.arange(5, dtype=">i8"),
    "empty": np.zeros((0, 3), dtype=np.float16),
    "one": np.array(3),
    "bools": np.array([True, False]),
}
NO_NUMBERS = {"words": np.array(["a"]), "objects": np.array([{}], dtype=object)}


@pytest.fixture
def scratch(tmp_path):
    (tmp_path / "scratch").mkdir()
    with Scratch(tmp_path / "scratch") as scratch:
        yield scratch


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("block", [16, 2**24])
def test_arrays_are_those_that_numpy_reads(save, block, scratch, tmp_path, monkeypatch):
    monkeypatch.setattr(arrays, "_BLOCK_BYTES", block)
    save(tmp_path / "a.npz", **ARRAYS, **NO_NUMBERS)
    found = file_arrays(tmp_path / "a.npz", scratch)
    assert set(found) == set(ARRAYS)
    for name, array in found.items():
        assert array.dtype == ARRAYS[name].dtype.newbyteorder("=")
        assert np.array_equal(array, ARRAYS[name])
    # Stored members stay where they are; others are files that can be moved into a graph folder.
    left = [path.suffix for path in scratch.folder.iterdir()]
    assert set(left) <= {".column"}
    assert len(scratch._columns) == (1 if save is np.savez else len(ARRAYS))


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_damage_is_found_in_any_byte(save, scratch, tmp_path):
    buffer = io.BytesIO()
    save(buffer, a=np.arange(300), b=np.ones(5, dtype=np.float32))
    whole = buffer.getvalue()
    path = tmp_path / "a.npz"
    want = {"a": np.arange(300), "b": np.ones(5, dtype=np.float32)}
    for place in range(0, len(whole), 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        try:
            found = file_arrays(path, scratch)
        except FormatError as error:
            assert "\n" not in str(error)
            continue
        # A byte that says nothing of the arrays, such as one of the time.
        for name in set(found) & set(want):
            assert np.array_equal(found[name], want[name]), place
    for size in range(0, len(whole), 11):
        path.write_bytes(whole[:size])
        with pytest.raises(FormatError, match=r"a\.npz must be an \.npz file of arrays"):
            file_arrays(path, scratch)


def test_a_name_in_front_of_a_member_of_another_length(scratch, tmp_path):
    # What is in front of a member, and not the archive's directory, says where it begins.
    np.savez(tmp_path / "a.npz", a=np.arange(100))
    with zipfile.ZipFile(tmp_path / "b.npz", "w") as archive:
        member = zipfile.ZipInfo("a.npy")
        member.extra = struct.pack("<HH4x", 0xCAFE, 4)
        buffer = io.BytesIO()
        np.save(buffer, np.arange(100))
        archive.writestr(member, buffer.getvalue())
    found = file_arrays(tmp_path / "b.npz", scratch)["a"]
    assert np.array_equal(found, load_npz(tmp_path / "a.npz")["a"])


def test_what_unpacks_to_more_than_the_disk(scratch, tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "a.npz", a=np.zeros(2**20))
    usage = type("usage", (), {"free": 2**20})
    monkeypatch.setattr(arrays.shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(
        FormatError, match=r"must fit on the disk, got 8 MiB of packed arrays for 1"
    ):
        file_arrays(tmp_path / "a.npz", scratch)
    np.savez(tmp_path / "a.npz", a=np.zeros(2**20))
    assert len(file_arrays(tmp_path / "a.npz", scratch)["a"]) == 2**20


def test_dtypes_that_torch_lacks(scratch, tmp_path):
    np.savez(tmp_path / "a.npz", a=np.zeros(3, dtype=np.longdouble))
    with pytest.raises(FormatError, match="must hold values that torch has a dtype for"):
        file_arrays(tmp_path / "a.npz", scratch)
