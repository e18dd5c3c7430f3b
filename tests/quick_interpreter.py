"""Triton's interpreter, without looking for its builtin functions again at each call of a function.

It puts Python's version of each builtin into ``triton.language`` for as long as a kernel runs, and
again whenever a kernel calls a function of ours: half of the time of small kernels.
"""

import functools
import inspect


def quicken():
    """Let Triton's interpreter remember what it found; nothing where its insides are others."""
    from triton.runtime import interpreter

    parts = (
        "_patch_builtin",
        "_patch_attr",
        "_get_np_dtype",
        "_LangPatchScope",
        "InterpretedFunction",
    )
    if not all(hasattr(interpreter, name) for name in parts):
        return

    @functools.cache
    def builtins_of(package):
        # First asked when none is replaced yet.
        found = inspect.getmembers(package)
        return [pair for pair in found if interpreter.tl.core.is_builtin(pair[1])]

    def patch_builtin(package, builder, scope):
        for name, member in builtins_of(package):
            interpreter._patch_attr(package, name, member, builder, scope)

    @functools.cache
    def languages_of(function):
        found = (value for value in function.__globals__.values() if inspect.ismodule(value))
        return [module for module in found if module in (interpreter.tl, interpreter.tl.core)]

    def call(self, *args, **kwargs):
        # The kernel that calls has replaced those of its own module; Triton's functions use another.
        if any(interpreter.tl.core.is_builtin(found.load) for found in languages_of(self.fn)):
            interpreter._patch_lang(self.fn)
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
