"""Diagnosis of the installed PyG, for ``pagraph doctor``."""

from __future__ import annotations

import pagraph.pyg as face

from .package import import_pyg


def sampling_paths() -> dict[str, str]:
    """Names that ``pagraph.pyg`` offers, to whose code runs and why."""
    theirs = import_pyg().loader
    ours = [name for name in theirs.__all__ if getattr(face, name) is not getattr(theirs, name)]
    return {
        **dict.fromkeys(ours, "pagraph's kernels"),
        "pyg-lib, torch-sparse": "not needed by these",
        "other names of torch_geometric.loader": "PyG's own, unchanged",
        "neighbor_sampler=...": "its own code, in the training loop's thread unless num_workers is "
        "set",
        "a subclass with its own filter_fn or collate_fn": "pagraph's kernels in torch's workers, "
        "without a cache",
    }
