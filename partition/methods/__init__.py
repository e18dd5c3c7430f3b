"""How training vertices are divided: the methods, and their contract.

A method is a function ``(graph, train, num_parts, hops, *, seed=0, progress=None) -> parts``:

- ``graph``: one vertex type and one edge type; its arrays may be mapped from a file, and are never changed.
- ``train``: distinct ids of the training vertices, ascending, shape ``(n,)``, int64, ``n >= num_parts``.
- ``num_parts``: at least 1; ``hops``: at least 1.
- the result: the part of each training vertex, shape ``(n,)``, int32, all in ``[0, num_parts)``, no part without any.
  It is a function of the arguments alone: not of the number of threads, nor of any global generator.
- ``progress``: called with the work done so far and the whole of it.
"""

from .registry import METHODS, Method, resolve_method

__all__ = ["METHODS", "Method", "resolve_method"]
