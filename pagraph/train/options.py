"""Options of a training run, checked where they enter."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ..cache.budget import Budget
from ..cache.policies import resolve_policy
from ..features.precision import parse_cache_dtype

__all__ = ["COMPRESSIONS", "LOADERS", "MODELS", "TrainOptions"]

MODELS = ("sage", "gcn")
LOADERS = ("pagraph", "dgl")
COMPRESSIONS = ("none", "fp16", "powersgd")


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """What to train and how; the defaults are those of ``pagraph train``.

    Attributes:
        model: ``"sage"`` (GraphSAGE, mean) or ``"gcn"``.
        loader: ``"pagraph"``, or ``"dgl"`` for the same run through ``dgl.dataloading.DataLoader``.
        fanout: Neighbours sampled per vertex and hop, the last entry serves the seeds; -1 takes all.
            Its length is the number of layers; with pre-aggregated features there is one layer more.
        batch_size: Seeds per mini-batch, of each process.
        epochs: Passes over the training vertices.
        hidden: Width of the hidden layers.
        lr: Learning rate of Adam.
        dropout: Share of values dropped, in ``[0, 1)``.
        weight_decay: L2 penalty of Adam.
        row_normalize: Divide each vertex's features by their sum, as is usual for bags of words. With
            pre-aggregated features it was done before, or not.
        device: Where the model trains; ``"auto"`` is the current CUDA device if there is one, else the CPU.
        cache: Budget of the feature cache: ``"2GiB"``, bytes, a share such as ``"10%"``, or ``"auto"``.
        cache_policy: How vertices are ranked for the cache.
        cache_dtype: ``"float16"`` or ``"bfloat16"``: the cache holds twice as many rows, rounded. None: as they are.
        num_workers: Sampling threads, 0 lets the loader choose; with DGL's loader, worker processes.
        prefetch: Batches made ahead. None: the loader's default.
        eval_every: Epochs between evaluations; the last epoch is always evaluated.
        seed: Of the initial weights, dropout, shuffling and sampling; 0 to 2**32 - 1.
        grad_compression: How several processes send gradients; see :func:`pagraph.train.gradients.data_parallel`.

    Raises:
        ValueError: An option breaks its rule.
    """

    model: str = "sage"
    loader: str = "pagraph"
    fanout: tuple[int, ...] = (10, 10)
    batch_size: int = 1000
    epochs: int = 20
    hidden: int = 64
    lr: float = 0.003
    dropout: float = 0.5
    weight_decay: float = 5e-4
    row_normalize: bool = False
    device: str = "auto"
    cache: str = "auto"
    cache_policy: str = "auto"
    cache_dtype: str | None = None
    num_workers: int = 0
    prefetch: int | None = None
    eval_every: int = 1
    seed: int = 0
    grad_compression: str = "none"

    def __post_init__(self) -> None:
        if self.model not in MODELS:
            raise ValueError(f"model must be one of {', '.join(MODELS)}, got {self.model!r}")
        if self.loader not in LOADERS:
            raise ValueError(f"loader must be one of {', '.join(LOADERS)}, got {self.loader!r}")
        if self.grad_compression not in COMPRESSIONS:
            raise ValueError(
                f"grad_compression must be one of {', '.join(COMPRESSIONS)}, got {self.grad_compression!r}"
            )
        if not self.fanout or any(k != -1 and k < 1 for k in self.fanout):
            raise ValueError(f"fanout must be one or more of -1 or at least 1, got {list(self.fanout)}")
        for name in ("batch_size", "epochs", "hidden", "eval_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("num_workers", "prefetch"):
            if (getattr(self, name) or 0) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")
        if not (math.isfinite(self.lr) and self.lr > 0):
            raise ValueError(f"lr must be positive and finite, got {self.lr}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {self.dropout}")
        if not (math.isfinite(self.weight_decay) and self.weight_decay >= 0):
            raise ValueError(f"weight_decay must be at least 0 and finite, got {self.weight_decay}")
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"seed must be in [0, 2**32), got {self.seed}")
        Budget.parse(self.cache)
        resolve_policy(self.cache_policy)
        parse_cache_dtype(self.cache_dtype)
        self.torch_device()

    def torch_device(self) -> torch.device:
        """The device the run uses, known to exist.

        Raises:
            ValueError: The device's name is not one, or there is no such device here.
        """
        has_cuda = torch.cuda.is_available()
        if self.device == "auto":
            return torch.device("cuda", torch.cuda.current_device()) if has_cuda else torch.device("cpu")
        try:
            device = torch.device(self.device)
        except RuntimeError:
            raise ValueError(f"device must be auto, cpu or cuda[:N], got {self.device!r}") from None
        if device.type not in ("cpu", "cuda"):
            raise ValueError(f"device must be auto, cpu or cuda[:N], got {self.device!r}")
        count = torch.cuda.device_count() if has_cuda else 0
        if device.type == "cuda" and (device.index or 0) >= count:
            raise ValueError(f"device must be present ({count} CUDA devices here), got {self.device!r}")
        return device
