"""The exceptions of this library, one small tree.

Its hierarchy::

    PaGraphError
    |-- FormatError (also a ValueError)        a file or folder is not what it says it is
    |-- MissingDependencyError (also a ModuleNotFoundError)   an optional package is needed and absent
    `-- PipelineError (RuntimeError)           the loader was used in a way it cannot serve

Wrong arguments raise plain ``ValueError``, ``TypeError`` or ``IndexError`` that name argument, rule
and value.
"""

import sys

# A message may quote a file: never more of it than a screen.
_LONGEST = 1000


class PaGraphError(Exception):
    """Base class of everything that pagraph raises on its own account."""


class FormatError(PaGraphError, ValueError):
    """A file or folder is missing, truncated, corrupt, or does not match its manifest."""

    def __str__(self) -> str:
        """The message as one line that is not too long: it may quote another package's reader, or
        the file."""
        text = " ".join(super().__str__().splitlines())
        return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


class MissingDependencyError(PaGraphError, ModuleNotFoundError):
    """An optional package is needed for this call and is not installed."""


class PipelineError(PaGraphError, RuntimeError):
    """The loader or one of its stages was used in a way it cannot serve."""


def how_to_install(extra: str) -> str:
    """The command that installs an extra of pagraph, or why this Python cannot have it; ends an
    error's text."""
    if extra == "dgl" and sys.version_info >= (3, 13):
        version = "{}.{}".format(*sys.version_info)
        return f"take Python 3.12 or older, as DGL has no build for Python {version}"
    return f"pip install 'pagraph[{extra}]'"
