"""Unchanged DGL and PyG scripts, run with our loaders and measured: ``pagraph run script.py``.

The one room that knows the names of both frameworks' loaders. It knows nothing of the engine, and
the faces do not know it.
"""

from .summary import Summary

__all__ = ["Summary"]

__dir__ = __all__.copy
