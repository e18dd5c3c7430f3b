"""Decides whether an error goes to the script or makes theirs take over."""

from __future__ import annotations

import dis
import traceback

_CHECKS = {
    "pagraph.graph._csc": (),
    "pagraph.graph.conversion": ("_check_dgl_edges",),
    "pagraph.graph.csc": (),
    "pagraph.graph.fields": ("__setitem__",),
    "pagraph.graph.mapped": (),
    "pagraph.graph.watched": (),
    "pagraph.features.feature": ("raise_bad", "raise_bad_id"),
    "pagraph.sampling.edge_values": (),
    "pagraph.sampling.hop": ("raise_bad_row", "raise_bad_source"),
    "pagraph.sampling.negative": ("_checked",),
    "pagraph.sampling.times": (),
    "pagraph.pyg.graphs": ("_compressed",),
    "pagraph.pyg.inputs": ("_check_selected",),
    "pagraph.pyg.sampler": ("check_seed_times",),
    "pagraph.pyg.stores": ("_compressed", "store_graph"),
    "pagraph.pyg.times": ("check_times",),
}
"""Module to its functions that check a script's data, for which theirs may crash or sample garbage;
none named: all."""
_OF_DGL = ("_check_fanouts", "_check_saint")
"""Functions of ``pagraph.dgl.workload`` that check numbers with which DGL ends the process."""


def is_for_theirs(error: BaseException) -> bool:
    """Whether theirs takes over a loader that failed before its first batch."""
    return is_ours(error) and not is_about_data(error)


def is_about_data(error: BaseException) -> bool:
    """Whether a check of ours refused what theirs would crash for, or sample garbage from.

    That is the script's graph, ids, weights and times, and numbers with which DGL's samplers
    end the process. Everything else is for theirs: other options, what we do not do, and our own
    faults. The last instruction tells a check from a fault: only a check runs a ``raise``.
    """
    if isinstance(error, NotImplementedError | AssertionError):
        return False
    trace = error.__traceback__
    if trace is None:
        return False
    places = [
        (str(frame.f_globals.get("__name__")), frame.f_code.co_name)
        for frame, _ in traceback.walk_tb(trace)
    ]
    module, function = places[-1]
    if module == "pagraph.system.checks":
        is_checked = isinstance(error, ValueError) and any(
            ("pagraph.dgl.workload", name) in places for name in _OF_DGL
        )
    else:
        names = _CHECKS.get(module)
        is_checked = names is not None and (not names or function in names)
    if not is_checked:
        return False
    while trace.tb_next is not None:
        trace = trace.tb_next
    return dis.opname[trace.tb_frame.f_code.co_code[trace.tb_lasti]] == "RAISE_VARARGS"


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
