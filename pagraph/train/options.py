"""Options of a training run, checked where they enter."""

from __future__ import annotations

import importlib.util
import math
from dataclasses import dataclass, field
from typing import Any

import torch

from ..engine import PipelineOptions, parse_lookahead
from ..features.narrow import parse_cache_dtype
from ..ranking.policies import resolve_policy
from ..system.budget import Budget, memory_budget
from ..system.checks import as_integer

__all__ = [
    "COMPRESSIONS",
    "EVALUATION_PART",
    "FRAMEWORKS",
    "LOADERS",
    "MODELS",
    "TASKS",
    "TIMEOUT",
    "TrainOptions",
]

TASKS = ("nodes", "links")
MODELS = ("sage", "gcn", "gat")
FRAMEWORKS = {"dgl": "dgl", "pyg": "torch_geometric"}
"""Names of what layers and baselines may be taken from, and the packages they are in; the first
installed is taken."""
LOADERS = ("pagraph", *FRAMEWORKS)
COMPRESSIONS = ("none", "fp16", "powersgd")
EVALUATION_PART = 4
"""Evaluation has one part in this many of the memory, and the loader the others."""
TIMEOUT = 600.0
"""Seconds that a process waits for the others: the longest honest wait is for another's cache to
fill."""


def _documented(default: Any, text: str, **metadata: Any) -> Any:
    """A field that is also an option of ``pagraph train``; see ``pagraph.cli.options``."""
    return field(default=default, metadata={"help": text, **metadata})


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """Model, loader and schedule of a training run; the options of ``pagraph train``, with their
    defaults.

    The ``metadata["help"]`` of a field explains it. ``layers`` of made options is ``"auto"`` only
    where no framework is installed. ``loader`` is ``"pagraph"``, or for that framework's own
    ``"dgl"`` or ``"pyg"``.

    Raises:
        ValueError: An option breaks its rule.
    """

    task: str = _documented(
        "nodes", "Classify vertices, or predict links between them.", choices=TASKS
    )
    model: str = _documented(
        "sage",
        "GraphSAGE with mean aggregation (of several types: R-GCN), GCN, or GAT.",
        choices=MODELS,
    )
    layers: str = _documented(
        "auto",
        "Framework whose layers are trained. auto: that of the loader compared with, or DGL, or "
        "where it is not "
        "installed PyG.",
        choices=("auto", *FRAMEWORKS),
    )
    loader: str = "pagraph"
    fanout: tuple[int, ...] = _documented(
        (10, 10),
        "Neighbours sampled per hop; the last serves the seeds, -1 takes all. One layer each; with "
        "pre-aggregated "
        "features there is one more.",
    )
    batch_size: int = _documented(1000, "Seeds per mini-batch, of each process.")
    epochs: int = _documented(20, "Passes over the training vertices.")
    hidden: int = _documented(64, "Width of the hidden layers.")
    heads: int = _documented(
        4, "Attention heads of GAT's hidden layers, which share their width; the last has one."
    )
    lr: float = _documented(0.003, "Learning rate of Adam.")
    dropout: float = _documented(0.5, "Share of hidden values dropped.")
    weight_decay: float = _documented(5e-4, "L2 penalty of Adam.")
    row_normalize: bool = _documented(
        False, "Divide each vertex's features by their sum, usual for bags of words."
    )
    device: str = _documented(
        "auto", "auto, cpu, or cuda[:N]; of several processes each takes its own."
    )
    cache: str = _documented(
        "auto", "Budget of the feature cache: 2GiB, bytes, a share such as 10%, or auto."
    )
    cache_policy: str = _documented(
        "auto", "What the cache holds: auto, adaptive, degree, presample[:K], vip or random."
    )
    cache_dtype: str | None = _documented(
        None, "Cache float features as float16, bfloat16 or int8."
    )
    num_workers: int = _documented(
        0, "Sampling threads, 0: the loader's choice; DGL's and PyG's loaders: processes."
    )
    prefetch: int | None = _documented(None, "Batches made ahead.")
    lookahead: str = _documented(
        "auto", "Batches sampled ahead, to read what they miss of a file once; 0 for none."
    )
    memory: str = _documented(
        "auto",
        "Host memory of each process: 4GiB or bytes; three quarters are its loader's. auto: what "
        "is free.",
    )
    eval_every: int = _documented(
        1, "Epochs between evaluations; the last epoch is always evaluated."
    )
    seed: int = _documented(0, "Of weights, dropout, shuffling and sampling.")
    grad_compression: str = _documented(
        "none", "How several processes send gradients.", choices=COMPRESSIONS
    )

    def __post_init__(self) -> None:
        choices = {
            "task": TASKS,
            "model": MODELS,
            "loader": LOADERS,
            "grad_compression": COMPRESSIONS,
        }
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise ValueError(
                    f"{name} must be one of {', '.join(known)}, got {getattr(self, name)!r}"
                )
        if self.layers not in ("auto", *FRAMEWORKS):
            raise ValueError(
                f"layers must be one of auto, {', '.join(FRAMEWORKS)}, got {self.layers!r}"
            )
        if self.layers == "auto":
            object.__setattr__(
                self, "layers", self.loader if self.loader in FRAMEWORKS else _installed()
            )
        if self.loader not in ("pagraph", self.layers):
            raise ValueError(
                f"layers must be {self.loader!r} with {self.loader}'s loader, got {self.layers!r}"
            )
        if not self.fanout or any(k != -1 and k < 1 for k in self.fanout):
            raise ValueError(
                f"fanout must be one or more of -1 or at least 1, got {list(self.fanout)}"
            )
        for name in ("batch_size", "epochs", "hidden", "heads", "eval_every"):
            as_integer(name, getattr(self, name), least=1)
        if self.model == "gat" and self.hidden % self.heads:
            raise ValueError(
                f"hidden must be a multiple of heads, {self.heads}, for GAT, got {self.hidden}"
            )
        for name in ("num_workers", "prefetch"):
            as_integer(name, getattr(self, name) or 0, least=0)
        if not (math.isfinite(self.lr) and self.lr > 0):
            raise ValueError(f"lr must be positive and finite, got {self.lr}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {self.dropout}")
        if not (math.isfinite(self.weight_decay) and self.weight_decay >= 0):
            raise ValueError(f"weight_decay must be at least 0 and finite, got {self.weight_decay}")
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"seed must be in [0, 2**32), got {self.seed}")
        Budget.parse(self.cache)
        memory_budget(self.memory)
        self.batches_ahead()
        resolve_policy(self.cache_policy)
        parse_cache_dtype(self.cache_dtype)
        self.torch_device()

    @property
    def loader_memory(self) -> int | None:
        """Bytes of ``memory`` that are the loader's, three quarters; evaluation has the rest. None:
        what is free."""
        memory = memory_budget(self.memory)
        return None if memory is None or memory.limit is None else max(1, memory.limit * 3 // 4)

    @property
    def evaluation_memory(self) -> int | None:
        """Bytes of ``memory`` that evaluation may take. None: half of what is free."""
        memory = memory_budget(self.memory)
        return (
            None
            if memory is None or memory.limit is None
            else max(1, memory.limit // EVALUATION_PART)
        )

    def batches_ahead(self) -> int | str:
        """``lookahead`` as the loaders take it: "auto" or a number; else ValueError."""
        text = self.lookahead.strip()
        ahead = int(text) if text.removeprefix("-").isdecimal() else text
        PipelineOptions(lookahead=parse_lookahead(ahead))
        return ahead

    def torch_device(self) -> torch.device:
        """Resolve the device; ValueError if its name is not one, or there is no such device
        here."""
        has_cuda = torch.cuda.is_available()
        if self.device == "auto":
            return (
                torch.device("cuda", torch.cuda.current_device())
                if has_cuda
                else torch.device("cpu")
            )
        try:
            device = torch.device(self.device)
        except (RuntimeError, TypeError, ValueError):
            raise ValueError(f"device must be auto, cpu or cuda[:N], got {self.device!r}") from None
        if device.type not in ("cpu", "cuda"):
            raise ValueError(f"device must be auto, cpu or cuda[:N], got {self.device!r}")
        count = torch.cuda.device_count() if has_cuda else 0
        if device.type == "cuda" and (device.index or 0) >= count:
            raise ValueError(
                f"device must be present ({count} CUDA devices here), got {self.device!r}"
            )
        return device


def _installed() -> str:
    """The first framework that is installed, or "auto"."""
    return next(
        (name for name, package in FRAMEWORKS.items() if importlib.util.find_spec(package)), "auto"
    )
