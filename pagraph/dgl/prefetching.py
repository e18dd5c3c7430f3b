"""A sampler's ``prefetch_*`` arguments as (type, column name) pairs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .graphbolt import import_dgl

dgl = import_dgl()

__all__ = ["edge_columns", "node_columns"]


def node_columns(graph: Any, argument: str, names: Any) -> list[tuple[str, str]]:
    """(vertex type, name) of every column that a list, or a mapping from type to lists, asks for.

    Raises:
        AssertionError: A list, and the graph has several vertex types (DGL's own type).
        DGLError: A type that the graph does not have.
    """
    pairs = _pairs(argument, names, list(graph.ntypes))
    for ntype, _ in pairs:
        if ntype not in graph.ntypes:
            raise dgl.DGLError(f"{argument} must name types of the graph, {list(graph.ntypes)}; got {ntype!r}")
    return pairs


def edge_columns(graph: Any, argument: str, names: Any) -> list[tuple[Any, str]]:
    """(canonical edge type, name) of every column; types may be given by their middle names.

    Raises:
        AssertionError, DGLError: As for :func:`node_columns`.
    """
    pairs = _pairs(argument, names, list(graph.canonical_etypes))
    return [(graph.to_canonical_etype(etype), name) for etype, name in pairs]


def _pairs(argument: str, names: Any, types: list[Any]) -> list[tuple[Any, str]]:
    if isinstance(names, Mapping):
        return [(type_, name) for type_, of_type in names.items() for name in of_type]
    if names and len(types) > 1:
        raise AssertionError(f"{argument} must be a dict from type to names for a graph of several types, {types}")
    return [(types[0], name) for name in names or []]
