"""The use of numba: compiler flags, the on-disk cache of kernels, intrinsics such as prefetch."""

import contextlib
import inspect
import os
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.caching import NullCache, UserProvidedCacheLocator
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler, Flags
from numba.extending import intrinsic
from numba.np import arrayobj

from ._compiling import compiling, loading
from ._kernel_files import KernelFiles
from ._kernel_folder import kernel_folder
from ._postponed import collection_later, signals_later
from .errors import PaGraphError

_FOLDER = kernel_folder()
if _FOLDER.warning:
    warnings.warn(_FOLDER.warning, RuntimeWarning, stacklevel=2)
_CACHE_DIR = _FOLDER.path


def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a free function on arrays: releases the GIL, cached on disk, no fastmath.

    It can neither allocate nor return an array. So numba's runtime, which counts references to
    arrays, is not needed: this saves a third of the code and of the compile time.
    """
    return _compiled(function, allocates=False)


def allocating_kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """A :func:`kernel` that may allocate arrays."""
    return _compiled(function, allocates=True)


@loading(everyone=True)
def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """A short function that is inlined into kernels; unlike a kernel it may return slices."""
    jitted: Callable[..., Any] = numba.njit(inline="always")(function)
    return jitted


def check_compiler() -> None:
    """Check that numba compiles at all.

    Raises:
        PaGraphError: It is turned off.
    """
    if numba.config.DISABLE_JIT:
        raise PaGraphError(
            "NUMBA_DISABLE_JIT must be 0: pagraph's kernels run only compiled, got 1"
        )


# numba makes folders with the umask, which belongs to the whole process and is not changed here.
# Ours are private whatever it is.
def _make_folder_of(function: Callable[..., Any]) -> None:
    """Make the folder of a kernel's files before numba does."""
    if _CACHE_DIR:
        name = UserProvidedCacheLocator.get_suitable_cache_subpath(inspect.getfile(function))
        with contextlib.suppress(OSError):
            os.mkdir(os.path.join(_CACHE_DIR, name), mode=0o700)


@loading(everyone=True)
def _compiled(function: Callable[..., Any], *, allocates: bool) -> Callable[..., Any]:
    check_compiler()
    before = numba.config.CACHE_DIR
    # numba reads it only while decorating, so it is restored for other libraries.
    numba.config.CACHE_DIR = _CACHE_DIR
    try:
        _make_folder_of(function)
        compiled: Any = numba.njit(
            nogil=True, cache=bool(_CACHE_DIR), _nrt=allocates, pipeline_class=_TimedCompiler
        )(function)
    finally:
        numba.config.CACHE_DIR = before
    if _CACHE_DIR and not Path(compiled._cache.cache_path).is_relative_to(_CACHE_DIR):
        compiled._cache = NullCache()  # numba chose another folder, for example on a full disk
    if not isinstance(compiled._cache, NullCache):
        compiled._cache._cache_file = _files_of(compiled._cache)
    load = compiled.compile

    def load_whole(signature: Any) -> Any:
        # Compiling creates many objects, whose garbage collection took 15 % of the time, and more
        # in a process with many other objects.
        with signals_later(), collection_later(), loading():
            try:
                return load(signature)
            except OSError:  # a full disk, or a removed folder: go on without the cache
                compiled._cache = NullCache()
                return load(signature)

    compiled.compile = load_whole
    # numba uses this when another kernel calls this one. What Python calls is compiled separately.
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


def _files_of(cache: Any) -> KernelFiles:
    stem = os.path.join(cache.cache_path, cache._impl.filename_base)
    return KernelFiles(stem, cache._impl.locator.get_source_stamp())


_FLAGS = {name: option.default for name, option in Flags.options.items()}


class _QuickFlags(Flags):
    """numba's flags with faster ``values``.

    They are part of the key by which numba looks up each operator and call. For a loader's kernels
    they are hashed and compared 30,000 times. That takes 26 and 39 us by numba's properties, and 1
    and 0.6 us by dictionaries.
    """

    __slots__ = ()

    def values(self) -> dict[str, Any]:
        values: dict[str, Any] = self._values
        return _FLAGS | values


class _TimedCompiler(Compiler):
    """numba's compiler, whose times are noted."""

    def compile_extra(self, func: Any) -> Any:
        self.state.flags = _QuickFlags(self.state.flags)
        with compiling():
            return super().compile_extra(func)


class _PartCompiler(_TimedCompiler):
    """Compiles a kernel that another one calls to code that is only linked into the caller's.

    numba optimises each function and turns it into machine code, then links it into each caller,
    and does both there again. Of a batch's 60 functions only six are called from Python. To finish
    only these takes a third of the time.
    """

    def compile_extra(self, func: Any) -> Any:
        self.state.library = _PartLibrary(self.state.targetctx.codegen(), func.__qualname__)
        return super().compile_extra(func)


class _PartLibrary(JITCodeLibrary):
    """Code of a :class:`_PartCompiler`, not optimised and without machine code."""

    @property
    def codegen(self) -> Any:
        return _NoSymbols

    def finalize(self) -> None:
        self._raise_if_finalized()
        for library in dict.fromkeys(self._linking_libraries):
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        self._ensure_finalized()
        return 0  # numba's value for a missing function


class _NoSymbols:
    """Replaces the code generator, which would look up functions of a finalised library."""

    @staticmethod
    def set_env(name: str, environment: Any) -> None:
        """Do nothing, since kernels use no Python and so need no environment."""


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
    """Prefetch the cache line of ``array.flat[index]``; a wrong index is harmless.

    Random reads miss the cache. Prefetching 16-32 elements ahead lets the misses overlap: an epoch
    of neighbour sampling on RMAT scale 20 took 0.75 s with it and 1.1 s without.
    """
    return types.void(array, types.intp), partial(_prefetched, locality=3)


@intrinsic
def prefetch_outer(typingctx: Any, array: Any, index: Any) -> Any:
    """:func:`prefetch` into all cache levels but the innermost, which holds fewer pending lines."""
    return types.void(array, types.intp), partial(_prefetched, locality=2)


@intrinsic
def popcount(typingctx: Any, word: Any) -> Any:
    """Number of set bits in a uint64."""
    return types.uint64(types.uint64), lambda context, builder, signature, args: builder.ctpop(
        args[0]
    )


@intrinsic
def trailing_zeros(typingctx: Any, word: Any) -> Any:
    """Index of the lowest set bit in a uint64, which must not be 0."""
    undefined_for_0 = ir.Constant(ir.IntType(1), 1)
    return types.uint64(types.uint64), lambda context, builder, signature, args: builder.cttz(
        args[0], undefined_for_0
    )


def _word(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    """Pointer to ``array.flat[index]``, where these are the first two arguments."""
    struct = context.make_array(signature.args[0])(context, builder, args[0])
    return builder.gep(struct.data, [args[1]])


@intrinsic
def store_release(typingctx: Any, array: Any, index: Any, value: Any) -> Any:
    """Set ``array.flat[index]``, of 32 or 64 bits, with release semantics."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = _word(context, builder, signature, args)
        builder.store_atomic(args[2], place, "release", array.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(array, types.intp, array.dtype), codegen


@intrinsic
def add_atomic(typingctx: Any, array: Any, index: Any, value: Any) -> Any:
    """Add to ``array.flat[index]`` atomically; returns the value before."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw(
            "add", _word(context, builder, signature, args), args[2], "seq_cst"
        )

    return array.dtype(array, types.intp, array.dtype), codegen


def _array_of(context: Any, builder: Any, array_type: Any, data: Any, *shape: Any) -> Any:
    """An array of one or two dimensions at a pointer, which does not own the memory."""
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
    """The array of ``length`` elements at an address, with the dtype of the array ``like``.

    ``numba.carray`` is a function that returns an array, which kernels without numba's runtime
    cannot call.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        element = context.get_data_type(like.dtype)
        data = builder.inttoptr(args[1], element.as_pointer())
        return _array_of(context, builder, signature.return_type, data, args[2])

    return types.Array(like.dtype, 1, "C")(like, types.intp, types.intp), codegen


@intrinsic
def as_rows(typingctx: Any, array: Any, count: Any, width: Any) -> Any:
    """The first ``count * width`` elements of a contiguous array, as rows of a matrix.

    ``array.reshape`` would compile a numba function for arrays that are not contiguous, in 0.1 s.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(array)(context, builder, args[0]).data
        return _array_of(context, builder, signature.return_type, data, *args[1:])

    return types.Array(array.dtype, 2, "C")(array, types.intp, types.intp), codegen


@intrinsic(prefer_literal=True)
def stack_int64(typingctx: Any, length: Any) -> Any:
    """An uninitialised int64 array of a constant length on the stack, valid during this call."""
    if not isinstance(length, types.IntegerLiteral):
        return None  # numba also tries the type without the literal
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
