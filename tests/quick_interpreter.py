"""Triton's interpreter, without working out again what it has worked out before.

It puts Python's version of each builtin into ``triton.language`` for as long as a kernel runs, and
again whenever a kernel calls a function of ours: half of the time of small kernels. Of the rest,
most went into the types of blocks, whose names, sizes and shapes were made for each result.
Numbers, checks and errors are the interpreter's own.
"""

import functools
import inspect


def quicken():
    """Let Triton's interpreter remember what it found; nothing where its insides are others."""
    from triton.runtime import interpreter

    parts = (
        "_patch_builtin",
        "_get_np_dtype",
        "_patch_lang",
        "interpreter_semantic",
        "_LangPatchScope",
        "InterpretedFunction",
    )
    if not all(hasattr(interpreter, name) for name in parts):
        return
    if not hasattr(interpreter._LangPatchScope(), "_changes"):
        return
    _quicken_types(interpreter.tl)
    interpreter.inspect = _Signatures()

    @functools.cache
    def builtins_of(package):
        # First asked when none is replaced yet.
        found = inspect.getmembers(package)
        return [pair for pair in found if interpreter.tl.core.is_builtin(pair[1])]

    checking = interpreter.tl.core.builtin(lambda: None).__code__

    def with_semantic(member):
        # Its wrapper only checks that there is what is given here.
        if getattr(member, "__code__", None) is checking:
            member = member.__wrapped__

        def interpreted(*args, **kwargs):
            kwargs["_semantic"] = interpreter.interpreter_semantic
            return member(*args, **kwargs)

        return interpreted

    @functools.cache
    def interpreted_of(package):
        return [(name, with_semantic(member)) for name, member in builtins_of(package)]

    def patch_builtin(package, builder, scope):
        # What the scope's own ``set_attr`` does, 200 times for each kernel.
        for name, member in interpreted_of(package):
            scope._changes.append((package, name, getattr(package, name)))
            setattr(package, name, member)

    @functools.cache
    def packages_of(function):
        found = (value for value in function.__globals__.values() if inspect.ismodule(value))
        languages = (interpreter.tl, interpreter.tl.core)
        return frozenset(module.__name__ for module in found if module in languages)

    whole_patch_lang = interpreter._patch_lang
    replaced = set()

    def patch_lang(function):
        """What is replaced stays so: this process compiles no kernel, and to put back and replace
        again is a sixth of the time of small ones."""
        packages = packages_of(function)
        if packages in replaced:
            return interpreter._LangPatchScope()
        scope = whole_patch_lang(function)
        scope._changes.clear()
        replaced.add(packages)
        return scope

    interpreter._patch_lang = patch_lang

    def call(self, *args, **kwargs):
        # The kernel that calls has replaced those of its own module; Triton's functions use another.
        patch_lang(self.fn)
        try:
            return self.rewrite()(*args, **kwargs)
        except Exception as error:
            raise interpreter.InterpreterError(repr(error)) from error

    numpys, dtype_of = {}, interpreter._get_np_dtype

    def remembered_dtype_of(type_):
        element = type_.scalar
        if isinstance(element, interpreter.tl.pointer_type):
            return dtype_of(element)
        if element.name not in numpys:
            numpys[element.name] = dtype_of(element)
        return numpys[element.name]

    interpreter._get_np_dtype = remembered_dtype_of
    interpreter._patch_builtin = patch_builtin
    interpreter.InterpretedFunction.__call__ = call


class _Signatures:
    """The module ``inspect``, which reads the signature of a kernel once and not at each launch."""

    getfullargspec = staticmethod(functools.cache(inspect.getfullargspec))
    _signature = staticmethod(functools.cache(inspect.signature))

    def __getattr__(self, name):
        return getattr(inspect, name)

    def getcallargs(self, function, /, *args, **kwargs):
        bound = self._signature(function).bind(*args, **kwargs)
        bound.apply_defaults()
        return bound.arguments


def _quicken_types(language):
    """Let types of blocks share what depends on their shape alone; nothing where Triton's insides
    are others."""
    from triton.language.semantic import TritonSemantic

    core = language.core
    parts = ("block_type", "constexpr", "dtype", "tensor", "tuple", "_unwrap_if_constexpr")
    of_operations = (
        "binary_op_type_checking_impl",
        "broadcast_impl_value",
        "computation_type_impl",
    )
    if not (
        all(hasattr(core, name) for name in parts)
        and all(hasattr(TritonSemantic, name) for name in of_operations)
        and _is_as_known(core)
    ):
        return

    whole_unwrap = core._unwrap_if_constexpr
    plain = {core.tensor, bool, int, float, str, type(None), core.dtype, core.block_type}

    def unwrap(given):
        kind = type(given)
        if kind in plain:
            return given
        return given.value if kind is core.constexpr else whole_unwrap(given)

    core._unwrap_if_constexpr = unwrap
    whole_equal = core.dtype.__eq__
    core.dtype.__eq__ = lambda self, other: self is other or whole_equal(self, other)

    # By shape: what a type has of it, and what a tensor of that type has.
    shapes = {}
    whole_block = core.block_type.__init__

    def init_block(self, element_ty, shape):
        given = shape.values if type(shape) is core.tuple else shape
        key = tuple(given)
        found = shapes.get(key)
        if found is None:
            whole_block(self, element_ty, shape)
            del self.name  # it is spelt where it is asked for
            sizes = core.tuple([core.constexpr(size) for size in self.shape])
            self._of_tensors = core.constexpr(self.numel), sizes
            shapes[key] = self.shape, self.numel, self._of_tensors
            return
        self.element_ty = element_ty
        self.shape, self.numel, self._of_tensors = found

    core.block_type.__init__ = init_block
    name = functools.cached_property(lambda self: f"<{self.shape}, {self.element_ty}>")
    name.__set_name__(core.block_type, "name")
    core.block_type.name = name
    core.dtype._of_tensors = core.constexpr(1), core.tuple([])

    def init_tensor(self, handle, type):
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.numel, self.shape = type._of_tensors

    core.tensor.__init__ = init_tensor

    whole_type = language.str_to_ty
    remembered = functools.cache(whole_type)

    def type_of(name, constant):
        return remembered(name, constant) if type(name) is str else whole_type(name, constant)

    language.str_to_ty = type_of

    whole_broadcast = TritonSemantic.broadcast_impl_value

    def broadcast(self, lhs, rhs):
        ours, theirs = lhs.type, rhs.type
        if ours.is_block() and theirs.is_block() and ours.shape is theirs.shape:
            return lhs, rhs
        return whole_broadcast(self, lhs, rhs)

    TritonSemantic.broadcast_impl_value = broadcast

    common = {}
    whole_computation = TritonSemantic.computation_type_impl

    def computation_type(self, one, one_is_scalar, other, other_is_scalar, div_or_mod):
        key = one.name, one_is_scalar, other.name, other_is_scalar, div_or_mod
        if key not in common:
            common[key] = whole_computation(
                self, one, one_is_scalar, other, other_is_scalar, div_or_mod
            )
        return common[key]

    TritonSemantic.computation_type_impl = computation_type

    whole_checking = TritonSemantic.binary_op_type_checking_impl
    constants = {}
    unchanged = {core.int32, core.int64, core.uint32, core.uint64, core.float32, core.float64}

    def checked(self, lhs, rhs, *rest, **more):
        if (
            type(lhs) is type(rhs) is core.tensor
            and lhs.dtype is rhs.dtype
            and type(lhs.dtype) is core.dtype
            and lhs.dtype in unchanged
        ):
            return broadcast(self, lhs, rhs)
        if type(lhs) is not core.tensor or type(rhs) is not int:
            return whole_checking(self, lhs, rhs, *rest, **more)
        # A number becomes the same block each time, which nothing writes to.
        shape = lhs.type.shape if lhs.type.is_block() else None
        key = rhs, lhs.dtype.name, id(shape), rest, tuple(more.items())
        if key in constants:
            return lhs, constants[key]
        left, right = whole_checking(self, lhs, rhs, *rest, **more)
        if left is lhs:
            constants[key] = right
        return left, right

    TritonSemantic.binary_op_type_checking_impl = checked


def _is_as_known(core):
    """Whether blocks and tensors have what they had when this was written, and no more."""
    try:
        block = core.block_type(core.int32, [4, 2])
        value = core.tensor(None, block)
    except Exception:
        return False
    of_block = {"element_ty", "shape", "numel", "name"}
    of_tensor = {"handle", "shape", "numel", "type", "dtype"}
    return (
        vars(block).keys() == of_block
        and vars(value).keys() == of_tensor
        and block.name == f"<{block.shape}, {block.element_ty}>"
        and type(block.shape) is type(value.shape) is core.tuple
    )
