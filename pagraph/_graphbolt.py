"""What ``import dgl`` needs: a backend, and a placeholder for a GraphBolt binary that cannot load.

This module does not import DGL.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from .errors import MissingDependencyError

_NAME = "dgl.graphbolt"


class GraphBoltMissingError(MissingDependencyError):
    """GraphBolt was used, but DGL has no binary of it for this torch."""


class _Placeholder(ModuleType):
    """Replaces GraphBolt in ``sys.modules``; every use of it raises what is missing."""

    class FusedCSCSamplingGraph:
        """A class for ``isinstance`` in ``dgl.distributed``; no object of it can be made."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            raise _missing("FusedCSCSamplingGraph")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise _missing(name)


def _missing(name: str) -> GraphBoltMissingError:
    import torch

    return GraphBoltMissingError(
        f"dgl.graphbolt.{name} needs DGL's GraphBolt binary, which this DGL does not have for "
        f"torch {torch.__version__}; everything outside dgl.graphbolt works"
    )


def is_placeholder(module: ModuleType) -> bool:
    """Whether a module is the placeholder for GraphBolt."""
    return isinstance(module, _Placeholder)


def before_dgl(spec: ModuleSpec) -> None:
    """Choose DGL's backend, and install the placeholder if the DGL of ``spec`` needs it.

    Without a backend in the environment or in its configuration, DGL prints one on stdout and
    writes ``~/.dgl``, and cannot be imported where that fails. Child processes inherit it.

    A DGL has a GraphBolt binary for each of a few torch versions, and cannot be imported with any
    other: DGL 2.1's wheel for 2.0 to 2.2, all of them older than what we need.
    """
    os.environ.setdefault("DGLBACKEND", "pytorch")
    if not _graphbolt_loads(spec):
        _forget_failed_import()
        placeholder = _Placeholder(
            _NAME, "Placeholder: this DGL has no GraphBolt for the torch in use."
        )
        placeholder.__spec__ = ModuleSpec(_NAME, None)
        sys.modules[_NAME] = placeholder


def _graphbolt_loads(spec: ModuleSpec) -> bool:
    """Whether DGL has a GraphBolt binary for this torch."""
    import torch

    version = torch.__version__.split("+", maxsplit=1)[0]
    folder = Path(spec.origin or "").parent / "graphbolt"
    return any(folder.glob(f"*graphbolt_pytorch_{version}.*"))


def _forget_failed_import() -> None:
    """Remove modules that a failed import of DGL left in this process."""
    for name in [n for n in sys.modules if n.startswith("dgl.")]:
        del sys.modules[name]
