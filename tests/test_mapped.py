"""Mapped ``.npy`` files: same values, copy-on-write, nothing trusted that the file says."""

import gc
import io
import os
import struct
import subprocess
import sys

import numpy as np
import pytest
import torch
from fresh_processes import HANGING
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from pagraph import FormatError
from pagraph.graph.mapped import map_npy
from pagraph.system.files import read_npy_header

DTYPES = [
    "bool",
    "uint8",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "float32",
    "float64",
    "complex64",
]


def npy(header: bytes, *, version=(1, 0), body=b"") -> bytes:
    size = struct.pack("<H" if version[0] == 1 else "<I", len(header))
    return b"\x93NUMPY" + bytes(version) + size + header + body


class TestHeader:
    @settings(max_examples=examples(100), deadline=None)
    @given(
        st.lists(st.integers(0, 5), max_size=4).map(tuple),
        st.sampled_from([*DTYPES, ">f4", "<u2"]),
        st.booleans(),
        st.sampled_from([(1, 0), (2, 0), (3, 0)]),
    )
    def test_equals_numpy(self, shape, dtype, fortran, version):
        array = np.zeros(shape, dtype=dtype, order="F" if fortran else "C")
        file = io.BytesIO()
        np.lib.format.write_array(file, array, version=version)
        size = file.tell()
        file.seek(0)
        header = read_npy_header(file)
        assert (header.dtype, header.shape) == (array.dtype, array.shape)
        assert header.offset == file.tell() == size - array.nbytes
        assert header.nbytes == array.nbytes
        if array.ndim > 1 and array.size > 1 and not array.flags.c_contiguous:
            assert header.fortran_order

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"", "must be a .npy file"),
            (b"\x93NUMP", "must be a .npy file"),
            (b"PK\x03\x04abcdefgh", "must be a .npy file"),
            (npy(b"{}", version=(4, 0)), "must be a .npy file of version 1 to 3"),
            (b"\x93NUMPY\x01\x00\x50", "must have a header"),
            (
                b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**31) + b"x",
                "header of at most 65536 bytes, got 2147483648",
            ),
            (npy(b"{'descr': '<f4'")[:-4], "truncated: 11 of 15 bytes"),
            (npy(b"{'descr': '<f4'"), "unreadable"),
            (npy(b"[1, 2]"), "unreadable"),
            (npy(b"{'descr': '<f4', 'shape': (2,)}"), "unreadable"),
            (npy(b"{'descr': '<q9', 'fortran_order': False, 'shape': (2,)}"), "unreadable"),
            (npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': 'ab'}"), "unreadable"),
            (npy(b"__import__('os').abort()"), "unreadable"),
            (npy(b"(" * 5000), "unreadable"),
            (
                npy(b"{'descr': '|O', 'fortran_order': False, 'shape': (2,)}"),
                "plain numbers, got dtype '|O'",
            ),
            (npy(b"{'descr': '<U3', 'fortran_order': False, 'shape': (2,)}"), "plain numbers"),
            (
                npy(b"{'descr': [('a', '<i4')], 'fortran_order': False, 'shape': (2,)}"),
                "plain numbers",
            ),
            (npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (-2,)}"), "impossible"),
            (npy(b"{'descr': '<f4', 'fortran_order': 'no', 'shape': (2,)}"), "impossible"),
        ],
    )
    def test_refuses(self, content, message):
        with pytest.raises(FormatError) as caught:
            read_npy_header(io.BytesIO(content))
        assert message in str(caught.value)


class TestMap:
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("shape", [(7,), (3, 2), (2, 3, 4), (0,), (0, 5), (4, 0), ()])
    def test_values(self, tmp_path, dtype, shape):
        array = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
        np.save(tmp_path / "a.npy", array)
        tensor = map_npy(tmp_path / "a.npy")
        assert tensor.dtype == torch.from_numpy(np.asarray(array)).dtype
        assert tensor.shape == shape
        assert np.array_equal(tensor.numpy(), array)

    def test_writing_never_reaches_the_file(self, tmp_path):
        path = tmp_path / "a.npy"
        np.save(path, np.zeros((100, 100)))
        before = path.read_bytes()
        tensor = map_npy(path)
        tensor += 5
        tensor[3] = torch.arange(100)
        assert float(tensor.sum()) == 99 * 100 * 5 + 4950
        assert path.read_bytes() == before
        assert float(map_npy(path).sum()) == 0

    def test_a_file_that_cannot_be_written_opens(self, tmp_path):
        np.save(tmp_path / "a.npy", np.arange(3))
        (tmp_path / "a.npy").chmod(0o400)
        tensor = map_npy(tmp_path / "a.npy")
        tensor += 1
        assert tensor.tolist() == [1, 2, 3]

    @pytest.mark.memory
    def test_a_view_keeps_the_memory(self, tmp_path):
        np.save(tmp_path / "a.npy", np.arange(10_000))
        view = map_npy(tmp_path / "a.npy")[5000:]
        gc.collect()
        os.unlink(tmp_path / "a.npy")
        assert int(view[0]) == 5000

    @pytest.mark.memory
    def test_memory_and_descriptors_are_given_back(self, tmp_path):
        np.save(tmp_path / "a.npy", np.zeros(1000))
        gc.collect()  # what earlier tests left must not go in between
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(50):
            map_npy(tmp_path / "a.npy")
        gc.collect()
        assert len(os.listdir("/proc/self/fd")) == before

    @pytest.mark.parametrize("random_access", [False, True])
    def test_a_file_larger_than_memory_opens_and_reads(self, tmp_path, random_access):
        rows = 3 * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4096
        path = tmp_path / "big.npy"
        with open(path, "wb") as file:
            np.lib.format.write_array_header_1_0(
                file, {"descr": "<f4", "fortran_order": False, "shape": (rows, 1024)}
            )
            start = file.tell()
            file.seek(start + (rows - 1) * 4096)
            # Sparse: nothing is stored before.
            file.write(np.arange(1024, dtype=np.float32).tobytes())
        tensor = map_npy(path, random_access=random_access)
        assert tensor.shape == (rows, 1024)
        assert tensor[-1, -1] == 1023
        assert tensor[rows // 2, 0] == 0
        tensor[0, 0] = 3

    @pytest.mark.processes
    def test_no_warning_and_little_memory(self, tmp_path):
        np.save(tmp_path / "a.npy", np.zeros((16_384, 1024), dtype=np.float32))
        code = (
            "import resource, sys; from pagraph.graph.mapped import map_npy; import torch\n"
            "torch.zeros(1); before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
            "tensor = map_npy(sys.argv[1], random_access=True); tensor[::64].sum()\n"
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
        )
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", code, str(tmp_path / "a.npy")],
            capture_output=True,
            text=True,
            timeout=HANGING,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert int(done.stdout) < 32 * 1024  # of 64 MiB


class TestRefusals:
    @pytest.fixture
    def path(self, tmp_path):
        np.save(tmp_path / "a.npy", np.zeros((10, 10)))
        return tmp_path / "a.npy"

    @pytest.mark.parametrize(("change", "got"), [(-1, 799), (-800, 0), (1, 801), (4096, 4896)])
    def test_wrong_size(self, path, change, got):
        os.truncate(path, path.stat().st_size + change)
        with pytest.raises(FormatError, match=f"must have 800 bytes after its header, got {got}"):
            map_npy(path)

    def test_truncated_header(self, path):
        os.truncate(path, 40)
        with pytest.raises(FormatError, match="truncated"):
            map_npy(path)

    def test_fortran_order(self, path):
        np.save(path, np.zeros((3, 4), order="F"))
        with pytest.raises(FormatError, match="must be in C order"):
            map_npy(path)

    @pytest.mark.parametrize("dtype", [">f4", ">i8", "<f16"])
    def test_dtypes_that_torch_lacks(self, path, dtype):
        np.save(path, np.zeros(3, dtype=dtype))
        with pytest.raises(FormatError, match="must have a dtype that torch supports"):
            map_npy(path)

    def test_objects_are_not_unpickled(self, path):
        np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)
        with pytest.raises(FormatError, match="plain numbers"):
            map_npy(path)

    def test_absurd_shape(self, path):
        header = (
            b"{'descr': '<f8', 'fortran_order': False, 'shape': (9223372036854775807, "
            b"9223372036854775807)}"
        )
        path.write_bytes(npy(header, body=b"0" * 800))
        with pytest.raises(FormatError, match="an impossible .npy header"):
            map_npy(path)

    def test_missing_file_and_folder(self, tmp_path):
        with pytest.raises(FileNotFoundError):
            map_npy(tmp_path / "none.npy")
        with pytest.raises(IsADirectoryError):
            map_npy(tmp_path)
