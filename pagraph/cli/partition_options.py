"""What ``pagraph partition`` is told, and what of it is refused before the long work."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .writing import check_outputs

if TYPE_CHECKING:
    from torch import Tensor

    from ..graph import Graph
    from ..partition import CacheTrial

__all__ = ["EVALUATION", "FEATURES", "FORMATS", "Outputs", "Settings", "Source"]

FORMATS = ("native", "dgl", "pagraph")
"""What parts can be written as: our own form, DGL's, or that of the original PaGraph."""
FEATURES = ("copy", "reference")
EVALUATION = ("source", "parts")

_MASK = "train_mask"


@dataclass(frozen=True)
class Source:
    """The graph, and which of its vertices are trained on."""

    folder: Path
    split: str
    train_fraction: float | None
    seed: int

    @property
    def title(self) -> str:
        """What the graph is called."""
        return self.folder.resolve().name

    def open(self) -> tuple[Graph, Tensor]:
        """The graph and the ids of its training vertices: those of the mask, or a share that is drawn.

        Raises:
            FileNotFoundError, FormatError: There is no graph.
            ValueError: There is no mask and no share, the share is not in (0, 1], or nothing is selected.
        """
        from ..datasets import open_graph
        from ..partition import draw_train, train_ids

        if self.train_fraction is not None and not 0 < self.train_fraction <= 1:
            raise ValueError(f"--train-fraction must be in (0, 1], got {self.train_fraction}")
        graph = open_graph(self.folder, split=self.split)
        if not graph.is_homogeneous:
            raise ValueError(f"DIR must hold a graph with one vertex type and one edge type, got {graph}")
        if self.train_fraction is not None:
            return graph, draw_train(graph, self.train_fraction, seed=self.seed)
        if _MASK not in graph.ndata:
            raise ValueError(f"--train-fraction must be given for a graph without {_MASK}, such as 0.1; got none")
        return graph, train_ids(graph)

    def to_json(self) -> dict[str, Any]:
        """What a report says of it."""
        return {
            "folder": str(self.folder),
            "split": self.split,
            "train_fraction": self.train_fraction,
            "seed": self.seed,
        }


@dataclass(frozen=True)
class Outputs:
    """Where the report goes, besides the terminal."""

    json: Path | None
    plot: Path | None

    def check(self) -> None:
        """Refuse what could not be written.

        Raises:
            ClickException: A path cannot be written, or is given twice.
            ValueError: The plot's ending is none that can be drawn.
            MissingDependencyError: A plot is wanted, without matplotlib.
        """
        from ..partition.reporting.plot import PLOT_FORMATS
        from ..report.plot import check_plot

        if self.plot is not None:
            check_plot(self.plot, PLOT_FORMATS)
        check_outputs(vars(self))


@dataclass(frozen=True)
class Settings:
    """How to divide, what to write, and how caches are tried out; see the options of the verb."""

    num_parts: int
    hops: int
    methods: tuple[str, ...]
    form: str
    features: str
    evaluation: str
    max_replication: float | None
    seed: int
    cache: str
    cache_policy: str
    fanout: tuple[int, ...] | None
    batch_size: int

    def check(self, *, compare: bool) -> None:
        """Refuse what needs no graph to be seen.

        Raises:
            ValueError, TypeError, UsageError: A setting breaks its rule, or does not go with another.
            MissingDependencyError: DGL is needed and not installed.
        """
        from ..partition.closure import MAX_HOPS
        from ..partition.methods import resolve_method

        if self.num_parts < 1:
            raise ValueError(f"--parts must be at least 1, got {self.num_parts}")
        if not 1 <= self.hops <= MAX_HOPS:
            raise ValueError(f"--hops must be from 1 to {MAX_HOPS}, got {self.hops}")
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"--seed must be in [0, 2**32), got {self.seed}")
        for method in self.methods:
            resolve_method(method)
        if len(set(self.methods)) < len(self.methods):
            raise click.UsageError(f"--method must name each method once, got {', '.join(self.methods)}")
        if not compare and len(self.methods) > 1:
            raise click.UsageError(f"--method must be given once without --compare, got {', '.join(self.methods)}")
        trial = self.trial()
        if trial is not None:
            trial.fanout_of(self.hops)
        if self.max_replication is not None:
            if not 0 < self.max_replication < math.inf:
                raise ValueError(f"--max-replication must be positive and finite, got {self.max_replication}")
            if self.fanout is not None and len(self.fanout) != self.hops:
                got = ",".join(map(str, self.fanout))
                raise ValueError(f"--fanout must have {self.hops} entries with --max-replication, got {got}")
        self._check_form()

    def check_graph(self, graph: Graph, train: Tensor) -> None:
        """Refuse what the graph has no room for, or lacks.

        Raises:
            ValueError: There are more parts than training vertices, a limit that these alone exceed, nothing to
                evaluate, or no labels for a form that has them.
        """
        if self.num_parts > len(train):
            got = f"got {self.num_parts}"
            raise ValueError(f"--parts must be at most the number of training vertices {len(train):,}, {got}")
        least = len(train) / graph.num_nodes
        if self.max_replication is not None and self.max_replication < least:
            got = f"got {self.max_replication}"
            raise ValueError(f"--max-replication must be at least {least:.4g}, the share of training vertices, {got}")
        masks = [graph.ndata[name] for name in ("val_mask", "test_mask") if name in graph.ndata]
        if self.evaluation == "parts" and not any(bool(mask.any()) for mask in masks):
            raise ValueError("--evaluation must be source for a graph without val_mask and test_mask, got parts")
        if self.form == "pagraph" and "label" not in graph.ndata:
            raise ValueError("--format must not be pagraph for a graph without labels, got pagraph")

    def trial(self) -> CacheTrial | None:
        """How caches are tried out; None: not at all.

        Raises:
            TypeError, ValueError: A setting breaks its rule.
        """
        from ..cache.budget import Budget
        from ..partition import CacheTrial

        if Budget.parse(self.cache) is None:
            return None
        return CacheTrial(self.cache, self.fanout, self.batch_size, self.cache_policy, seed=self.seed)

    def _check_form(self) -> None:
        if self.form != "native" and self.features != "copy":
            raise click.UsageError(f"--features must be copy with --format {self.form}, got {self.features}")
        if self.form == "pagraph" and self.evaluation != "source":
            raise click.UsageError(f"--evaluation must be source with --format pagraph, got {self.evaluation}")
        if self.form == "dgl":
            from ..dgl.graphbolt import import_dgl

            import_dgl()
