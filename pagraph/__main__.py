"""The process of the command ``pagraph``, which is also ``python -m pagraph``."""

import atexit
import gc
import sys

from .cli import main

__all__ = ["program"]


def program() -> None:
    """Run the command line as the only work of this process."""
    if sys.argv[1:2] == ["import"]:
        atexit.register(_leave_garbage)
    main(prog_name="pagraph")


def _leave_garbage() -> None:
    """Let Python end without its last looks for garbage among torch's half a million objects.

    They take a fifth of a small import, for memory that the system takes back anyway.
    """
    # Triton calls it a leak, a line for each of its objects.
    if "triton" not in sys.modules:
        gc.freeze()


if __name__ == "__main__":
    program()
