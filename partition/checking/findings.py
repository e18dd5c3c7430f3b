"""What a check of a partition found."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import FormatError

__all__ = ["Finding", "Verification"]


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        check: "files", "vertices", "edges", "fields", "training" or "evaluation".
        part: The part it is about; None: all of them.
        message: What must be so, and what is.
    """

    check: str
    part: int | None
    message: str

    def __str__(self) -> str:
        return self.message if self.part is None else f"part {self.part}: {self.message}"


@dataclass(frozen=True)
class Verification:
    """The outcome for a whole partition.

    Attributes:
        num_parts: Number of parts.
        train: Number of training vertices found in the parts.
        vertices: Number of vertices of all parts, each compared with the source.
        edges: Number of edges of all parts, each compared with the source.
        missing: In-edges that the source has and parts do without, because replication was limited.
        findings: What is wrong; empty if all is as it must be.
    """

    num_parts: int
    train: int
    vertices: int
    edges: int
    missing: int
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether the partition is proven right."""
        return not self.findings

    def raise_if_wrong(self) -> None:
        """Turn findings into an error.

        Raises:
            FormatError: There is at least one.
        """
        if self.findings:
            more = len(self.findings) - 1
            raise FormatError(f"{self.findings[0]}{f' (and {more} more)' if more else ''}")
