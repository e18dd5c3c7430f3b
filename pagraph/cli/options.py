"""Click options derived from dataclasses and functions of the library.

A field ``epochs: int = field(default=20, metadata={"help": "Passes over the data."})`` of a
dataclass ``Settings`` is an option of every command decorated with ``@options_of(Settings)``;
``build(Settings, values)`` takes the values back.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
import types
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import click

from ..system.budget import memory_budget

_F = TypeVar("_F", bound=Callable[..., Any])
_T = TypeVar("_T")

split_option = click.option(
    "--split", default="", metavar="PREFIX", help="Use another split of the folder, such as pub_."
)


def _bytes(_context: click.Context, _parameter: click.Parameter, size: str | None) -> str | None:
    memory_budget(size)
    return size


memory_option = click.option(
    "--memory",
    metavar="SIZE",
    callback=_bytes,
    help='Memory that the command may use, such as "4GiB".  [default: half of what is free]',
)
store_option = click.option(
    "--store",
    type=click.Choice(("float16", "bfloat16", "int8")),
    help="Store 2-D fields of floats in fewer bytes a value; they are read as before.",
)


def _share(
    _context: click.Context, _parameter: click.Parameter, share: float | None
) -> float | None:
    if share is not None and not 0 < share <= 1:
        raise ValueError(f"--train-fraction must be in (0, 1], got {share}")
    return share


node_type_option = click.option(
    "--node-type",
    help="Type of the training vertices, if there are several.  [default: those with train_mask]",
)
train_fraction_option = click.option(
    "--train-fraction",
    type=float,
    callback=_share,
    help="Train on a random share of the vertices, for graphs without masks.",
)


def options_of(
    source: Callable[..., Any], only: Collection[str] = (), /, **documented: str | Mapping[str, Any]
) -> Callable[[_F], _F]:
    """Decorator that adds an option to a command for each documented parameter of ``source``.

    Options have the order, types and defaults of the parameters. ``bool`` becomes a flag,
    ``X | None`` is read as ``X``, and a tuple as comma-separated values. Their number is checked
    where the tuple's type has one.

    Args:
        source: A dataclass, whose fields may be documented by their ``metadata``, or a function.
        only: Parameters to take. Default: all that are documented.
        documented: Parameter to its help text, or to a mapping that replaces its ``metadata``:
            "help", "flags" (names on the command line, default ``--its-name``), "choices", "once"
            (a second value is refused instead of replacing the first), and any argument of
            ``click.option``.
    """
    named = _documented(source)
    for name, document in documented.items():
        if isinstance(document, str):
            named[name] = {**named.get(name, {}), "help": document}
        else:
            named[name] = document
    parameters = inspect.signature(source).parameters
    taken = [name for name in parameters if name in (only or named)]
    # Only of these: other parameters may have types that only a type checker imports.
    annotations = {name: parameters[name].annotation for name in taken}
    scope = vars(sys.modules[source.__module__])
    hints = get_type_hints(types.SimpleNamespace(__annotations__=annotations), scope)

    def decorate(command: _F) -> _F:
        for name in reversed(taken):  # the last decorator is the first option
            hint = hints[name]
            option = _option(name, hint, parameters[name].default, named[name])
            command = option(command)
        return command

    return decorate


def build(kind: Callable[..., _T], settings: Mapping[str, Any]) -> _T:
    """Construct a dataclass from a command's values, leaving out those that are no fields of it."""
    return kind(
        **{name: settings[name] for name in inspect.signature(kind).parameters if name in settings}
    )


def as_typed(message: str, command: click.Command) -> str:
    """Rewrite a message of the library, with options of ``command`` in place of arguments.

    ``num_parts must be`` at the beginning becomes ``--parts must be``. Anywhere, ``relabel=True``
    becomes ``--relabel``, ``header=False`` ``--no-header`` and ``num_nodes=3`` ``--num-nodes 3``.
    """
    for parameter in command.params:
        if not isinstance(parameter, click.Option):
            continue
        option = max(parameter.opts, key=len)  # --parts rather than -k
        name = re.escape(str(parameter.name))
        off = max(parameter.secondary_opts, key=len, default=f"without {option}")
        message = re.sub(rf"^{name} (?=must)", f"{option} ", message)
        message = re.sub(rf"\b{name}=True\b", option, message)
        message = re.sub(rf"\b{name}=False\b", off, message)
        message = re.sub(rf"\b{name}=(?=-?\w)", f"{option} ", message)
        message = re.sub(rf"\b{name}='(\w+)'", rf"{option} \1", message)
        # What is a mapping in Python is typed entry by entry.
        message = re.sub(rf"\b{name}={{'([^']+)': '([^']+)'}}", rf"{option} \1:\2", message)
        message = re.sub(rf"\b{name}={{'([^']+)': None}}", rf"{option} \1:", message)
    return message


def _documented(source: Callable[..., Any]) -> dict[str, Any]:
    fields = dataclasses.fields(source) if dataclasses.is_dataclass(source) else ()
    return {field.name: field.metadata for field in fields if "help" in field.metadata}


def _option(name: str, hint: Any, default: Any, document: Mapping[str, Any]) -> Callable[[_F], _F]:
    settings = {
        key: value for key, value in document.items() if key not in ("flags", "choices", "once")
    }
    kind = _without_none(hint)
    if "choices" in document:
        settings["type"] = click.Choice(document["choices"])
    elif get_origin(kind) is tuple and not settings.get("multiple"):
        settings.setdefault("callback", _separated(*get_args(kind)))
        # As text, for --help: click shows a tuple with brackets.
        if isinstance(default, tuple):
            default = ",".join(map(str, default))
    elif kind is bool:
        settings["is_flag"] = True
    else:
        types = {int: int, float: float, Path: click.Path(path_type=Path)}
        settings.setdefault("type", types.get(kind, str))
    if default is not inspect.Parameter.empty:
        settings.setdefault("default", default)
    # Collected, so that a second value is seen: click keeps only the last.
    if document.get("once"):
        settings |= {"multiple": True, "callback": _once, "default": ()}
    settings.setdefault("required", "default" not in settings)
    # Not "[default: False]" of a flag, nor an empty default. By identity: 0 == False is shown.
    shown = settings.get("default")
    is_plain = shown is not None and shown is not False and shown not in ("", ())
    settings.setdefault("show_default", is_plain)
    flags = document.get("flags", (f"--{name.replace('_', '-')}",))
    return click.option(*flags, name, **settings)


def _without_none(hint: Any) -> Any:
    """``X`` of ``X | None``; other hints unchanged."""
    kinds = get_args(hint)
    if type(None) not in kinds:
        return hint
    return next((kind for kind in kinds if kind is not type(None)), hint)


def _once(_context: click.Context, parameter: click.Parameter, values: tuple[Any, ...]) -> Any:
    """Callback that returns the only value of an option, or None."""
    if len(values) > 1:
        got = " and ".join(repr(str(value)) for value in values)
        raise click.BadParameter(f"{parameter.name} must be given once, got {got}")
    return values[0] if values else None


def _separated(kind: type, *more: Any) -> Callable[..., tuple[Any, ...] | None]:
    """Callback that splits a text at its commas.

    ``kind, *more`` are the arguments of a tuple's type. ``more`` is an ellipsis, or the types of
    the other values.
    """

    def parse(
        _context: click.Context, parameter: click.Parameter, value: str | None
    ) -> tuple[Any, ...] | None:
        if value is None:
            return None
        parts = [part.strip() for part in value.split(",")]
        if kind is str:
            return tuple(part for part in parts if part)
        try:
            found = tuple(map(kind, parts))
        except ValueError:
            found = ()  # the same message as for a wrong number of them
        if not found or (more != (...,) and len(found) != 1 + len(more)):
            count = "" if more == (...,) else f"{1 + len(more)} "
            words = {int: "integers", float: "numbers"}[kind]
            raise click.BadParameter(
                f"{parameter.name} must be {count}{words} with commas between, got {value!r}"
            )
        return found

    return parse
