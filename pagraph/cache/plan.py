"""CachePlan: what a cache holds, in one line."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass

import torch

__all__ = ["CachePlan", "FieldPlan"]


@dataclass(frozen=True)
class FieldPlan:
    """The part of one field.

    Attributes:
        key: The field.
        rows: Vertices whose rows are cached.
        nbytes: Bytes of these rows.
        tier: Where its other rows are read from.
    """

    key: Hashable
    rows: int
    nbytes: int
    tier: str

    def __repr__(self) -> str:
        return f"{self.key!r}: {self.rows} rows, {_size(self.nbytes)}, others on {self.tier}"


@dataclass(frozen=True)
class CachePlan:
    """What a cache holds of the vertices of one type.

    Attributes:
        device: Where the rows are.
        num_nodes: Number of vertices.
        budget_bytes: What it could take, together with those of the other types.
        table_bytes: Bytes of the table from vertex to place.
        fields: One part per cached field.
        node_type: The vertex type; None where there is only one.
    """

    device: torch.device
    num_nodes: int
    budget_bytes: int
    table_bytes: int
    fields: tuple[FieldPlan, ...]
    node_type: str | None = None

    def __iter__(self) -> Iterator[FieldPlan]:
        return iter(self.fields)

    @property
    def rows(self) -> int:
        """Vertices of which at least one field is cached."""
        return max((f.rows for f in self.fields), default=0)

    @property
    def nbytes(self) -> int:
        """Bytes of all rows and the table."""
        return self.table_bytes + sum(f.nbytes for f in self.fields)

    def __repr__(self) -> str:
        parts = "; ".join(map(repr, self.fields)) or "no field"
        vertices = "vertices" if self.node_type is None else f"{self.node_type!r} vertices"
        return (
            f"CachePlan({self.rows} of {self.num_nodes} {vertices} on {self.device}, "
            f"{_size(self.nbytes)} of {_size(self.budget_bytes)}; {parts})"
        )


def _size(nbytes: int) -> str:
    """Bytes for people.

    >>> _size(3 << 19)
    '1.5 MiB'
    """
    size, unit = float(nbytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.4g} {unit}"
