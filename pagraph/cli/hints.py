"""Says which verb takes a folder or file that another verb was given."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

import click

__all__ = ["hint"]


def hint(message: str, command: click.Command, arguments: Sequence[str]) -> str:
    """The text to add to a message about a path among the ``arguments`` of ``command``; empty where nothing helps."""
    context = command.make_context(command.name, list(arguments), resilient_parsing=True)
    values = [
        context.params.get(str(p.name)) for p in command.params if isinstance(p, click.Argument) and p.name != "out"
    ]
    path = next((value for value in values if isinstance(value, Path) and str(value) in message), None)
    if path is None or not path.exists():
        return ""
    from ..datasets.manifest import MANIFEST
    from ..datasets.sources import source_form
    from ..errors import FormatError
    from ..partition.manifest import is_partition

    if path.is_file() and (path.parent / MANIFEST).is_file():
        return f"; give its folder: {path.parent}"
    quoted = shlex.quote(str(path))
    if is_partition(path):
        return f"; a folder of parts is for `pagraph train {quoted}` and `pagraph partition verify {quoted}`"
    try:
        form = source_form(path)
    except FormatError:
        return ""
    if command.name == "import" or form.name == "folder":
        return ""
    return f"; it is {form.what}: `pagraph import {quoted} OUT` makes a graph folder of it"
