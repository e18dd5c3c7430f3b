"""The exceptions of this library.

Their hierarchy::

    PaGraphError
    |-- FormatError (a ValueError)                        a file or folder is wrong
    |-- MissingDependencyError (a ModuleNotFoundError)    an optional package is missing
    `-- PipelineError (a RuntimeError)                    a loader cannot be used in this way

Wrong arguments raise plain ``ValueError``, ``TypeError`` or ``IndexError`` that name the argument,
the rule and the value.
"""

import sys

# Characters of a message, which may quote a file: no more than a screen shows.
_LONGEST = 1000


class PaGraphError(Exception):
    """Base class of pagraph's exceptions."""


class FormatError(PaGraphError, ValueError):
    """A file or folder is missing, truncated, corrupt, or does not match its manifest."""

    def __str__(self) -> str:
        """The message as one line of bounded length, since it may quote the file."""
        text = " ".join(super().__str__().splitlines())
        return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


class MissingDependencyError(PaGraphError, ModuleNotFoundError):
    """An optional package that this call needs is not installed."""


class PipelineError(PaGraphError, RuntimeError):
    """The loader or one of its stages was used in a way it cannot serve."""


def how_to_install(extra: str) -> str:
    """The end of an error: how to install an extra of pagraph, or why this Python cannot."""
    if extra == "dgl" and sys.version_info >= (3, 13):
        version = "{}.{}".format(*sys.version_info)
        return f"take Python 3.12 or older, as DGL has no build for Python {version}"
    return f"pip install 'pagraph[{extra}]'"


def documentation(page: str, title: str) -> str:
    """Where a message sends its reader: a page's address, or its title where none is known.

    The package's metadata has the address once the site is online.
    """
    from importlib.metadata import PackageNotFoundError, metadata

    try:
        urls = metadata("pagraph").get_all("Project-URL") or []
    except PackageNotFoundError:  # a checkout that is not installed
        urls = []
    for label, _, site in (each.partition(", ") for each in urls):
        if label == "Documentation":
            return f"{site.rstrip('/')}/{page}.html"
    return f"the page {title!r} of the documentation"
