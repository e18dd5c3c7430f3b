"""The standard streams of this process, of which any may be missing, closed or broken.

``2>&-``, a daemon and ``pythonw`` leave ``sys.stderr`` None. A notice is never worth an error, so
the library writes to these streams here alone.
"""

from __future__ import annotations

import contextlib
import os
import sys


def print_notice(line: object) -> None:
    """Write a line to standard error, if there is one that takes it."""
    # A program may have put any object in its place.
    with contextlib.suppress(Exception):
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()  # it may be buffered, in a process that ends without more ado


def say_past_replacement(text: str) -> None:
    """Write to the descriptor of standard error, which a script may have replaced in ``sys``."""
    # In a process that began without one, the number belongs to any file.
    if sys.__stderr__ is not None:
        with contextlib.suppress(OSError):
            os.write(2, text.encode(errors="replace"))


def is_terminal() -> bool:
    """Whether standard error is a terminal."""
    with contextlib.suppress(Exception):
        return sys.stderr.isatty()
    return False


def output_descriptor() -> int:
    """The descriptor of standard output if it is a terminal, else -1.

    A notebook's is none, though the descriptor behind it may be its server's terminal.
    """
    with contextlib.suppress(Exception):
        return sys.stdout.fileno() if sys.stdout.isatty() else -1
    return -1


def has_stderr() -> bool:
    """Whether there is a standard error, without which tqdm fails."""
    return sys.stderr is not None


def flush() -> None:
    """Flush standard error, and standard output unless it is missing or closed.

    Raises:
        OSError: Standard output does not take what was printed.
    """
    with contextlib.suppress(Exception):
        sys.stderr.flush()
    if sys.stdout is not None and not getattr(sys.stdout, "closed", False):
        sys.stdout.flush()


def discard_output() -> None:
    """Send standard output nowhere from now on, since nobody reads it any more."""
    with contextlib.suppress(Exception):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def fill_missing() -> None:
    """Open ``/dev/null`` for each standard stream that this process was started without.

    Otherwise the next file to be opened would get its number, and receive what C code and child
    processes print.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is taken, which is this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
