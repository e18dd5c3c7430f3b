"""Options of partitioning, and of a cache trial on the parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..system.budget import Budget
from ..system.checks import as_integer, check_batch_size, check_fanout
from .names import check_method, check_policy

MAX_HOPS = 253
"""Largest number of hops. A vertex's hop is one byte, and two of its values have other meanings."""
FEATURES = ("copy", "reference")
"""Where parts have wide features: in their own files, or in those of the source."""
FANOUT = 10
"""Default number of neighbours drawn in every hop."""
PLACED_BATCH = 1000
"""Default batch size, in seeds, that vertices are placed for."""
MINIMIZED = ("rows", "cut")
"""What a placement of all vertices minimizes: rows that an epoch fetches, or edges cut."""
_EVALUATION = ("source", "parts")


def check_minimize(value: str) -> None:
    """Raise ValueError unless ``value`` is one of ``MINIMIZED``."""
    if value not in MINIMIZED:
        raise ValueError(f"minimize must be one of {', '.join(MINIMIZED)}, got {value!r}")


@dataclass(frozen=True, kw_only=True)
class PartitionOptions:
    """Options of ``pagraph partition`` and of :func:`partition_graph`, which explains them.

    Raises:
        ValueError: An option breaks its rule.
    """

    num_parts: int = field(
        metadata={"help": "Number of parts, one per process.", "flags": ("-k", "--parts")}
    )
    hops: int = field(default=2, metadata={"help": "Number of sampled layers of the model."})
    method: str = "auto"
    evaluation: str = field(
        default="source",
        metadata={
            "help": (
                "Validate and test on the whole graph, or on the parts, which then hold all "
                "that evaluation needs."
            ),
            "choices": _EVALUATION,
        },
    )
    max_replication: float | None = field(
        default=None,
        metadata={
            "help": "Drop the halo vertices that are drawn least, until the replication factor is "
            "at most this."
        },
    )
    seed: int = field(default=0, metadata={"help": "Random seed."})
    fanout: Sequence[int] | None = None
    node_type: str | None = field(
        default=None,
        metadata={
            "help": (
                "Type of the training vertices, if there are several.  [default: that with "
                "train_mask]"
            )
        },
    )

    # All that can be checked without a graph, which may take minutes to open.
    def __post_init__(self) -> None:
        check_method(self.method)
        as_integer("num_parts", self.num_parts, least=1)
        if not 1 <= self.hops <= MAX_HOPS:
            raise ValueError(f"hops must be from 1 to {MAX_HOPS}, got {self.hops}")
        as_integer("seed", self.seed, least=0)
        if self.evaluation not in _EVALUATION:
            raise ValueError(
                f"evaluation must be one of {', '.join(_EVALUATION)}, got {self.evaluation!r}"
            )


@dataclass(frozen=True)
class CacheTrial:
    """Settings of a cache trial, which samples one real epoch without reading any feature.

    Args:
        budget: Cache of each process, whose GPU has its own memory: bytes (``"2GiB"``) or a share
            (0.1, ``"10%"``) of the rows of the whole graph. See
            :class:`pagraph.system.budget.Budget`.
        fanout: Neighbours sampled per hop; the last entry serves the seeds. None: 10 in every hop.
        batch_size: Seeds per batch.
        policy: Cache policy that ranks the vertices.
        fields: The cached fields, whose widths turn bytes into rows. Types without any of them are
            not read. None: ``feat``, if there is such a field.
        seed: Seed of order and sampling.

    Raises:
        TypeError, ValueError: A setting breaks its rule.
    """

    budget: Any = field(
        default="10%",
        metadata={
            "help": "Report the hit rate of a cache of this size on each part: 2GiB, or a share of "
            "all rows; 0 skips it.",
            "flags": ("--cache",),
        },
    )
    fanout: tuple[int, ...] | None = field(
        default=None,
        metadata={"help": "Neighbours that training samples per hop.  [default: 10 in each]"},
    )
    batch_size: int = field(default=PLACED_BATCH, metadata={"help": "Seeds per mini-batch."})
    policy: str = field(
        default="auto",
        metadata={
            "help": "auto, adaptive, degree, presample[:K], vip or random.",
            "flags": ("--cache-policy",),
        },
    )
    fields: tuple[str, ...] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        budget = Budget.parse(self.budget)
        # "auto" is what is free on this machine; the report is for others.
        if budget is None or budget.is_auto:
            raise ValueError(
                'cache must be bytes ("2GiB") or a share ("10%") to try it out, got '
                f"{self.budget!r}"
            )
        check_policy(self.policy)
        check_batch_size(self.batch_size)
        for fanout in self.fanout or ():
            check_fanout(fanout, replace=False)
        # `--fanout ,` gives an empty one, which would be taken for the default.
        if self.fanout is not None and not self.fanout:
            raise ValueError("fanout must have at least 1 entry, got 0")

    def fanout_of(self, hops: int) -> tuple[int, ...]:
        """The fan-out on parts of ``hops`` hops; ValueError if it has more entries."""
        if self.fanout is not None and len(self.fanout) > hops:
            raise ValueError(
                f"fanout must have at most {hops} entries for {hops} hops, got {list(self.fanout)}"
            )
        return self.fanout or (FANOUT,) * hops

    @property
    def share(self) -> float | None:
        """Budget as a share of the rows of the whole graph; None where it is in bytes."""
        return self.size.share

    @property
    def size(self) -> Budget:
        """The budget, parsed."""
        budget = Budget.parse(self.budget)
        assert budget is not None
        return budget
