"""Files of ``torch.save``: nothing in them is run, no tensor leaves its array; the rest is read as
torch reads it."""

import ast
import collections
import io
import os
import pickle
import tarfile
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

import pagraph
from pagraph import FormatError
from pagraph.system.torch_file import load_saved

UNREADABLE = r"a\.pt must be a file that torch\.save wrote, it cannot be read$"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.pt"


def saved(path, content, **options):
    torch.save(content, path, **options)
    return path


def changed(path, content, change):
    """A file whose members went through a function of name and bytes."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    with zipfile.ZipFile(buffer) as before, zipfile.ZipFile(path, "w") as after:
        for name in before.namelist():
            after.writestr(name, change(name.partition("/")[2], before.read(name)))
    return path


def with_pickle(path, content, before, after):
    """A file with other bytes in what it pickles."""

    def change(name, data):
        assert name != "data.pkl" or data.count(before) == 1
        return data.replace(before, after) if name == "data.pkl" else data

    return changed(path, content, change)


PLAIN = {
    "tensors": [
        torch.arange(6.0).reshape(2, 3).T,
        torch.zeros(0, 3),
        torch.tensor(1),
        torch.zeros(1).expand(4),
    ],
    "dtypes": [
        torch.ones(2).to(dtype)
        for dtype in (torch.bool, torch.bfloat16, torch.complex64, torch.uint8)
    ],
    "values": (
        1,
        -(2**70),
        1.5,
        None,
        True,
        "é",
        b"\x00\xff",
        {1, 2},
        [{"a": ()}],
        complex(1, 2),
        bytearray(b"ab"),
    ),
    "types": (torch.int16, torch.Size([2]), torch.strided),
    "ordered": collections.OrderedDict(a=1),
    "parameter": torch.nn.Parameter(torch.ones(2)),
}
SHARED = torch.arange(10)


@pytest.mark.parametrize("form", [{}, {"_use_new_zipfile_serialization": False}])
@pytest.mark.parametrize("name", PLAIN)
def test_what_torch_reads(path, name, form):
    try:
        want = torch.load(saved(path, PLAIN[name], **form), weights_only=True)
    except pickle.UnpicklingError:
        pytest.skip("not read by this torch")
    torch.testing.assert_close(load_saved(path), want, rtol=0, atol=0) if name in (
        "tensors",
        "dtypes",
    ) else None
    assert str(load_saved(path)) == str(want)


@pytest.mark.parametrize("form", [{}, {"_use_new_zipfile_serialization": False}])
def test_parts_of_one_array(path, form):
    one, two = load_saved(saved(path, [SHARED[2:5], SHARED[::3]], **form))
    assert one.tolist() == [2, 3, 4] and two.tolist() == [0, 3, 6, 9]
    one[1] = 7
    assert two[1] == 7


def test_a_tensor_with_attributes(path):
    tensor = torch.ones(2)
    tensor.kind = "weights"
    assert load_saved(saved(path, tensor)).tolist() == [1, 1]


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("wrong", [3, 2**40, -1])
def test_sparse_tensors(path, wrong):
    """Newer torch takes their indices as they are, unless it is told to look."""
    for last in (2, wrong):
        ends = torch.tensor([[0, 1, 2], [0, 1, last]])
        coo = torch.sparse_coo_tensor(ends, torch.ones(3), (3, 3), check_invariants=False)
        csr = torch.sparse_csr_tensor(
            [0, 1, 2, 3], ends[1], torch.ones(3), (3, 3), check_invariants=False
        )
        for matrix in (coo, csr):
            saved(path, matrix)
            if last == 2:
                assert torch.equal(load_saved(path).to_dense(), torch.eye(3))
                continue
            with pytest.raises(FormatError, match=UNREADABLE):
                load_saved(path)


class Harm(torch.nn.Module):
    """Writes a file when it is loaded."""

    def __init__(self):
        super().__init__()
        self.number = 1

    @torch.jit.export
    def __getstate__(self):
        return self.number, self.training

    @torch.jit.export
    def __setstate__(self, state: tuple[int, bool]):
        self.number = state[0]
        self.training = state[1]
        torch.save(torch.ones(3), "evil")

    def forward(self, x: torch.Tensor):
        return x


@pytest.fixture
def script(tmp_path, monkeypatch):
    """A TorchScript archive, in a current folder that it would write to."""
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is not what it was
        torch.jit.save(torch.jit.script(Harm()), tmp_path / "script.pt")
        torch.jit.load(tmp_path / "script.pt")
    (tmp_path / "evil").unlink()  # it does
    return tmp_path / "script.pt"


CODE = r"\.pt must hold only tensors and plain values, it holds code \(TorchScript\)"


def test_code_is_not_run(script, path, tmp_path):
    with pytest.raises(FormatError, match=CODE + ": keep off$"):
        load_saved(script, advice="keep off")
    with zipfile.ZipFile(script) as archive, zipfile.ZipFile(path, "w") as renamed:
        for name in archive.namelist():
            renamed.writestr(name.replace("constants.pkl", "Constants.PKL"), archive.read(name))
    with pytest.raises(FormatError, match=CODE):
        load_saved(path)
    path.write_bytes(saved(path, [1]).read_bytes() + script.read_bytes())  # the last archive counts
    with pytest.raises(FormatError):
        load_saved(path)
    assert not (tmp_path / "evil").exists()


def test_code_in_every_reader(script, tmp_path):
    from pagraph.datasets import read_graph
    from pagraph.datasets.arrays import read_array

    for read in (read_graph, read_array):
        with pytest.raises(FormatError, match=CODE):
            read(script)
    assert not (tmp_path / "evil").exists()


def test_the_old_tar_form_is_not_opened(path, tmp_path):
    """Torch would unpack it: links and devices, too."""
    with tarfile.open(path, "w") as archive:
        for name in ("storages", "tensors", "pickle"):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, "/dev/zero"
            archive.addfile(link)
    with pytest.raises(FormatError, match=UNREADABLE):
        load_saved(path)


class Evil:
    """Runs a command when it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("evil",)


@pytest.mark.parametrize(
    "form", [{}, {"_use_new_zipfile_serialization": False}, {"pickle_protocol": 4}]
)
def test_other_objects(path, monkeypatch, tmp_path, form):
    monkeypatch.chdir(tmp_path)
    saved(path, [1, Evil()], **form)
    with pytest.raises(
        FormatError, match=r"a\.pt must hold only tensors and plain values, it holds posix\.mkdir$"
    ):
        load_saved(path)
    assert not (tmp_path / "evil").exists()


def quantised():
    return torch.quantize_per_tensor(torch.ones(2), 0.1, 10, torch.quint8)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (quantised, "torch.(_utils._rebuild_qtensor|QUInt8Storage|per_tensor_affine)"),
        (
            lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
            "torch._utils._rebuild_nested_tensor",
        ),
        (lambda: torch.empty(2, device="meta"), "torch._utils._rebuild_meta_tensor_no_storage"),
        (lambda: np.zeros(2), "numpy"),
        (lambda: collections.Counter("a"), "collections.Counter"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_tensors_of_other_kinds(path, content, what):
    saved(path, content())
    with pytest.raises(
        FormatError, match=f"a.pt must hold only tensors and plain values, it holds .*{what}"
    ):
        load_saved(path)


def test_arrays_that_are_shorter_than_is_said(path):
    """Torch 2.5 reads on behind them."""
    changed(path, torch.arange(64), lambda name, data: data[:16] if name == "data/0" else data)
    with pytest.raises(FormatError, match=UNREADABLE):
        load_saved(path)


SIZES = b"K\x00K\x02K\x03\x86q\x06K\x03K\x01\x86q\x07"  # begin, shape, strides of the tensor below


@pytest.mark.parametrize(
    ("begin", "shape", "strides"),
    [
        (1, (2, 3), (3, 1)),
        (-1, (2, 3), (3, 1)),
        (0, (3, 3), (3, 1)),
        (0, (2**62, 2), (2**62, 1)),
        (0, (2, 3), (-3, 1)),
        (5, (2, 3), (-3, -1)),
        (0, (-2, -3), (3, 1)),
        (0, (2, 3), (2**62, 2**62)),
        (2**63, (2, 3), (3, 1)),
        (0, (2, 3, 4), (3, 1)),
        (0.0, (2, 3), (3, 1)),
    ],
)
def test_tensors_that_leave_their_arrays(path, begin, shape, strides):
    content, places = torch.arange(6.0).reshape(2, 3), []

    def change(name, data):
        if name != "data.pkl":
            return data
        where = data.index(b"K\x00K\x02K\x03\x86")
        end = data.index(b"\x86", data.index(b"\x86", where) + 1) + 1
        places.append(where)
        numbers = b"".join(pickle.dumps(value, 2)[2:-1] for value in (begin, shape, strides))
        return data[:where] + numbers + data[end:]

    changed(path, content, change)
    assert places
    with pytest.raises(FormatError, match=UNREADABLE):
        load_saved(path)


def test_values_set_in_a_tensor(path):
    """Torch before 2.10 lets a pickle write into what it has made."""
    content = [torch.zeros(2)]
    with_pickle(path, content, b"a.", b"K\x00K\x01sa.")
    with pytest.raises(FormatError, match=UNREADABLE):
        load_saved(path)


@pytest.mark.parametrize(
    "opcodes",
    [
        b"\x80\x02ccollections\nOrderedDict\n}X\x01\x00\x00\x00aK\x01sb.",  # attributes of a class
        b"\x80\x02ctorch\nSize\n(N}X\x0c\x00\x00\x00__setstate__ctorch\nSize\nstb.",
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n}X\x01\x00\x00\x00aK\x01sb.",
        b"\x80\x02cbuiltins\neval\nX\x01\x00\x00\x001\x85R.",
        b"\x80\x02ctorch\nload\nX\x01\x00\x00\x001\x85R.",
        b"\x80\x02ctorch\nhub\n.",
        b"\x80\x04\x8c\x0bcollections\x8c\x14OrderedDict.fromkeys\x93.",
        b"\x80\x02X\x01\x00\x00\x000Q.",
        b"(" * 10000 + b"t" * 10000 + b".",
        b"\x82\x01.",  # of the registry of extensions
    ],
)
def test_hostile_pickles(path, opcodes):
    changed(path, [1], lambda name, data: opcodes if name == "data.pkl" else data)
    try:
        load_saved(path)
    except FormatError as error:
        assert "\n" not in str(error)
    changed(path, [1], lambda name, data: data)
    assert load_saved(path) == [1]


def old(path, content, before, after, count=1):
    data = saved(path, content, _use_new_zipfile_serialization=False).read_bytes()
    assert data.count(before) == count
    path.write_bytes(data.replace(before, after))


def test_arrays_of_the_old_form(path):
    content = [torch.arange(6)]
    number = torch.arange(6).numpy().tobytes()
    old(path, content, (6).to_bytes(8, "little") + number, (5).to_bytes(8, "little") + number)
    with pytest.raises(FormatError, match=UNREADABLE):
        load_saved(path)
    old(path, content, (6).to_bytes(8, "little") + number, (6).to_bytes(8, "little") + number[:40])
    with pytest.raises(FormatError, match=UNREADABLE):
        load_saved(path)
    whole = saved(path, content, _use_new_zipfile_serialization=False).read_bytes()
    keys = whole.rindex(b"\x80\x02]")
    path.write_bytes(whole[:keys] + b"\x80\x02].")  # no array follows
    with pytest.raises(FormatError, match=UNREADABLE):
        load_saved(path)


def test_it_is_closed_and_a_missing_one_is_said_to_be(path):
    with pytest.raises(FileNotFoundError):
        load_saved(path)
    path.write_bytes(b"PK\x03\x04")
    with pytest.raises(FormatError, match=UNREADABLE):
        load_saved(path)


@pytest.mark.many
def test_nothing_else_calls_torch_load():
    for folder, _, names in os.walk(Path(pagraph.__file__).parent, followlinks=True):
        for name in names:
            # Kernels are read from a folder of the user's own, and their checksums verified.
            if not name.endswith(".py") or name in ("torch_file.py", "_kernel_files.py"):
                continue
            tree = ast.parse(Path(folder, name).read_text(encoding="utf-8"))
            calls = {
                ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)
            }
            assert not calls & {
                "torch.load",
                "torch.jit.load",
                "pickle.load",
                "pickle.loads",
                "eval",
            }, name


def test_what_torch_saved_is_not_packed(tmp_path):
    torch.save({"a": torch.zeros(1000)}, tmp_path / "plain.pt")
    assert load_saved(tmp_path / "plain.pt")["a"].shape == (1000,)
    with (
        zipfile.ZipFile(tmp_path / "plain.pt") as plain,
        zipfile.ZipFile(tmp_path / "a.pt", "w", 8) as packed,
    ):
        for name in plain.namelist():
            packed.writestr(name, plain.read(name))
    with pytest.raises(
        FormatError,
        match=r"a.pt must be a file that torch.save wrote: it has \d+ bytes, but would unpack to \d+$",
    ):
        load_saved(tmp_path / "a.pt")


FLAGS = 2 * b"J\xff\xff\xff\xff"  # the sizes of a dtype that has its own, before its flags


class TestArraysOfNumPy:
    CONTENT = {
        "a": {"b": np.arange(6, dtype=np.int32).reshape(2, 3), "c": [np.array(0.5), "text", 7]},
        "d": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "e": np.arange(3, dtype=">i8"),
        "f": np.zeros((0, 2), dtype=bool),
    }

    def test_they_become_tensors(self, path):
        got = load_saved(saved(path, self.CONTENT), arrays=True)
        assert got["a"]["b"].equal(torch.arange(6, dtype=torch.int32).reshape(2, 3))
        assert got["a"]["c"] == [torch.tensor(0.5, dtype=torch.float64), "text", 7]
        assert got["d"].equal(torch.arange(6.0, dtype=torch.float64).reshape(2, 3))
        assert got["e"].equal(torch.arange(3)) and got["f"].shape == (0, 2)
        assert got["f"].dtype == torch.bool

    def test_only_where_they_are_asked_for(self, path):
        with pytest.raises(
            FormatError, match="must hold only tensors and plain values, it holds n"
        ):
            load_saved(saved(path, self.CONTENT))

    def test_tensors_are_read_as_before(self, path):
        assert load_saved(saved(path, {"a": torch.ones(2)}), arrays=True)["a"].tolist() == [1, 1]

    @pytest.mark.parametrize(
        "content",
        [
            {"a": np.array([{}], dtype=object)},
            {"a": np.array(["x"])},
            {"a": np.array([(1, 2)], dtype="i4,i4")},
            {"a": np.float64(1)},
            {"a": np.ones(1), "b": torch.ones(1)},
            {"a": np.ones(1), "b": Evil()},
        ],
    )
    def test_others_are_refused(self, content, path):
        with pytest.raises(FormatError, match=r"a\.pt must (hold|be)"):
            load_saved(saved(path, content), arrays=True)

    @pytest.mark.parametrize(
        ("before", "after"),
        [
            (b"i4", b"O8"),
            (b"i4", b"V4"),
            (b"K\x02K\x03\x86", b"K\x02K\x09\x86"),
            (FLAGS + b"K\x00", FLAGS + b"K\x3f"),
        ],
    )
    def test_what_does_not_fit(self, before, after, path):
        content = {"b": np.arange(6, dtype=np.int32).reshape(2, 3)}
        with_pickle(path, content, before, after)
        with pytest.raises(FormatError, match=r"a\.pt must (hold|be)"):
            load_saved(path, arrays=True)


class TestNumbersOfNumPy:
    CLASSES = (np.int64(0).__reduce__()[0], np.dtype, type(np.dtype(np.int64)))

    def test_one_is_read_where_its_class_is_given(self, path):
        if not hasattr(torch.serialization, "safe_globals"):
            pytest.skip("needs torch 2.5")
        saved(path, {"n": np.int64(7)})
        assert load_saved(path, classes=self.CLASSES) == {"n": 7}
        with pytest.raises(FormatError, match="it holds numpy"):
            load_saved(path)

    @pytest.mark.parametrize(
        ("before", "after"), [(b"i8", b"O8"), (b"i8", b"V8"), (FLAGS + b"K\x00", FLAGS + b"K\x3f")]
    )
    def test_dtypes_that_numpy_would_believe(self, before, after, path):
        with_pickle(path, {"n": np.int64(7)}, before, after)
        with pytest.raises(FormatError, match=r"a\.pt must (hold|be)"):
            load_saved(path, classes=self.CLASSES)
