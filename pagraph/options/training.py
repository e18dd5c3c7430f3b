"""Options of a training run."""

from __future__ import annotations

import importlib.util
import math
import re
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from ..system.budget import Budget, memory_budget
from ..system.checks import as_integer
from .names import check_policy, form_name
from .pipeline import PipelineOptions, parse_lookahead

if TYPE_CHECKING:
    import torch

TASKS = ("nodes", "links")
MODELS = ("sage", "gcn", "gat")
FRAMEWORKS = {"dgl": "dgl", "pyg": "torch_geometric"}
"""Framework whose layers and loaders can be used, to its package. The first installed one is the
default."""
LOADERS = ("pagraph", *FRAMEWORKS)
COMPRESSIONS = ("none", "fp16", "powersgd")
EVALUATION_PART = 4
"""Evaluation gets one part in this many of the memory. The loader, whose cache can use any amount,
gets the others."""
TIMEOUT = 600.0
"""Seconds that a process waits for the others. The longest wait without a failure is for another
process to fill its cache."""


def _documented(default: Any, text: str, **metadata: Any) -> Any:
    """A field that is also an option of ``pagraph train``; see ``pagraph.cli.options``."""
    return field(default=default, metadata={"help": text, **metadata})


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """Model, loader and schedule of a training run: the options of ``pagraph train``.

    The ``metadata["help"]`` of a field explains it. ``layers`` is resolved on construction, and
    stays ``"auto"`` only where no framework is installed. ``loader`` is ``"pagraph"``, or ``"dgl"``
    or ``"pyg"`` for that framework's own.

    Raises:
        ValueError: An option breaks its rule.
    """

    task: str = _documented(
        "nodes", "What to learn: classes of vertices, or links between them.", choices=TASKS
    )
    model: str = _documented(
        "sage",
        "GraphSAGE with mean aggregation (on several types: R-GCN), GCN, or GAT.",
        choices=MODELS,
    )
    layers: str = _documented(
        "auto",
        "Framework of the layers. auto: that of --baseline or --compare, PyG for a task in time, "
        "else DGL, else PyG.",
        choices=("auto", *FRAMEWORKS),
    )
    loader: str = "pagraph"
    ignore_time: bool = _documented(
        False,
        "Ignore the field time of the seeds; by default nothing of a batch is later than its seed.",
    )
    fanout: tuple[int, ...] = _documented(
        (10, 10),
        "Neighbours sampled per hop; the last serves the seeds, -1 takes all. One layer per hop; "
        "pre-aggregated features add one.",
    )
    batch_size: int = _documented(1000, "Seeds per mini-batch in each process.")
    epochs: int = _documented(20, "Passes over the training vertices.")
    hidden: int = _documented(64, "Width of the hidden layers.")
    heads: int = _documented(
        4, "Attention heads of GAT's hidden layers, which divide their width; the last has one."
    )
    lr: float = _documented(0.003, "Learning rate of Adam.")
    dropout: float = _documented(0.5, "Dropout probability of hidden values.")
    weight_decay: float = _documented(5e-4, "L2 penalty of Adam.")
    row_normalize: bool = _documented(
        False, "Divide each vertex's features by their sum, as is usual for bags of words."
    )
    device: str = _documented(
        "auto", "auto, cpu, or cuda[:N]; each of several processes takes a GPU."
    )
    cache: str = _documented(
        "auto", "Size of the feature cache: 2GiB, bytes, a share such as 10%, or auto."
    )
    cache_policy: str = _documented(
        "auto", "Which rows to cache: auto, adaptive, degree, presample[:K], vip or random."
    )
    cache_dtype: str | None = _documented(
        None, "Cache float features as float16, bfloat16 or int8."
    )
    num_workers: int = _documented(
        0, "Sampling threads; 0 lets the loader choose. DGL's and PyG's loaders: processes."
    )
    prefetch: int | None = _documented(None, "Batches prepared ahead.")
    lookahead: str = _documented(
        "auto",
        "Batches sampled ahead, so that rows missing from the cache are read once; 0 for none.",
    )
    memory: str = _documented(
        "auto",
        "Host memory of each process: 4GiB or bytes, three quarters for its loader; auto: all that "
        "is free.",
    )
    eval_every: int = _documented(
        1, "Epochs between evaluations; the last epoch is always evaluated."
    )
    train_fraction: float | None = _documented(
        None,
        "Train on a random share of the labelled vertices, for graphs without masks; the others "
        "validate and test in halves.",
    )
    seed: int = _documented(0, "Random seed of weights, dropout, shuffling and sampling.")
    grad_compression: str = _documented(
        "none", "Compression of the gradients that processes exchange.", choices=COMPRESSIONS
    )

    def __post_init__(self) -> None:
        self._check_choices()
        if self.layers == "auto":
            # Frozen for users: several processes compare their options.
            layers = self.loader if self.loader in FRAMEWORKS else _installed()
            object.__setattr__(self, "layers", layers)
        if self.loader not in ("pagraph", self.layers):
            raise ValueError(
                f"layers must be {self.loader!r} with {self.loader}'s loader, got {self.layers!r}"
            )
        if not self.fanout or any(k != -1 and k < 1 for k in self.fanout):
            raise ValueError(
                f"fanout must have at least 1 entry, each -1 or at least 1, got {list(self.fanout)}"
            )
        self._check_numbers()
        # Each of these raises an error that names its option.
        Budget.parse(self.cache)
        memory_budget(self.memory)
        self.batches_ahead()
        check_policy(self.cache_policy)
        form_name("cache_dtype", self.cache_dtype)
        if not re.fullmatch(r"auto|(cpu|cuda)(:[0-9]+)?", str(self.device)):
            raise ValueError(f"device must be auto, cpu or cuda[:N], got {self.device!r}")
        # Only torch, which takes seconds to import, knows whether there is a GPU.
        if str(self.device).startswith("cuda"):
            self.torch_device()

    def _check_choices(self) -> None:
        for option in fields(self):
            known = LOADERS if option.name == "loader" else option.metadata.get("choices")
            value = getattr(self, option.name)
            if known is not None and value not in known:
                raise ValueError(f"{option.name} must be one of {', '.join(known)}, got {value!r}")

    def _check_numbers(self) -> None:
        for name in ("batch_size", "epochs", "hidden", "heads", "eval_every"):
            as_integer(name, getattr(self, name), least=1)
        if self.train_fraction is not None:
            if not 0 < self.train_fraction < 1:
                raise ValueError(
                    "train_fraction must be in (0, 1), to leave vertices to validate and to test, "
                    f"got {self.train_fraction}"
                )
            if self.task != "nodes":
                raise ValueError(
                    f"train_fraction must be given with task 'nodes', got it with {self.task!r}"
                )
        if self.model == "gat" and self.hidden % self.heads:
            raise ValueError(
                f"hidden must be a multiple of heads, {self.heads}, for GAT, got {self.hidden}"
            )
        for name in ("num_workers", "prefetch"):
            as_integer(name, getattr(self, name) or 0, least=0)
        # Written so that NaN, which compares as False, is refused.
        if not (math.isfinite(self.lr) and self.lr > 0):
            raise ValueError(f"lr must be positive and finite, got {self.lr}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {self.dropout}")
        if not (math.isfinite(self.weight_decay) and self.weight_decay >= 0):
            raise ValueError(f"weight_decay must be at least 0 and finite, got {self.weight_decay}")
        if not 0 <= self.seed < 2**32:  # NumPy's generator takes no more
            raise ValueError(f"seed must be in [0, 2**32), got {self.seed}")

    @property
    def loader_memory(self) -> int | None:
        """Bytes of ``memory`` for the loader: three quarters. None: all that is free."""
        limit = self._memory_limit
        # At least 1 byte, for which the loader reports how much it needs. It does not accept 0.
        return None if limit is None else max(1, limit * (EVALUATION_PART - 1) // EVALUATION_PART)

    @property
    def evaluation_memory(self) -> int | None:
        """Bytes of ``memory`` that evaluation may take. None: half of what is free."""
        limit = self._memory_limit
        return None if limit is None else max(1, limit // EVALUATION_PART)

    @property
    def _memory_limit(self) -> int | None:
        memory = memory_budget(self.memory)
        return None if memory is None else memory.limit

    def batches_ahead(self) -> int | str:
        """``lookahead`` for the loaders: "auto" or a number; ValueError for anything else."""
        text = self.lookahead.strip()
        ahead = int(text) if text.removeprefix("-").isdecimal() else text
        PipelineOptions(lookahead=parse_lookahead(ahead))
        return ahead

    def torch_device(self) -> torch.device:
        """Resolve the device; ValueError if the name is wrong, or this machine lacks it."""
        import torch

        has_cuda = torch.cuda.is_available()
        if self.device == "auto":
            if not has_cuda:
                return torch.device("cpu")
            return torch.device("cuda", torch.cuda.current_device())
        try:
            device = torch.device(self.device)
        except (RuntimeError, TypeError, ValueError):
            raise ValueError(f"device must be auto, cpu or cuda[:N], got {self.device!r}") from None
        count = torch.cuda.device_count() if has_cuda else 0
        if device.type == "cuda" and (device.index or 0) >= count:
            raise ValueError(f"device must be one of {count} CUDA devices, got {self.device!r}")
        return device


def check_timeout(timeout: float) -> None:
    """Raise ValueError unless ``timeout`` is positive and finite."""
    if not (math.isfinite(timeout) and timeout > 0):
        raise ValueError(f"timeout must be positive and finite, got {timeout}")


def _installed() -> str:
    """The first framework that is installed, or "auto"."""
    for name, package in FRAMEWORKS.items():
        # Looked for and not imported: that takes seconds.
        if importlib.util.find_spec(package):
            return name
    return "auto"
