"""Settings that verbs make from their options without torch, and hand to their work."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..options.names import check_compared
from ..system.budget import curve_budget

if TYPE_CHECKING:
    from ..graph.graph import Graph

_FEATURES = "feat"


def _documented(text: str, default: Any = None) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class Source:
    """Graph folder, and which of its vertices are trained on."""

    folder: Path
    seed: int
    split: str
    train_fraction: float | None
    node_type: str | None = None

    @property
    def title(self) -> str:
        """Name of the graph in plots."""
        return self.folder.resolve().name

    def to_json(self) -> dict[str, Any]:
        """The source as a JSON object."""
        return {**vars(self), "folder": str(self.folder)}


@dataclass(frozen=True)
class PartitionFiles:
    """Files that the report is written to, besides the terminal."""

    json: Path | None = _documented("Write the report to this file.")
    plot: Path | None = _documented("Draw the report into this file: .png, .svg or .pdf.")


@dataclass(frozen=True)
class ProfileFiles:
    """Files that results are written to, besides the terminal."""

    json: Path | None = _documented("Write all figures to this file.")
    plot: Path | None = _documented("Draw the curves into this file: .png or .svg.")
    html: Path | None = _documented("Write a report for the browser to this file.")
    trace: Path | None = _documented("With --measure: write a timeline for Perfetto to this file.")


@dataclass(frozen=True)
class Compared:
    """Policies, budgets and fields of a curve."""

    policies: tuple[str, ...] | None = _documented(
        "Comma-separated names: auto, adaptive, degree, presample[:K], vip, random, and for "
        "comparison oracle, ideal[:N].  [default: auto, degree, presample, vip, random, oracle]"
    )
    budgets: tuple[str, ...] | None = _documented(
        "Comma-separated rows (1000), shares (10%) or bytes (2GiB).  [default: 20 from 1% to 100%]"
    )
    fields: tuple[str, ...] | None = _documented(
        "Fields read for the input nodes.  [default: feat, if there is one]"
    )
    labels: tuple[str, ...] = _documented("Fields read for the seeds.", ())

    def __post_init__(self) -> None:
        # The curve checks the same, but only after torch was imported.
        for policy in self.policies or ():
            check_compared(policy)
        for budget in self.budgets or ():
            curve_budget(budget)

    def inputs(self, graph: Graph) -> tuple[str, ...]:
        """The input fields; by default ``feat``, if there is one."""
        if self.fields is not None:
            return self.fields
        if any(_FEATURES in graph.node_fields(ntype) for ntype in graph.node_types):
            return (_FEATURES,)
        return ()


def check_json(json_file: Path | None) -> None:
    """Refuse a file for the results in a folder that does not exist."""
    if json_file is not None and not json_file.parent.is_dir():
        raise click.BadParameter(f"--json must be in a folder that exists, got {json_file}")
