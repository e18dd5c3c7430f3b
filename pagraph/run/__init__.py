"""``pagraph run script.py``: runs unchanged DGL and PyG scripts with our loaders, and measures.

Only this room knows the names of both frameworks' loaders. It does not use the engine, and the
faces do not import it.
"""

from .summary import Summary

__all__ = ["Summary"]

__dir__ = __all__.copy
