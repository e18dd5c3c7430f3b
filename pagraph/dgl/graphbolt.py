"""Import of DGL with any torch, with a placeholder for a GraphBolt binary that cannot load."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

from .._graphbolt import GraphBoltMissingError, before_dgl, is_placeholder
from ..errors import MissingDependencyError, how_to_install

__all__ = ["GraphBoltMissingError", "import_dgl", "is_placeholder"]


def import_dgl() -> Any:
    """Import DGL, with a placeholder for GraphBolt if its binary for this torch is missing.

    Raises:
        MissingDependencyError: DGL or something it imports is not installed.
    """
    if "dgl" not in sys.modules:
        spec = importlib.util.find_spec("dgl")
        if spec is None:
            raise MissingDependencyError(
                f"pagraph.dgl needs DGL, which is not installed: {how_to_install('dgl')}"
            )
        before_dgl(spec)
    try:
        import dgl
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"DGL needs the package {error.name!r}, which is not installed: {how_to_install('dgl')}"
        ) from error
    return dgl
