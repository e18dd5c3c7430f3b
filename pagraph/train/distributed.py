"""Distributed training: torchrun's process group, its collectives, and averaged gradients."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from .._streams import flush
from ..errors import PaGraphError
from ..options.pipeline import default_workers
from ..options.training import TIMEOUT, check_timeout
from .meeting import LostProcessError, meet, plain_text

T = TypeVar("T")

POWERSGD_RANK = 4
"""Rank of the factors that approximate a matrix of gradients."""
POWERSGD_START = 10
"""Steps with whole gradients before PowerSGD begins. The first gradients are mostly noise, and
``DistributedDataParallel`` rearranges its buckets after the first step."""


class OtherProcessError(PaGraphError):
    """Another process of the run failed, so this one cannot continue.

    Attributes:
        rank: The process that failed.
    """

    def __init__(self, message: str, rank: int) -> None:
        super().__init__(message)
        self.rank = rank


@dataclass(frozen=True)
class World:
    """One of the processes that train together. All of them must call its collectives.

    Attributes:
        rank: Number of this process, from 0.
        size: Number of processes on all machines.
        local_rank: Number of this process among those of its machine, from 0.
        local_size: Number of processes on this machine.
        connected: Whether ``torch.distributed`` connects them; False for a process that runs alone.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    connected: bool = False

    @classmethod
    def from_environment(cls) -> World:
        """Read torchrun's environment variables; without them a process runs alone.

        Raises:
            ValueError: A variable is not a number.
        """
        if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
            return ALONE
        names = {
            "rank": "RANK",
            "size": "WORLD_SIZE",
            "local_rank": "LOCAL_RANK",
            "local_size": "LOCAL_WORLD_SIZE",
        }
        numbers = {}
        for field, name in names.items():
            text = os.environ.get(name, "")
            if not text.isdigit():
                raise ValueError(
                    f"{name} must be a number of at least 0, as torchrun sets it, got {text!r}"
                )
            numbers[field] = int(text)
        return cls(**numbers, connected=True)

    @property
    def is_first(self) -> bool:
        """Whether this process prints and writes for all."""
        return self.rank == 0

    @property
    def loader_threads(self) -> int:
        """This process's share of a loader's default threads.

        0, which means the default, if the process is alone on its machine.
        """
        return 0 if self.local_size == 1 else max(1, default_workers() // self.local_size)

    def gather(self, value: T) -> list[T]:
        """Every process's value, by rank."""
        if self.size == 1:
            return [value]
        values: list[T | None] = [None] * self.size
        dist.all_gather_object(values, value)
        return values  # type: ignore[return-value]

    def share(self, total: int) -> slice:
        """This process's share of ``total`` rows. Shares are in the order of the ranks."""
        return slice(total * self.rank // self.size, total * (self.rank + 1) // self.size)

    def complete(self, rows: Tensor) -> None:
        """Copy the other processes' shares (see :meth:`share`) into ``rows``."""
        if self.size == 1:
            return
        for rank in range(self.size):
            part = rows[replace(self, rank=rank).share(len(rows))]
            # With fewer rows than processes, all processes skip the same empty shares.
            if len(part):
                dist.broadcast(part, rank)

    def together(self, make: Callable[[], T]) -> T:
        """Call ``make`` in every process, and return its result. If one call fails, all fail.

        Otherwise the others would wait in their next collective for the failed process.

        Raises:
            OtherProcessError: It failed in a process of a lower rank, or only in another.
            Exception: It failed here, and in no process of a lower rank.
        """
        result: T | None = None
        error: Exception | None = None
        try:
            result = make()
        except Exception as caught:
            error = caught
        # With the reason, as other machines do not show what the failed process prints.
        reason = None
        if error is not None:
            reason = str(error) or type(error).__name__
        failures = self.gather(reason)
        failed = [rank for rank, failure in enumerate(failures) if failure is not None]
        if not failed:
            return result  # type: ignore[return-value]
        # Only one process raises the error itself, so that it is printed once.
        first = failed[0]
        if error is not None and first == self.rank:
            raise error
        message = f"rank {self.rank}: rank {first} failed: {failures[first]}"
        raise OtherProcessError(message, first) from error

    def shares_machine(self, rank: int) -> bool:
        """Whether a process runs on this one's machine."""
        first = self.rank - self.local_rank
        return first <= rank < first + self.local_size

    def wait_for_end(self) -> None:
        """Wait until another process has ended.

        Torchrun ends all processes once one has ended. Waiting lets the failed one print its error.
        """
        try:
            # The failed process never takes part, so this raises when it has ended.
            dist.all_reduce(torch.zeros(1, device="cpu"))
        except RuntimeError:
            return


ALONE = World()
"""A process that runs alone."""


@contextmanager
def joined_world(*, device: str = "auto", timeout: float = TIMEOUT) -> Iterator[World]:
    """Connect the processes that torchrun started, over gloo, and over NCCL for CUDA tensors unless
    ``device`` is "cpu".

    Args:
        device: As in ``TrainOptions``.
        timeout: Seconds that this process waits for another one.

    Raises:
        ValueError: ``timeout`` is not positive, a variable of torchrun's is not a number, or
            processes cannot meet at its address.
        LostProcessError: The others did not come in time, or cannot be reached.
    """
    check_timeout(timeout)
    world = World.from_environment()
    if not world.connected:
        yield world
        return
    nccl = device != "cpu" and torch.cuda.is_available() and dist.is_nccl_available()
    backend = "cpu:gloo,cuda:nccl" if nccl else "gloo"
    store = meet(world.rank, world.size, timeout)
    with naming_lost_processes(world):
        dist.init_process_group(
            backend,
            store=store,
            rank=world.rank,
            world_size=world.size,
            timeout=timedelta(seconds=timeout),
        )
    try:
        yield world
    except BaseException:
        # NCCL's shutdown may wait for processes that have ended. Gloo's is needed, as its threads
        # abort a process that ends while they run.
        if not nccl:
            _leave_group()
        raise
    _leave_group()


_LEFT: list[Any] = []
"""The process groups that this process has left."""
atexit.register(_LEFT.clear)


def _leave_group() -> None:
    """Destroy the process group, and keep its memory until the process ends.

    A ``DistributedDataParallel`` that is freed later would otherwise free the group, too. Torch
    then joins gloo's threads with the GIL held, and waits forever for one that needs the GIL to
    free its last work (torch 2.13: 2 of 140 processes whose peer was killed). A reference from
    Python is freed without the GIL.
    """
    _LEFT.append(dist.group.WORLD)
    dist.destroy_process_group()


def end_process(code: int = 0) -> NoReturn:
    """End this process at once, with output flushed and without running ``atexit``.

    For programs that used :func:`joined_world`. ``DistributedDataParallel`` keeps gloo's threads
    until the interpreter ends, even when their group was destroyed. If one of them then needs the
    interpreter, the process is aborted (torch 2.13: 1 of 24 processes that had trained well).
    """
    flush()
    os._exit(code)


@contextmanager
def naming_lost_processes(world: World) -> Iterator[None]:
    """Turn errors of failed collectives in the body into ``LostProcessError``."""
    try:
        yield
    except RuntimeError as error:
        # gloo raises a plain RuntimeError that names its source file.
        if not (isinstance(error, dist.DistError) or "gloo" in str(error)):
            raise
        raise LostProcessError(
            f"rank {world.rank}: another process ended or did not answer: {plain_text(error)}"
        ) from error


def choose_device(device: str, world: World) -> None:
    """Make this process's CUDA device the current one, which "auto" and "cuda" then mean.

    Raises:
        ValueError: ``device`` names one device for several processes, or there are fewer devices
            than processes.
    """
    if not world.connected or device == "cpu" or not torch.cuda.is_available():
        return
    if ":" in device and world.size > 1:
        raise ValueError(f"device must be auto, cpu or cuda for several processes, got {device!r}")
    count = torch.cuda.device_count()
    if world.local_rank >= count:
        raise ValueError(
            f"device must be cpu for {world.local_size} processes on {count} CUDA devices, got "
            f"{device!r}"
        )
    if ":" not in device:
        torch.cuda.set_device(world.local_rank)


def data_parallel(model: nn.Module, world: World, *, compression: str = "none") -> nn.Module:
    """Average a model's gradients over all processes in ``backward``.

    A process that runs alone gets the model itself.

    Args:
        model: The model, on its device. Every process gets the first one's weights.
        world: The processes.
        compression: ``"fp16"`` sends half the bytes. After 10 steps ``"powersgd"`` (Vogels et al.,
            2019) sends rank-4 factors of each weight matrix, and adds their error to the next
            step's gradients. Small tensors are sent whole.
    """
    if not world.connected:
        return model
    device = next(model.parameters()).device
    device_ids = [device] if device.type == "cuda" else None
    parallel = DistributedDataParallel(model, device_ids=device_ids)
    if compression == "fp16":
        parallel.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif compression == "powersgd":
        state: Any = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=POWERSGD_RANK, start_powerSGD_iter=POWERSGD_START
        )
        parallel.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return parallel
