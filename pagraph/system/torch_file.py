"""Safe reading of ``torch.save`` files: only tensors, plain values and known classes; checksums of
what they hold.

``torch.load(weights_only=True)`` is not enough. Before torch 2.6 it runs the code of a TorchScript
archive, and torch 2.5 reads past the end of an array that is shorter than the file says.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import re
import struct
import warnings
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import IO, Any

import numpy as np
import torch

from ..errors import FormatError
from .checks import StrPath
from .files import open_plain

_ZIP = b"PK\x03\x04"
# Torch's magic number, pickled. The tar format, from before 0.1.10, is refused.
_BEFORE_1_6 = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
_CODE = ("constants.pkl", "code/")

_STORAGES = {
    **dict.fromkeys(("BoolStorage", "ByteStorage", "CharStorage", "UntypedStorage"), 1),
    **dict.fromkeys(("ShortStorage", "HalfStorage", "BFloat16Storage"), 2),
    **dict.fromkeys(("IntStorage", "FloatStorage"), 4),
    **dict.fromkeys(("LongStorage", "DoubleStorage", "ComplexFloatStorage"), 8),
    "ComplexDoubleStorage": 16,
}
"""Bytes of an element, by the name of torch's class."""
_TENSORS = tuple(f"torch._utils._rebuild_tensor{version}" for version in ("", "_v2", "_v3"))
_PLAIN = {
    *("_codecs.encode", "builtins.bytearray", "builtins.complex", "builtins.set"),
    *("torch.Size", "torch.device", "torch.serialization._get_layout"),
    *("torch._utils._rebuild_parameter", "torch._utils._rebuild_sparse_tensor"),
}
_WITH_ATTRIBUTES = "torch._tensor._rebuild_from_type_v2"
_TYPES = ("torch.Tensor", "torch.nn.parameter.Parameter")

_CHECKS_LENGTHS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)
"""Whether this torch checks that an array in a file is as long as the file says. 2.5 does not."""


def content_digest(content: Any) -> str:
    """SHA-256 of tensors, plain values, and lists and dictionaries of these.

    It is the same after saving and reading. The order of a dictionary does not count, nor where
    tensors are.

    >>> content_digest({"a": (1, None), "b": torch.zeros(2)})[:8]
    '25818d15'
    """
    digest = hashlib.sha256()
    _add_content(digest, content)
    return digest.hexdigest()


def _add_content(digest: Any, content: Any) -> None:
    parts: list[Any] = []
    if isinstance(content, torch.Tensor):
        tensor = content.detach().cpu().contiguous()
        digest.update(f"tensor {tensor.dtype} {list(tensor.shape)};".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy())
    elif isinstance(content, Mapping):
        digest.update(f"dict {len(content)};".encode())
        parts = [part for item in sorted(content.items(), key=_by_key) for part in item]
    elif isinstance(content, list | tuple):
        digest.update(f"list {len(content)};".encode())
        parts = list(content)
    else:
        digest.update(f"{content!r};".encode(errors="surrogatepass"))
    for part in parts:
        _add_content(digest, part)


def _by_key(item: tuple[Any, Any]) -> str:
    return repr(item[0])


def load_saved(
    path: StrPath, *, classes: Sequence[type] = (), advice: str = "", arrays: bool = False
) -> Any:
    """Read what ``torch.save`` wrote to a file: tensors, plain values, and objects of some classes.

    The file is first unpickled with stand-ins, which run nothing. This checks that every name it
    refers to is known, that every tensor lies within its array, and that every array is as long as
    the file says. Only then torch reads it, from the same open file. Torch checks sparse tensors;
    quantised and nested tensors are refused.

    Args:
        path: The file.
        classes: The classes whose objects the file may hold.
        advice: The end of the error about other objects.
        arrays: Whether a file without tensors may hold NumPy arrays of numbers, which become
            tensors.

    Raises:
        FileNotFoundError: The file does not exist.
        FormatError: The file is something else, or holds other objects; the error ends with the
            advice.
    """
    end = f": {advice}" if advice else ""
    with open_plain(path) as file:
        _check_packing(path, file)
        try:
            names = [f"{kind.__module__}.{kind.__qualname__}" for kind in classes]
            trial = _Trial(names, arrays=arrays)
            content = trial.run(file)
            # The trial has made these from their bytes. Torch would run NumPy's code on the file.
            if trial.has_arrays:
                return _with_tensors(content)
            _check_torch(path, trial.used, advice)
            file.seek(0)
            return _load(file, list(classes))
        except _OtherObjectError as error:
            raise FormatError(
                f"{path} must hold only tensors and plain values, it holds {error}{end}"
            ) from None
        except FormatError:
            raise
        except Exception:
            # A damaged file raises almost anything. Torch's message is dropped: it advises
            # weights_only=False.
            raise FormatError(
                f"{path} must be a file that torch.save wrote, it cannot be read"
            ) from None


def _check_packing(path: StrPath, file: IO[bytes]) -> None:
    """Raise FormatError if a file would unpack to more than its size: torch never compresses."""
    if not zipfile.is_zipfile(file):
        file.seek(0)
        return
    size = os.fstat(file.fileno()).st_size
    try:
        with zipfile.ZipFile(file) as archive:
            said = sum(member.file_size for member in archive.infolist())
    except (zipfile.BadZipFile, ValueError, NotImplementedError, struct.error) as error:
        raise FormatError(f"{path} must be a file that torch.save wrote: {error}") from error
    if said > size:
        raise FormatError(
            f"{path} must be a file that torch.save wrote: it has {size} bytes, "
            f"but would unpack to {said}"
        )
    file.seek(0)


def _load(file: IO[bytes], classes: list[Any]) -> Any:
    allowed: AbstractContextManager[Any] = nullcontext()
    if hasattr(torch.serialization, "safe_globals"):
        allowed = torch.serialization.safe_globals(classes)
    # Newer torch does not check indices of sparse tensors by default.
    checks: Any = torch.sparse.check_sparse_tensor_invariants
    with allowed, checks(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about older formats
        return torch.load(file, map_location="cpu", weights_only=True)


def _check_torch(path: StrPath, used: set[str], advice: str) -> None:
    """Raise FormatError if the file has objects of classes that this torch cannot be told of."""
    if used and not hasattr(torch.serialization, "safe_globals"):
        raise FormatError(
            f"{path} holds a PyG object, {min(used)}, which needs torch 2.5 or later, "
            f"this is torch {torch.__version__}: {advice}, or upgrade torch"
        )


class _OtherObjectError(Exception):
    """A file refers to something other than a tensor, a plain value or a known class."""


class _StandIn:
    """Replaces any object that a file creates.

    ``__setstate__`` exists so that a pickle cannot set attributes of objects or of this class.
    """

    __slots__ = ()

    def __init__(self, *args: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        pass


class _Call(_StandIn):
    """Replaces a function that a file calls."""

    __slots__ = ("_act",)

    def __init__(self, act: Callable[..., Any]) -> None:
        self._act = act

    def __call__(self, *args: Any) -> Any:
        return self._act(*args)


class _Array(_StandIn):
    """Replaces a storage in a file, or a class of storages."""

    __slots__ = ("item_bytes", "num_bytes")

    def __init__(self, item_bytes: int, num_bytes: int = 0) -> None:
        self.item_bytes = item_bytes
        self.num_bytes = num_bytes


_NUMBER = re.compile(r"b1|[iuf][248]|[iu]1")


class _SavedDtype(_StandIn):
    """Replaces a NumPy dtype: its code and its byte order."""

    __slots__ = ("code", "order")

    def __init__(self, code: str, *options: Any) -> None:
        if not _NUMBER.fullmatch(code):
            raise _OtherObjectError("NumPy values that are not numbers")
        self.code = code
        self.order: Any = "="

    def __setstate__(self, state: Any) -> None:
        _, self.order, *rest = state
        # The rest are parts of structured dtypes, and flags that NumPy does not check. One of the
        # flags would make it treat numbers as pointers to objects.
        if rest != [None, None, None, -1, -1, 0]:
            raise ValueError("structured dtype, or dtype with flags")


class _SavedArray(_StandIn):
    """Replaces a NumPy array, and becomes a tensor when its bytes are known."""

    __slots__ = ("tensor",)

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, is_fortran, raw = state
        if not isinstance(dtype, _SavedDtype):
            raise ValueError("array without a dtype")
        found = np.dtype(dtype.code).newbyteorder(dtype.order)
        rows = np.frombuffer(raw, found).reshape(shape, order="F" if is_fortran else "C")
        self.tensor = torch.from_numpy(rows.astype(found.newbyteorder("="), order="C"))


# NumPy 1 and 2 name the module of this function differently.
_NUMPY: dict[str, Any] = {
    **dict.fromkeys(
        (f"numpy.{core}.multiarray._reconstruct" for core in ("core", "_core")), _SavedArray
    ),
    "numpy.ndarray": _StandIn,
    "numpy.dtype": _SavedDtype,
}
# Bytes in pickle's older protocols. Empty bytes are a call of `bytes` without arguments; with a
# number it would allocate that much memory.
_BYTES: dict[str, Callable[..., Any]] = {
    "_codecs.encode": lambda text, code: text.encode(code),
    "builtins.bytes": lambda: b"",
}


def _with_tensors(content: Any) -> Any:
    """Replace the stand-ins for arrays in values, lists and dicts by tensors."""
    if isinstance(content, _SavedArray):
        return content.tensor
    if isinstance(content, dict):
        return {key: _with_tensors(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_with_tensors(value) for value in content]
    return content


class _Trial:
    """Unpickles a file with stand-ins, and so checks what torch would do.

    Args:
        classes: Names of the classes that the file may use.
        arrays: Whether the file may hold NumPy arrays.
    """

    def __init__(self, classes: Sequence[str], *, arrays: bool = False) -> None:
        self.used: set[str] = set()
        self.has_arrays = False
        self._takes_arrays = arrays
        self._classes = frozenset(classes)
        self._lengths: dict[str, int] = {}
        self._length_of: Callable[[str, int], int] = lambda key, least: 0

    def run(self, file: IO[bytes]) -> Any:
        """Unpickle a file; any exception means that torch must not read it."""
        start = file.read(len(_BEFORE_1_6))
        file.seek(0)
        if start.startswith(_ZIP):
            return self._run_zip(file)
        if start == _BEFORE_1_6:
            return self._run_old(file)
        raise ValueError("unknown format")

    def _run_zip(self, file: IO[bytes]) -> Any:
        # Torch's own reader, because another one may see other members in a crafted archive.
        reader = torch._C.PyTorchFileReader(file)
        names = set(reader.get_all_records())
        if any(name.lower().startswith(_CODE) for name in names):
            raise _OtherObjectError("code (TorchScript)")

        def length_of(key: str, least: int) -> int:
            if f"data/{key}" not in names:
                raise ValueError("missing array")
            return least if _CHECKS_LENGTHS else len(reader.get_record(f"data/{key}"))

        self._length_of = length_of
        content = self._unpickle(io.BytesIO(reader.get_record("data.pkl")))
        if self.has_arrays and self._lengths:
            raise _OtherObjectError("NumPy arrays together with tensors")
        return content

    def _run_old(self, file: IO[bytes]) -> None:
        size = os.fstat(file.fileno()).st_size
        self._length_of = lambda key, least: size  # torch checks the length itself
        for _ in range(4):  # magic number, protocol version, system information, content
            self._unpickle(file)
        keys = self._unpickle(file)
        # Torch would leave the others uninitialised.
        if set(keys) != set(self._lengths):
            raise ValueError("arrays that no tensor uses")

    def _unpickle(self, file: IO[bytes]) -> Any:
        return _Unpickler(self, file).load()

    def found(self, name: str) -> Any:
        """The stand-in for the object with a qualified name."""
        module, _, last = name.rpartition(".")
        if name == "collections.OrderedDict":
            return OrderedDict
        if self._takes_arrays and name in _NUMPY:
            self.has_arrays = True
            return _NUMPY[name]
        if self._takes_arrays and name in _BYTES:
            return _Call(_BYTES[name])
        if name in _TENSORS:
            make = self._tensor_of_dtype if name.endswith("v3") else self._tensor
            return _Call(make)
        if name == _WITH_ATTRIBUTES:
            return _Call(lambda make, kind, args, state: make(*args))
        if module in ("torch", "torch.storage") and last in _STORAGES:
            return _Array(_STORAGES[last])
        if module == "torch" and isinstance(vars(torch).get(last), torch.dtype):
            return vars(torch)[last]
        if name in self._classes:
            self.used.add(name)
            if name == "numpy.dtype":
                return _SavedDtype
        elif name not in _PLAIN and name not in _TYPES:
            raise _OtherObjectError(name)
        return _StandIn

    def array(self, saved: Any) -> _Array:
        """The stand-in for a storage of the file."""
        what, kind, key, _, count, *view = saved
        is_storage = what in ("storage", b"storage")
        if not is_storage or not isinstance(kind, _Array) or not isinstance(key, str):
            raise ValueError("not a reference to an array")
        num_bytes = _natural(count) * kind.item_bytes
        if key not in self._lengths or self._lengths[key] < num_bytes:
            self._lengths[key] = self._length_of(key, num_bytes)
        if self._lengths[key] < num_bytes:
            raise ValueError("array shorter than declared")
        if view and view[0] is not None:  # the old format has views of a storage
            _, begin, length = view[0]
            if _natural(begin) + _natural(length) > count:
                raise ValueError("view outside its array")
            num_bytes = length * kind.item_bytes
        return _Array(kind.item_bytes, num_bytes)

    def _tensor(
        self, array: _Array, begin: int, shape: Sequence[int], strides: Sequence[int], *rest: Any
    ) -> _StandIn:
        return self._within(array, array.item_bytes, begin, shape, strides)

    def _tensor_of_dtype(
        self, array: _Array, begin: int, shape: Any, strides: Any, *rest: Any
    ) -> _StandIn:
        dtype: torch.dtype = rest[2]
        return self._within(array, dtype.itemsize, begin, shape, strides)

    def _within(
        self,
        array: _Array,
        item_bytes: int,
        begin: int,
        shape: Sequence[int],
        strides: Sequence[int],
    ) -> _StandIn:
        last = _natural(begin)
        for length, stride in zip(shape, strides, strict=True):
            last += (_natural(length) - 1) * _natural(stride)
        if 0 not in shape and (last + 1) * item_bytes > array.num_bytes:
            raise ValueError("tensor outside its array")
        return _StandIn()


def _natural(number: Any) -> int:
    if not isinstance(number, int) or number < 0:
        raise ValueError("size is not a non-negative integer")
    return number


class _Unpickler(pickle.Unpickler):
    """Creates stand-ins only: ``pickle`` gets every other name from ``find_class``."""

    def __init__(self, trial: _Trial, file: IO[bytes]) -> None:
        super().__init__(file, encoding="utf-8")
        self._trial = trial

    def find_class(self, module: str, name: str) -> Any:
        """See ``pickle.Unpickler``."""
        module = "builtins" if module == "__builtin__" else module  # its name in protocol 2
        return self._trial.found(f"{module}.{name}")

    def persistent_load(self, saved: Any) -> Any:
        """See ``pickle.Unpickler``."""
        return self._trial.array(saved)
