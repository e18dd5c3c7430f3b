"""The one place that owns numba: compiler flags, the on-disk cache of compiled kernels, software
prefetch."""

import atexit
import contextlib
import hashlib
import os
import shutil
import stat
import sys
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.caching import NullCache
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler, Flags
from numba.extending import intrinsic
from numba.np import arrayobj

from ._compiling import compiling
from ._postponed import collection_later, signals_later


def _kernel_digest() -> str:
    """Digest of all kernel sources: numba does not see when a kernel in another file changes."""
    here = Path(__file__).parent
    digest = hashlib.sha256()
    kernels = [
        path
        for pattern in ("_*.py", "*/_*.py", "*/*/_*.py", "*/kernels/*.py")
        for path in here.glob(pattern)
    ]
    for path in sorted(kernels):
        if path.name != "__init__.py":
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


_temporary: list[str] = []

NOT_KEPT = "there is no folder that only you may write to; set XDG_CACHE_HOME to one"
"""Why :func:`cache_state` says that kernels do not outlive the process."""


def cache_state() -> tuple[str, bool, int]:
    """The folder of compiled kernels, whether it outlives the process, and how many of its kernels
    are compiled.

    The folder is empty where they are in none.
    """
    if not _CACHE_DIR:
        return "", False, 0
    return (
        _CACHE_DIR,
        _CACHE_DIR not in _temporary,
        sum(1 for _ in Path(_CACHE_DIR).glob("**/*.nbi")),
    )


def _cache_dir() -> str:
    """Where compiled kernels are kept, "" for nowhere.

    Never inside the package: leftovers would survive an uninstall.
    """
    version = f"py{sys.version_info[0]}{sys.version_info[1]}-numba{numba.__version__}"
    name = os.path.join("pagraph", f"{version}-{_kernel_digest()}")
    roots = [os.environ.get("NUMBA_CACHE_DIR", ""), os.environ.get("XDG_CACHE_HOME", "")]
    roots.append(os.path.join(os.path.expanduser("~"), ".cache"))
    dangers: list[str] = []
    found = next(filter(None, (_private_folder(root, name, dangers) for root in roots)), None)
    folder = _temporary_dir() if found is None else found
    if dangers:
        where = f"they are in {folder} instead" if found else "each process compiles them anew"
        warnings.warn(
            "compiled kernels must be in a folder that nobody else may write to or rename, "
            f"{dangers[0]}: {where}",
            RuntimeWarning,
            stacklevel=2,
        )
    return folder


def _temporary_dir() -> str:
    temporary = os.path.realpath(tempfile.mkdtemp(prefix="pagraph-"))
    if _danger(temporary):
        shutil.rmtree(temporary, ignore_errors=True)
        return ""
    _temporary.append(temporary)
    atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    return temporary


def _private_folder(root: str, name: str, dangers: list[str]) -> str | None:
    """The folder of that name in another, made if need be; None if it cannot be, or adds why it
    must not be used."""
    if not os.path.isabs(root):
        return None
    folder = os.path.realpath(os.path.join(root, name))
    try:
        danger = _danger(folder)
    except OSError:
        # A file system that is read-only, or a path through a file: the next root may do.
        return None
    if danger:
        dangers.append(danger)
        return None
    return folder if os.access(folder, os.W_OK) else None


def _danger(folder: str) -> str | None:
    """Who else may change what is in a folder, or put another one in its place: its content is
    unpickled.

    What is missing of the path, without links, is made. None: nobody but this user and root.
    """
    is_open = True
    for part in [*reversed(Path(folder).parents), Path(folder)]:
        with contextlib.suppress(FileExistsError):
            if not part.is_dir():
                # Of each part: makedirs leaves all but the last to the umask.
                part.mkdir(mode=0o700)
        found = part.stat()
        if found.st_uid not in (0, os.getuid()):
            return f"{part} belongs to the user {found.st_uid}"
        # Where the sticky bit is set, others can neither rename nor replace what is not theirs.
        if is_open and found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX:
            return f"others may write to {part}"
        # What is below one that others cannot enter is safe.
        is_open = is_open and bool(found.st_mode & 0o011)
    # numba makes folders and files in it as the umask says. That is of the process, not of the
    # thread, and stays as it is: where nobody else can enter, it does not matter.
    if found.st_mode & 0o077:
        return f"others may enter {folder}"
    return None


_CACHE_DIR = _cache_dir()


def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a free function on arrays: releases the GIL, cached on disk, no fastmath.

    It can neither allocate nor return an array: without numba's runtime no array is counted, which
    takes a third of the code, and of the time to compile it, away.
    """
    return _compiled(function, allocates=False)


def allocating_kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """A :func:`kernel` that may allocate arrays."""
    return _compiled(function, allocates=True)


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """A few lines that kernels share, copied into each of them; unlike a kernel they may return
    parts of arrays."""
    jitted: Callable[..., Any] = numba.njit(inline="always")(function)
    return jitted


def _compiled(function: Callable[..., Any], *, allocates: bool) -> Callable[..., Any]:
    before = numba.config.CACHE_DIR
    # Read while decorating only; other libraries keep their own.
    numba.config.CACHE_DIR = _CACHE_DIR
    try:
        compiled: Any = numba.njit(
            nogil=True, cache=bool(_CACHE_DIR), _nrt=allocates, pipeline_class=_TimedCompiler
        )(function)
    finally:
        numba.config.CACHE_DIR = before
    if _CACHE_DIR and not Path(compiled._cache.cache_path).is_relative_to(_CACHE_DIR):
        compiled._cache = NullCache()  # numba took one of its own, as of a full disk
    load = compiled.compile

    def load_whole(signature: Any) -> Any:
        # Compiling makes so many objects that their collection took 15 % of the time, more in a
        # process with many objects of its own.
        with signals_later(), collection_later():
            try:
                return load(signature)
            except OSError:  # a full disk, or a folder that is gone: costs the cache, not the run
                compiled._cache = NullCache()
                return load(signature)

    compiled.compile = load_whole
    # What numba asks when another kernel calls this one. What Python calls it compiles apart.
    part = numba.njit(
        nogil=True,
        no_cpython_wrapper=True,
        no_cfunc_wrapper=True,
        _nrt=allocates,
        pipeline_class=_PartCompiler,
    )(function)
    compiled.get_call_template = part.get_call_template
    compiled.get_overload = part.get_overload
    kernel_function: Callable[..., Any] = compiled
    return kernel_function


_FLAGS = {name: option.default for name, option in Flags.options.items()}


class _QuickFlags(Flags):
    """numba's flags, with their values at once.

    They are part of the key by which numba looks up candidates of each operator and call, and are
    hashed and compared 30,000 times for a loader's kernels: 26 and 39 us by numba's properties, 1
    and 0.6 by dictionaries.
    """

    __slots__ = ()

    def values(self) -> dict[str, Any]:
        values: dict[str, Any] = self._values
        return _FLAGS | values


class _TimedCompiler(Compiler):
    """numba's compiler; when it works is known."""

    def compile_extra(self, func: Any) -> Any:
        self.state.flags = _QuickFlags(self.state.flags)
        with compiling():
            return super().compile_extra(func)


class _PartCompiler(_TimedCompiler):
    """Compiles a kernel that another one calls, to code that is linked into the caller's.

    numba makes a library of each function: optimised, turned into machine code, linked into that of
    each caller, and there optimised and turned into machine code again. Of a batch's 60 functions
    only six are called from Python; to finish these alone takes a third of the time.
    """

    def compile_extra(self, func: Any) -> Any:
        self.state.library = _PartLibrary(self.state.targetctx.codegen(), func.__qualname__)
        return super().compile_extra(func)


class _PartLibrary(JITCodeLibrary):
    """Code of a :class:`_PartCompiler`: not optimised alone, and without machine code."""

    @property
    def codegen(self) -> Any:
        return _NoSymbols

    def finalize(self) -> None:
        self._raise_if_finalized()
        for library in dict.fromkeys(self._linking_libraries):
            # What to do when the code is loaded again; numba 0.59 has no such thing.
            getattr(self, "_reload_init", set()).update(getattr(library, "_reload_init", ()))
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        self._ensure_finalized()
        return 0  # as numba has it for a function that is not there


class _NoSymbols:
    """In place of the code generator, which looks up the functions of a library that is done."""

    @staticmethod
    def set_env(name: str, environment: Any) -> None:
        """Nothing: it would be written next to the machine code, and kernels use no Python."""


def _prefetched(context: Any, builder: Any, signature: Any, args: Any, locality: int) -> Any:
    struct = context.make_array(signature.args[0])(context, builder, args[0])
    pointer = builder.bitcast(builder.gep(struct.data, [args[1]]), ir.IntType(8).as_pointer())
    i32 = ir.IntType(32)
    fn_type = ir.FunctionType(ir.VoidType(), [pointer.type, i32, i32, i32])
    fn = cgutils.get_or_insert_function(builder.module, fn_type, "llvm.prefetch.p0i8")
    builder.call(fn, [pointer, i32(0), i32(locality), i32(1)])  # read, into which levels, data
    return context.get_dummy_value()


@intrinsic
def prefetch(typingctx: Any, array: Any, index: Any) -> Any:
    """Ask the processor to load the cache line of ``array.flat[index]``; a wrong index does no
    harm.

    Random reads miss the cache; asking 16-32 elements ahead lets the misses overlap (measured on
    neighbour sampling of RMAT scale 20: 0.75 s an epoch with, 1.1 s without).
    """
    return types.void(array, types.intp), partial(_prefetched, locality=3)


@intrinsic
def prefetch_outer(typingctx: Any, array: Any, index: Any) -> Any:
    """:func:`prefetch` into all levels but the innermost, which has room for fewer lines that are
    under way."""
    return types.void(array, types.intp), partial(_prefetched, locality=2)


@intrinsic
def popcount(typingctx: Any, word: Any) -> Any:
    """Number of the bits that are set in a uint64."""
    return types.uint64(types.uint64), lambda context, builder, signature, args: builder.ctpop(
        args[0]
    )


@intrinsic
def trailing_zeros(typingctx: Any, word: Any) -> Any:
    """Place of the lowest bit that is set in a uint64, which must not be 0."""
    undefined_for_0 = ir.Constant(ir.IntType(1), 1)
    return types.uint64(types.uint64), lambda context, builder, signature, args: builder.cttz(
        args[0], undefined_for_0
    )


def _word(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    """Pointer to ``array.flat[index]``, of the first two arguments."""
    struct = context.make_array(signature.args[0])(context, builder, args[0])
    return builder.gep(struct.data, [args[1]])


@intrinsic
def store_release(typingctx: Any, array: Any, index: Any, value: Any) -> Any:
    """Set ``array.flat[index]`` of 32 or 64 bits; who sees it sees what was written before, too."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = _word(context, builder, signature, args)
        builder.store_atomic(args[2], place, "release", array.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(array, types.intp, array.dtype), codegen


@intrinsic
def add_atomic(typingctx: Any, array: Any, index: Any, value: Any) -> Any:
    """Add to ``array.flat[index]``, which other threads add to as well; returns what it was."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw(
            "add", _word(context, builder, signature, args), args[2], "seq_cst"
        )

    return array.dtype(array, types.intp, array.dtype), codegen


def _array_of(context: Any, builder: Any, array_type: Any, data: Any, *shape: Any) -> Any:
    """An array of one or two dimensions that lies at a pointer and owns nothing."""
    made = arrayobj.make_array(array_type)(context, builder)
    element = context.get_data_type(array_type.dtype)
    width = context.get_constant(types.intp, context.get_abi_sizeof(element))
    strides = [builder.mul(width, each) for each in shape[1:]] + [width]
    arrayobj.populate_array(
        made, data=data, shape=shape, strides=strides, itemsize=width, meminfo=None
    )
    return made._getvalue()


@intrinsic
def array_at(typingctx: Any, like: Any, address: Any, length: Any) -> Any:
    """The array of ``length`` elements at an address, of the dtype of the array ``like``.

    ``numba.carray`` does the same in a function of its own, which returns an array: kernels
    without numba's runtime cannot.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        element = context.get_data_type(like.dtype)
        data = builder.inttoptr(args[1], element.as_pointer())
        return _array_of(context, builder, signature.return_type, data, args[2])

    return types.Array(like.dtype, 1, "C")(like, types.intp, types.intp), codegen


@intrinsic
def as_rows(typingctx: Any, array: Any, count: Any, width: Any) -> Any:
    """The first ``count * width`` elements of a contiguous array, as rows of a matrix.

    ``array.reshape`` compiles a function of numba's for arrays that are not contiguous, 0.1 s.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(array)(context, builder, args[0]).data
        return _array_of(context, builder, signature.return_type, data, *args[1:])

    return types.Array(array.dtype, 2, "C")(array, types.intp, types.intp), codegen


@intrinsic(prefer_literal=True)
def stack_int64(typingctx: Any, length: Any) -> Any:
    """An uninitialised int64 array of a constant length on the stack, of this call alone."""
    if not isinstance(length, types.IntegerLiteral):
        return None  # numba tries the plain type as well
    count = length.literal_value

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = cgutils.alloca_once(builder, ir.IntType(64), size=count)
        size = context.get_constant(types.intp, count)
        return _array_of(context, builder, signature.return_type, data, size)

    return types.Array(types.int64, 1, "C")(length), codegen


@intrinsic
def int32_at(typingctx: Any, address: Any) -> Any:
    """The 32-bit integer at an address, such as the C library's ``errno``."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(builder.inttoptr(args[0], ir.IntType(32).as_pointer()))

    return types.int32(types.uintp), codegen
