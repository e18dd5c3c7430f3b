"""Whose an error is: the script's or ours, about its data or of a loader that theirs can make."""

from __future__ import annotations

import dis
import traceback

from ..errors import PipelineError

_OPTIONS = ("pagraph.system.checks", "pagraph.options")
"""Modules that check options, which theirs checks itself."""


def is_for_theirs(error: BaseException) -> bool:
    """Whether theirs takes over a loader that failed before its first batch."""
    return is_ours(error) and not is_about_data(error)


def is_about_data(error: BaseException) -> bool:
    """Whether a check of ours refused the script's graph, seeds or other data.

    Theirs may read past the end of such data. Everything else is for theirs: what we do not do, our
    own faults, and options, which theirs checks itself. The last instruction tells a check from a
    fault: only a check runs a ``raise``.
    """
    if isinstance(error, NotImplementedError | PipelineError | ImportError | AssertionError):
        return False
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return False
    frame = trace.tb_frame
    name = str(frame.f_globals.get("__name__", ""))
    instruction = dis.opname[frame.f_code.co_code[trace.tb_lasti]]
    is_check = name.startswith("pagraph.") and instruction == "RAISE_VARARGS"
    return is_check and not name.startswith(_OPTIONS)


def is_ours(error: BaseException) -> bool:
    """Whether our code raised the error, and not the user's code that we called.

    The innermost frame that is ours or a script's decides. Frames of libraries are skipped.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    for frame in reversed(frames):
        name = str(frame.f_globals.get("__name__", ""))
        if name.startswith("pagraph.run"):
            continue
        if name.startswith("pagraph."):
            return True
        if name.partition(".")[0] not in ("torch", "numpy", "numba", "torch_geometric", "dgl"):
            return False
    return False
