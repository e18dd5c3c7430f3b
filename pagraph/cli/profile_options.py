"""What ``pagraph profile`` is told: its settings, where its results go, and which vertices and fields they mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .writing import check_outputs

if TYPE_CHECKING:
    from torch import Tensor

    from ..graph import Graph
    from ..profile.budgets import FieldNames

    Seeds = Tensor | Mapping[str, Tensor]

_MASK = "train_mask"

__all__ = ["Outputs", "Settings", "choose_fields", "choose_seeds"]


@dataclass(frozen=True)
class Outputs:
    """Where the results go, besides the terminal."""

    json: Path | None
    plot: Path | None
    html: Path | None
    trace: Path | None

    def check(self) -> None:
        """Refuse what could not be written, before the long work.

        Raises:
            ClickException: A path cannot be written, or is given twice.
            MissingDependencyError: A plot is wanted, without matplotlib.
        """
        from ..report.plot import check_plot

        if self.plot is not None:
            check_plot(self.plot)
        check_outputs(vars(self))


@dataclass(frozen=True)
class Settings:
    """How to sample and what to compare; see the options of the verb."""

    fanout: tuple[int, ...]
    batch_size: int
    epochs: int
    policies: tuple[str, ...] | None
    budgets: tuple[str, ...] | None
    fields: tuple[str, ...] | None
    labels: tuple[str, ...]
    seed: int
    device: str
    num_workers: int

    def check(self) -> None:
        """Refuse what the library would notice late, or not at all.

        Raises:
            ValueError: A setting breaks its rule.
        """
        from ..train.options import TrainOptions

        TrainOptions(  # the same rules, in the same words
            fanout=self.fanout,
            batch_size=self.batch_size,
            epochs=self.epochs,
            seed=self.seed,
            device=self.device,
            num_workers=self.num_workers,
        )


def choose_seeds(graph: Graph, node_type: str | None, fraction: float | None, *, seed: int) -> Seeds:
    """The vertices to train on, by type where the graph has several.

    Args:
        graph: The graph.
        node_type: Their type. Default: the types with a ``train_mask``, or the only one.
        fraction: Share of them to draw instead.
        seed: Of the drawing.

    Raises:
        ValueError: There is no such type, or none with a mask; as :func:`pagraph.profile.training_seeds`.
    """
    from ..profile import training_seeds

    if fraction is not None and not 0 < fraction <= 1:
        raise ValueError(f"--train-fraction must be in (0, 1], got {fraction}")
    types = graph.node_types
    if node_type is not None and node_type not in types:
        raise ValueError(f"--node-type must be one of {', '.join(types)}, got {node_type!r}")
    if len(types) == 1:
        if fraction is None and _MASK not in graph.node_fields(types[0]):
            raise ValueError(f"--train-fraction must be given for a graph without {_MASK}, such as 0.1; got none")
        return training_seeds(graph, fraction=fraction, seed=seed)
    masked = [ntype for ntype in types if _MASK in graph.node_fields(ntype)]
    chosen = masked if node_type is None else [node_type]
    if not chosen:
        raise ValueError(f"--node-type must be given where no vertices have a {_MASK}: {', '.join(types)}")
    if fraction is None and chosen[0] not in masked:
        raise ValueError(f"--train-fraction must be given where {chosen[0]!r} vertices have no {_MASK}; got none")
    return {ntype: training_seeds(graph, node_type=ntype, fraction=fraction, seed=seed) for ntype in chosen}


def choose_fields(graph: Graph, option: str, names: tuple[str, ...]) -> FieldNames:
    """The named fields: of all vertex types that have them, if there are several, or of that of ``TYPE/NAME``.

    Raises:
        ValueError: No type has such a field.
    """
    if len(graph.node_types) == 1:
        return names
    of_types = {ntype: graph.node_fields(ntype) for ntype in graph.node_types}
    chosen: dict[str, list[str]] = {}
    for name in names:
        fits = [(t, field) for t, fields in of_types.items() for field in fields if name in (field, f"{t}/{field}")]
        if not fits:
            have = [f"{t}/{field}" for t, fields in of_types.items() for field in fields]
            raise ValueError(f"--{option} must be among {', '.join(have)}, got {name!r}")
        for ntype, field in fits:
            chosen.setdefault(ntype, []).append(field)
    return chosen
