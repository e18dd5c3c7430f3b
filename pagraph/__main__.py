"""The command ``pagraph``, also ``python -m pagraph``."""

import atexit
import gc
import sys

from ._streams import fill_missing
from .cli import main

__all__ = ["program"]


def program() -> None:
    """Run the command line; the process does nothing else."""
    fill_missing()
    if sys.argv[1:2] == ["import"]:
        atexit.register(_leave_garbage)
    main(prog_name="pagraph")


def _leave_garbage() -> None:
    """Skip Python's last garbage collection, which looks at torch's half a million objects.

    It takes a fifth of a small import, for memory that the system takes back anyway.
    """
    # Triton would print a line about a leak for each of its objects.
    if "triton" not in sys.modules:
        gc.freeze()


if __name__ == "__main__":
    program()
