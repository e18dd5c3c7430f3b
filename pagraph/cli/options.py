"""Click options derived from dataclasses and functions of the library: names, types, defaults and
choices.

A field ``epochs: int = field(default=20, metadata={"help": "Passes over the data."})`` of a
dataclass ``Settings`` is an option of every command decorated with ``@options_of(Settings)``;
``build(Settings, values)`` takes the values back.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import click

_F = TypeVar("_F", bound=Callable[..., Any])
_T = TypeVar("_T")

split_option = click.option(
    "--split", default="", metavar="PREFIX", help="Use another split of the folder, such as pub_."
)
memory_option = click.option(
    "--memory",
    metavar="SIZE",
    help='Bytes that the work may take, such as "4GiB".  [default: half of what is free]',
)
store_option = click.option(
    "--store",
    type=click.Choice(("float16", "bfloat16", "int8")),
    help="Store 2-D fields of floats in fewer bytes a value; they are read as before.",
)
train_fraction_option = click.option(
    "--train-fraction",
    type=float,
    help="Train on a random share of the vertices, for graphs without masks.",
)


def options_of(
    source: Callable[..., Any], only: Collection[str] = (), /, **documented: str | Mapping[str, Any]
) -> Callable[[_F], _F]:
    """Decorator that gives a command one option for each documented parameter of ``source``, in
    order.

    Types and defaults are those of the parameter. ``bool`` becomes a flag, ``X | None`` is read as
    ``X``, and a tuple as values with commas between (its length is checked where its type says
    one).

    Args:
        source: A dataclass, whose fields may be documented by their ``metadata``, or a function.
        only: Parameters to take. Default: all that are documented.
        documented: Parameter to its help text, or to a mapping that replaces its ``metadata``:
            "help", "flags" (names on the command line, default ``--its-name``), "choices", "once"
            (a second value is refused, where it would take the place of the first), and any
            argument of ``click.option``.
    """
    named = _documented(source)
    for name, document in documented.items():
        named[name] = (
            {**named.get(name, {}), "help": document} if isinstance(document, str) else document
        )
    parameters, hints = inspect.signature(source).parameters, get_type_hints(source)
    taken = [name for name in parameters if name in (only or named)]

    def decorate(command: _F) -> _F:
        for name in reversed(taken):  # the last decorator is the first option
            command = _option(name, hints.get(name, str), parameters[name].default, named[name])(
                command
            )
        return command

    return decorate


def build(kind: Callable[..., _T], settings: Mapping[str, Any]) -> _T:
    """Construct a dataclass from those of a command's values that are its fields."""
    return kind(
        **{name: settings[name] for name in inspect.signature(kind).parameters if name in settings}
    )


def as_typed(message: str, command: click.Command) -> str:
    """Rewrite a message of the library with the options of ``command`` in place of the arguments
    that they set.

    ``num_parts must be`` at the beginning becomes ``--parts must be``; anywhere, ``relabel=True``
    becomes ``--relabel``, ``header=False`` ``--no-header`` and ``num_nodes=3`` ``--num-nodes 3``.
    """
    for parameter in command.params:
        if not isinstance(parameter, click.Option):
            continue
        option, name = max(parameter.opts, key=len), re.escape(str(parameter.name))
        off = max(parameter.secondary_opts, key=len, default=f"without {option}")
        message = re.sub(rf"^{name} (?=must)", f"{option} ", message)
        message = re.sub(rf"\b{name}=True\b", option, message)
        message = re.sub(rf"\b{name}=False\b", off, message)
        message = re.sub(rf"\b{name}=(?=\w)", f"{option} ", message)
    return message


def _flags(name: str, document: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(document.get("flags", (f"--{name.replace('_', '-')}",)))


def _documented(source: Callable[..., Any]) -> dict[str, Any]:
    fields = dataclasses.fields(source) if dataclasses.is_dataclass(source) else ()
    return {field.name: field.metadata for field in fields if "help" in field.metadata}


def _option(name: str, hint: Any, default: Any, document: Mapping[str, Any]) -> Callable[[_F], _F]:
    settings = {
        key: value for key, value in document.items() if key not in ("flags", "choices", "once")
    }
    kind = next(
        (
            kind
            for kind in get_args(hint)
            if type(None) in get_args(hint) and kind is not type(None)
        ),
        hint,
    )
    if "choices" in document:
        settings["type"] = click.Choice(document["choices"])
    elif get_origin(kind) is tuple and not settings.get("multiple"):
        settings.setdefault("callback", _separated(*get_args(kind)))
        default = ",".join(map(str, default)) if isinstance(default, tuple) else default
    elif kind is bool:
        settings["is_flag"] = True
    else:
        types = {int: int, float: float, Path: click.Path(path_type=Path)}
        settings.setdefault("type", types.get(kind, str))
    if default is not inspect.Parameter.empty:
        settings.setdefault("default", default)
    if document.get("once"):
        settings |= {"multiple": True, "callback": _once, "default": ()}
    shown = settings.get("default")
    settings.setdefault("required", "default" not in settings)
    settings.setdefault(
        "show_default", shown is not None and shown is not False and shown not in ("", ())
    )
    return click.option(*_flags(name, document), name, **settings)


def _once(_context: click.Context, parameter: click.Parameter, values: tuple[Any, ...]) -> Any:
    """Callback that takes the one value of an option, None without."""
    if len(values) > 1:
        got = " and ".join(repr(str(value)) for value in values)
        raise click.BadParameter(f"{parameter.name} must be given once, got {got}")
    return values[0] if values else None


def _separated(kind: type, *more: Any) -> Callable[..., tuple[Any, ...] | None]:
    """Callback that splits a text at its commas; ``more`` is an ellipsis, or the types of the other
    values."""

    def parse(
        _context: click.Context, parameter: click.Parameter, value: str | None
    ) -> tuple[Any, ...] | None:
        parts = [part.strip() for part in (value or "").split(",")]
        if value is None or kind is str:
            return None if value is None else tuple(part for part in parts if part)
        try:
            found = tuple(map(kind, parts))
        except ValueError:
            found = ()
        if not found or (more != (...,) and len(found) != 1 + len(more)):
            count = "" if more == (...,) else f"{1 + len(more)} "
            words = {int: "integers", float: "numbers"}[kind]
            raise click.BadParameter(
                f"{parameter.name} must be {count}{words} with commas between, got {value!r}"
            )
        return found

    return parse
