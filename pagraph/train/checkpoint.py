"""Checkpoints of a training run: the state that its next epoch depends on, in one file."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..errors import FormatError
from ..options.training import TrainOptions
from ..system.atomic import check_writable, new_file
from ..system.checks import StrPath
from ..system.torch_file import content_digest, load_saved
from .distributed import World
from .result import EpochRecord, RankRecord
from .task import Task

_FILE = "checkpoint.pt"
_VERSION = 1
_MAY_CHANGE = (
    "epochs",
    "device",
    "cache",
    "cache_policy",
    "num_workers",
    "prefetch",
    "lookahead",
    "memory",
)
"""Options that do not change the numbers that an epoch computes."""
_KINDS = {"settings": dict, "graphs": list, "model": dict, "optimizer": dict, "random": list}
"""Entries of a checkpoint besides its version and records."""
_NAMES = {"compiling_seconds": "kernels_seconds"}
"""Names in older checkpoints to those of now."""


def check_checkpoint(folder: StrPath, options: TrainOptions) -> None:
    """Check that a run with these options can be saved in ``folder``, and make the folder.

    Raises:
        ValueError: The run has state that cannot be saved.
        OSError: The folder cannot be written to.
    """
    # Our loader draws by (seed, epoch, batch). Other loaders' generators are in their workers.
    if options.loader != "pagraph":
        raise ValueError(f"checkpoint needs pagraph's loader, got {options.loader}'s own")
    if options.grad_compression == "powersgd":
        raise ValueError(
            "checkpoint must not be given with powersgd, which keeps gradients that it did not send"
        )
    if os.path.lexists(folder) and not os.path.isdir(folder):
        raise NotADirectoryError(f"checkpoint must be a folder, got {os.fspath(folder)!r}")
    os.makedirs(folder, exist_ok=True)
    check_writable("checkpoint", Path(folder) / _FILE)


def open_checkpoint(
    folder: StrPath | None, task: Task, options: TrainOptions, world: World
) -> Checkpoint | None:
    """The checkpoint of a run, or None without a folder.

    Arguments and errors are those of :class:`Checkpoint`.
    """
    given = world.gather(folder is not None)
    world.together(lambda: _all_or_none(given))
    return None if folder is None else Checkpoint(folder, task, options, world)


def _all_or_none(given: Sequence[bool]) -> None:
    if len(set(given)) > 1:
        raise ValueError(
            f"checkpoint must be given to all processes or to none, got {list(given)} by rank"
        )


class Checkpoint:
    """The newest state of a run, which the first process of each machine writes and reads.

    Every file holds the states of all processes. So machines need not share the folder, and the
    newest file of any of them is enough. All processes of ``world`` must call the methods.

    Args:
        folder: Folder of the file, made if it is missing.
        task: What this process trains on.
        options: Options of the run.
        world: The processes.

    Raises:
        ValueError: A run with these options cannot be saved.
        OSError: The folder cannot be written to.
    """

    def __init__(self, folder: StrPath, task: Task, options: TrainOptions, world: World) -> None:
        world.together(lambda: check_checkpoint(folder, options))
        self._path = Path(folder) / _FILE
        self._world = world
        self._options = options
        # One process per machine, as several would replace each other's file.
        self._writes = world.local_rank == 0
        self._settings = {
            name: value for name, value in asdict(options).items() if name not in _MAY_CHANGE
        }
        self._graphs = world.gather(_described(task))

    def save(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, records: Sequence[EpochRecord]
    ) -> None:
        """Save the state after the last of these epochs, in place of the earlier one."""
        state = {
            "version": _VERSION,
            "settings": self._settings,
            "graphs": self._graphs,
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "random": self._world.gather(random_state(self._options.torch_device())),
            "records": [asdict(record) for record in records],
        }
        self._world.together(lambda: self._write(state) if self._writes else None)

    def _write(self, state: Mapping[str, Any]) -> None:
        with new_file(self._path) as file:
            torch.save({**state, "checksum": content_digest(state)}, file)

    def restore(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> list[EpochRecord]:
        """Restore the state after the last saved epoch.

        Returns:
            The epochs so far; none if nothing was saved.

        Raises:
            ValueError: The saved run had other settings, another graph or another number of
                processes.
            FormatError: A file is damaged, or not a checkpoint.
            OtherProcessError: Another process failed.
        """
        world = self._world
        own = world.together(lambda: self._read() if self._writes else None)
        found = world.gather(own)
        # A machine may have failed before it wrote the last epoch.
        newest = max(filter(None, found), key=lambda state: len(state["records"]), default=None)
        if newest is None:
            return []
        return world.together(lambda: self._put_back(newest, model, optimizer))

    def _read(self) -> dict[str, Any] | None:
        if not os.path.lexists(self._path):
            return None
        try:
            saved = load_saved(self._path)
            checksum = saved.pop("checksum", None)  # older files have none
            if saved["version"] != _VERSION or checksum not in (None, content_digest(saved)):
                raise ValueError
            state: dict[str, Any] = {name: kind(saved[name]) for name, kind in _KINDS.items()}
            state["records"] = [_record(record) for record in saved["records"]]
            return state
        # A damaged file may raise anything in torch's reader, or in the lines above.
        except Exception:
            raise self._damaged() from None

    def _damaged(self) -> FormatError:
        return FormatError(
            f"checkpoint must be a complete file written by pagraph train, got {self._path}"
        )

    def _put_back(
        self, state: dict[str, Any], model: nn.Module, optimizer: torch.optim.Optimizer
    ) -> list[EpochRecord]:
        self._check(state)
        records: list[EpochRecord] = state["records"]
        if len(records) > self._options.epochs:
            raise ValueError(
                f"epochs must be at least the {len(records)} of the checkpoint {self._path}, got "
                f"{self._options.epochs}"
            )
        try:
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            random = state["random"][self._world.rank]
            set_random_state(random, self._options.torch_device())
        except (AttributeError, KeyError, IndexError, RuntimeError, TypeError, ValueError):
            raise self._damaged() from None
        return records

    def _check(self, state: Mapping[str, Any]) -> None:
        """Raise ValueError if the checkpoint is of another run."""
        where = f"as in the checkpoint {self._path}"
        for name, value in self._settings.items():
            saved = state["settings"].get(name)
            if saved != value:
                raise ValueError(f"{name} must be {saved!r} {where}, got {value!r}")
        graphs = state["graphs"]
        if len(graphs) != len(self._graphs):
            raise ValueError(f"processes must be {len(graphs)} {where}, got {len(self._graphs)}")
        for ours, theirs in zip(self._graphs, graphs, strict=True):
            if ours != theirs:
                raise ValueError(f"graph must be the one {where}, {theirs!r}, got {ours!r}")


def _described(task: Task) -> str:
    """A task in words, and a digest of its training vertices or links."""
    digest = hashlib.sha256(task.train.numpy().tobytes()).hexdigest()
    return f"{task} ({digest[:8]})"


def random_state(device: torch.device) -> dict[str, torch.Tensor]:
    """State of dropout's random generators."""
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_random_state(state: dict[str, torch.Tensor], device: torch.device) -> None:
    """Have the generators go on from what :func:`random_state` returned."""
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], device)


def _record(saved: dict[str, Any]) -> EpochRecord:
    ranks = tuple(RankRecord(**_renamed(rank)) for rank in saved["ranks"])
    return EpochRecord(**{**_renamed(saved), "ranks": ranks})


def _renamed(saved: dict[str, Any]) -> dict[str, Any]:
    """The numbers of a record by their names now, from a checkpoint of any version."""
    return {_NAMES.get(name, name): value for name, value in saved.items()}
