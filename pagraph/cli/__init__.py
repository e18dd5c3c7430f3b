"""The command ``pagraph``. Each verb is a module, imported when the verb is used.

The module has a click command named ``command``, and an entry in ``VERBS``.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import importlib
import json
import os
import shlex
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from .. import __version__
from .._streams import discard_output, flush, print_notice
from ..errors import FormatError, PaGraphError
from ..system.units import escaped, shortened

__all__ = ["BAD_INPUT", "VERBS", "main", "record_error", "show_error"]

VERBS = {
    "completion": ("completion", "Print the completion script of bash, zsh or fish."),
    "doctor": ("doctor", "Show what works here, what falls back, and what to fix."),
    "export": ("export", "Write a graph folder as DGL, PyG or OGB read it."),
    "generate": ("generate", "Generate an RMAT or block-model graph."),
    "import": ("import_", "Write a graph from elsewhere as a graph folder."),
    "info": ("info", "Show what is in a graph folder, and what a cache would hold."),
    "partition": ("partition", "Divide a graph into self-contained parts, one per process."),
    "preaggregate": (
        "preaggregate",
        "Sum up neighbours ahead of training, to sample one hop less.",
    ),
    "profile": ("profile", "Measure what a feature cache would save, and recommend one."),
    "reorder": ("reorder", "Write a graph so that rows read together lie together on disk."),
    "run": ("run", "Run a DGL or PyG script, unchanged, with pagraph's loaders."),
    "train": ("train", "Train GraphSAGE, GCN or GAT on a graph folder."),
    "warmup": ("warmup", "Compile kernels ahead of time, for container images and CI."),
}
"""Verb to its module in this package, and what ``pagraph --help`` says about it."""

# Exit codes. 2 is also click's for wrong usage; 130 is 128 + SIGINT, as a shell reports it.
BAD_INPUT = 2
FAILURE = 1
INTERRUPTED = 130
# Characters of an error that are shown. It may quote a name from a file, of any length.
_LONGEST = 2000

# Raised for wrong arguments and files; everything else is a failure.
_INPUT_ERRORS = (
    *(ValueError, TypeError, IndexError, FileExistsError, FileNotFoundError),
    *(NotADirectoryError, IsADirectoryError),
)


class _Verbs(click.Group):
    """Loads verbs when they are used, and turns every exception into one line and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            near = difflib.get_close_matches(cmd_name, VERBS, n=1)
            # Not while a shell completes a line, which has no place for an error.
            if near and not ctx.resilient_parsing:
                ctx.fail(f"No such command {cmd_name!r}; did you mean {near[0]!r}?")
            return None
        module = importlib.import_module(f".{VERBS[cmd_name][0]}", __name__)
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(verb, text) for verb, (_, text) in VERBS.items()])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[__name__] = list(args)  # for `invoke`: click consumes them
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb, and rewrite its errors for the command line.

        They name options as they are typed, and a hint follows where another verb takes the path.
        """
        try:
            return super().invoke(ctx)
        except _INPUT_ERRORS as error:
            from .options import as_typed

            # The command that ran, below its groups (`generate rmat`), and its arguments.
            command: click.Command = self
            words = list(ctx.meta[__name__])
            while isinstance(command, click.Group) and words:
                named = command.get_command(ctx, words[0])
                if named is None:
                    break
                command = named
                words = words[1:]
            text = as_typed(str(error), command) + _hint(str(error), command, words)
            if text == str(error):
                raise
            raise click.ClickException(text) from error

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, False, **extra)
        try:
            code = super().main(args, prog_name, complete_var, False, **extra)
            flush()
        except Exception as error:
            code = show_error(error)
            record_error(error)
        if not isinstance(code, int):
            code = 0
        sys.exit(code)


def _hint(message: str, command: click.Command, arguments: Sequence[str]) -> str:
    """What to add to a message about a path among the ``arguments``, or ""."""
    path = _path_in(message, command, arguments)
    if path is None or not path.exists():
        return ""
    from ..datasets.forms import source_form
    from ..datasets.manifest import MANIFEST
    from ..datasets.paths import is_partition

    if path.is_file() and (path.parent / MANIFEST).is_file():
        return f"; give its folder: {path.parent}"
    quoted = shlex.quote(str(path))
    if is_partition(path):
        return (
            f"; a folder of parts is for `pagraph train {quoted}` and `pagraph partition verify "
            f"{quoted}`"
        )
    try:
        form = source_form(path)
    except FormatError:
        return ""
    if command.name == "import" or form.name == "folder":
        return ""
    return f"; it is {form.what}: `pagraph import {quoted} OUT` converts it to a graph folder"


def _path_in(message: str, command: click.Command, arguments: Sequence[str]) -> Path | None:
    """The input path among the ``arguments`` that a message names."""
    # Resilient: the arguments may be what is wrong.
    context = command.make_context(command.name, list(arguments), resilient_parsing=True)
    for parameter in command.params:
        if not isinstance(parameter, click.Argument) or parameter.name == "out":
            continue
        value = context.params.get(str(parameter.name))
        if isinstance(value, Path) and str(value) in message:
            return value
    return None


def show_error(error: Exception) -> int:
    """Print an error as one line, and return the exit code."""
    if os.environ.get("PAGRAPH_TRACEBACK"):
        print_notice("".join(traceback.format_exception(error)).rstrip())
    if isinstance(error, OSError) and error.errno == errno.EPIPE:
        # The reader is gone: `pagraph info | head`.
        discard_output()
        return FAILURE
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()  # its message is the help text
        return BAD_INPUT
    line, code = _error_line(error)
    print_notice(line)
    if code == INTERRUPTED:
        # Ctrl-C in the exec() of an import: `python -m` dies of SIGINT even if caught, until the
        # next exec().
        exec("")
    return code


def record_error(error: Exception) -> None:
    """Hand the line of :func:`show_error` to torchrun, if it started this process.

    Torchrun prints it last, below its own traceback.
    """
    file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not file:
        return
    extra = {"timestamp": str(int(time.time()))}
    message = {"message": _error_line(error)[0], "extraInfo": extra}
    # Torchrun does without the file.
    with contextlib.suppress(OSError):
        Path(file).write_text(json.dumps({"message": message}), encoding="utf-8")


def _error_line(error: Exception) -> tuple[str, int]:
    """The line that is printed, and the exit code."""
    message, code = _describe(error)
    return f"Error: {shortened(escaped(' '.join(message.split())), _LONGEST)}", code


def _describe(error: Exception) -> tuple[str, int]:
    """One line for a person, and the exit code."""
    if isinstance(error, click.exceptions.Abort):
        return "interrupted", INTERRUPTED
    if isinstance(error, click.ClickException):
        return error.format_message(), error.exit_code if error.exit_code != 1 else BAD_INPUT
    text = str(error) or type(error).__name__
    if isinstance(error, _INPUT_ERRORS):
        return text, BAD_INPUT
    if isinstance(error, (PaGraphError, OSError, ImportError)):
        return text, FAILURE
    return f"{type(error).__name__}: {text} (PAGRAPH_TRACEBACK=1 shows where)", FAILURE


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="pagraph")
def main() -> None:
    """Sampled mini-batches for GNN training, fast enough that the GPU never waits."""


__dir__ = __all__.copy
