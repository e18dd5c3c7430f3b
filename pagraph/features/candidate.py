"""Candidate: a field that is worth caching, as it is now; whose rows it has and when these are read."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from ..cache.policy import RowType
from .device import DeviceFeature
from .field import Field, Snapshot
from .host import HostFeature
from .narrow import NarrowFeature

__all__ = ["Candidate", "Role"]


class Role(enum.Flag):
    """Which rows of a batch are read: a field may be both.

    INPUT: rows of the input nodes, or of the edges of all blocks. OUTPUT: rows of the seeds.
    """

    INPUT = enum.auto()
    OUTPUT = enum.auto()


@dataclass(frozen=True, eq=False)
class Candidate:
    """A field that is worth caching, as it is now.

    Attributes:
        field: The field.
        type: Whose rows it has.
        role: Which of them are read.
        seen: The values.
        base: The rows.
        stored: The rows as the cache keeps them.
    """

    field: Field
    type: RowType
    role: Role
    seen: Snapshot
    base: HostFeature | DeviceFeature
    stored: HostFeature | DeviceFeature | NarrowFeature

    @property
    def cached_bytes(self) -> int:
        """Bytes that one row takes in the cache: the only place that says so."""
        return self.stored.row_bytes
