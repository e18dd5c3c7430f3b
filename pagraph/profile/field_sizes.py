"""Which fields a profile reads, and how wide they are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .budgets import RowSizes
from .checks import check_fields

if TYPE_CHECKING:
    from ..graph import Graph
    from ..indexed_rows import FieldValue

__all__ = ["FieldNames", "FieldSizes"]

FieldNames = Sequence[str] | Mapping[str, Sequence[str]]
"""Names of vertex fields; for several vertex types, by type."""


@dataclass(frozen=True)
class FieldSizes:
    """The fields that are read, by vertex type.

    Attributes:
        inputs: Vertex type to the bytes of a row of each field that is read for the input nodes.
        labels: The same of those that are read for the seeds.
        rows: What a vertex takes in a cache.
    """

    inputs: dict[str, dict[str, int]]
    labels: dict[str, dict[str, int]]
    rows: RowSizes

    @classmethod
    def of(cls, graph: Graph, fields: FieldNames | None, labels: FieldNames) -> FieldSizes:
        """Look the fields up.

        Raises:
            ValueError: The graph, or the type, does not have one; names without a type where there are several types.
            TypeError: Names are one string.
        """
        inputs, outputs = _widths(graph, fields or (), "fields"), _widths(graph, labels, "labels")
        row_bytes = {
            ntype: width
            for ntype in graph.node_types
            if (width := sum(inputs.get(ntype, {}).values()) + sum(outputs.get(ntype, {}).values()))
        }
        return cls(inputs, outputs, RowSizes(graph.num_nodes_by_type, row_bytes or None))

    @property
    def row_bytes(self) -> dict[str, int]:
        """Field, with its type where there are several, to the bytes of a row."""
        parts = (self.inputs, self.labels)
        return {self.key(t, name): width for part in parts for t, of in part.items() for name, width in of.items()}

    def key(self, ntype: str, name: str) -> str:
        """What a field is called in a curve: ``"feat"``, or ``"paper/feat"`` where there are several types."""
        return name if len(self.rows.num_nodes) == 1 else f"{ntype}/{name}"


def _widths(graph: Graph, names: FieldNames, argument: str) -> dict[str, dict[str, int]]:
    if isinstance(names, str):
        raise TypeError(f"{argument} must be a list of names, got {names!r}")
    if not isinstance(names, Mapping):
        if not names:
            return {}
        if len(graph.node_types) > 1:
            raise ValueError(f"{argument} must be a mapping from types among {graph.node_types}, got {list(names)}")
        names = {graph.only_node_type: names}
    for ntype, of_type in names.items():
        if ntype not in graph.node_types:
            raise ValueError(f"{argument} must be of vertex types among {graph.node_types}, got {ntype!r}")
        check_fields(graph, of_type, ntype if len(graph.node_types) > 1 else None, argument=argument)
    return {t: {name: _row_bytes(graph, t, name) for name in of_type} for t, of_type in names.items()}


def _row_bytes(graph: Graph, ntype: str, name: str) -> int:
    values: FieldValue = graph.node_fields(ntype)[name]
    return math.prod(values.shape[1:]) * values.element_size()
