"""Processes that train together meet here before ``torch.distributed`` connects them.

Torchrun keeps one store over all restarts, in which torch looks for the other processes' addresses.
So a restarted process may find addresses of an earlier attempt, where nothing answers any more.
Here each process registers under a unique name. Processes that saw each other's names share a part
of the store that no earlier attempt used.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import threading
import time
import uuid
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import PrefixStore, Store

from .. import __version__
from ..errors import PaGraphError

_PAUSE = 0.05
"""Seconds between two looks at the store, and between two attempts."""
_LONGEST_CONNECT = 10.0
"""Seconds that gloo may take to connect two running processes."""
_CONNECT_SHARE = 20
"""The timeout is divided by this for one attempt to connect. Gloo waits up to five times as long as
its own timeout, so that at least four attempts fit."""


class LostProcessError(PaGraphError):
    """Another process of the run ended without an error message, or did not answer in time."""


class DifferentProcessesError(PaGraphError, ValueError):
    """Processes of one run differ in something that must be equal. All of them raise this."""


@dataclass(frozen=True)
class _Place:
    """Address of the store that rank 0, or its torchrun, opens."""

    host: str
    port: int

    @classmethod
    def from_environment(cls) -> _Place:
        host = os.environ.get("MASTER_ADDR", "")
        if not host:
            raise ValueError("MASTER_ADDR must be the machine of rank 0, got none")
        text = os.environ.get("MASTER_PORT", "")
        if not text.isdigit() or not 0 < int(text) < 2**16:
            raise ValueError(f"MASTER_PORT must be a port from 1 to 65535, got {text!r}")
        return cls(host, int(text))

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def meet(rank: int, size: int, timeout: float) -> Store:
    """Wait until all processes have come and can reach each other over gloo.

    Failed steps are repeated until ``timeout`` seconds are over. A host name may not be known yet,
    the store may not be open yet, or a process may have ended and been restarted.

    Returns:
        A store for their process group, which no other group has used.

    Raises:
        ValueError: The port is taken, the address is unknown, or one of them is not set.
        DifferentProcessesError: They have different versions of this package or of torch.
        LostProcessError: Some did not come in time, or cannot be reached.
    """
    deadline = time.monotonic() + timeout
    place = _Place.from_environment()
    opened = _open_store(place, timeout) if _opens_store(rank) else None
    while True:
        try:
            _wait_for_answer(rank, place, deadline)
            store = opened or _join_store(rank, place, deadline)
            group = _agree(store, rank, size, place, deadline, timeout)
            _connect(group, rank, size, timeout)
            group.set_timeout(timedelta(seconds=timeout))
            return group
        except RuntimeError as error:  # gloo's, and the store's
            if time.monotonic() >= deadline:
                text = plain_text(error)
                raise LostProcessError(
                    f"rank {rank}: the processes could not meet at {place} within {timeout:g} s: "
                    f"{text}"
                ) from error
            time.sleep(_PAUSE)


def plain_text(error: RuntimeError) -> str:
    """An error message of torch or gloo without the location in its source."""
    lines = str(error).splitlines() or [type(error).__name__]
    return re.sub(r"\[\S+:\d+\] ", "", lines[0])


def _opens_store(rank: int) -> bool:
    return rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"


def _open_store(place: _Place, timeout: float) -> Store:
    try:
        # As localhost, as a machine may not know its public name. The store listens on all
        # addresses.
        return TCPStore(
            "localhost",
            place.port,
            is_master=True,
            timeout=timedelta(seconds=timeout),
            wait_for_workers=False,
            multi_tenant=True,
        )
    except RuntimeError as error:
        # The system's reason follows torch's words, which repeat the port.
        reason = plain_text(error).rpartition("message: ")[2]
        raise ValueError(
            f"MASTER_PORT must be free on the machine of rank 0, got {place.port}: {reason}"
        ) from error


def _wait_for_answer(rank: int, place: _Place, deadline: float) -> None:
    """Wait until the store's port answers. Torch's own attempts would print tracebacks."""
    while True:
        try:
            # At least one attempt, even after the deadline.
            left = max(_PAUSE, deadline - time.monotonic())
            socket.create_connection((place.host, place.port), timeout=left).close()
            return
        except OSError as error:
            # The name may become known later, as in a cluster that is starting.
            if time.monotonic() < deadline:
                time.sleep(_PAUSE)
                continue
            if isinstance(error, socket.gaierror):
                raise ValueError(
                    f"MASTER_ADDR must be a machine that rank {rank}'s machine can resolve, got "
                    f"{place.host!r}: {error.strerror}"
                ) from error
            raise LostProcessError(
                f"rank {rank}: nothing answers at {place} (MASTER_ADDR and MASTER_PORT), where "
                f"rank 0 should be: {error}"
            ) from error


def _join_store(rank: int, place: _Place, deadline: float) -> Store:
    """Connect to the store. Torch would wait forever if another program has the port."""
    made: list[Store | RuntimeError] = []
    left = max(_PAUSE, deadline - time.monotonic())

    def join() -> None:
        # Torch tries for up to twice as long.
        limit = timedelta(seconds=left / 2)
        try:
            made.append(TCPStore(place.host, place.port, timeout=limit, wait_for_workers=False))
        except RuntimeError as error:
            made.append(error)

    # A daemon, so that the process can end while it waits. Torch does not hold the GIL meanwhile.
    thread = threading.Thread(target=join, daemon=True)
    thread.start()
    thread.join(left)
    if not made:
        raise LostProcessError(
            f"rank {rank}: what answers at {place} (MASTER_ADDR and MASTER_PORT) is not rank 0"
        )
    if isinstance(made[0], RuntimeError):
        raise made[0]
    return made[0]


def _agree(
    opened: Store, rank: int, size: int, place: _Place, deadline: float, timeout: float
) -> Store:
    """Wait until all processes have seen the same names, and return their part of the store."""
    store = PrefixStore("pagraph", opened)
    # Builds of one release for different devices work together.
    release = torch.__version__.split("+")[0]
    own = json.dumps({"name": uuid.uuid4().hex, "pagraph": __version__, "torch": release})
    store.set(f"come/{rank}", own)
    names = [f"come/{each}" for each in range(size)]
    seen = ""
    while True:
        # If two processes have this rank, the later one has overwritten the name.
        if store.get(names[rank]).decode() != own:
            raise LostProcessError(
                f"rank {rank}: another process has joined at {place} with this rank"
            )
        missing = [each for each, name in enumerate(names) if not store.check([name])]
        if not missing:
            come = [store.get(name).decode() for name in names]
            # A restarted process has a new name, and so the group has another key.
            group = hashlib.sha256("".join(come).encode()).hexdigest()[:16]
            if group != seen:
                store.set(f"{group}/seen/{rank}", "")
                seen = group
            # A process that has ended does not see the names of this attempt.
            missing = [each for each in range(size) if not store.check([f"{group}/seen/{each}"])]
            if not missing:
                _check_versions([json.loads(text) for text in come])
                return PrefixStore(group, store)
        if time.monotonic() >= deadline:
            ranks = ", ".join(map(str, missing))
            raise LostProcessError(
                f"rank {rank}: rank {ranks} did not join at {place} within {timeout:g} s"
            )
        time.sleep(_PAUSE)


def _check_versions(come: list[dict[str, str]]) -> None:
    # Other versions of torch may compute other bits, or send other messages.
    for package in ("pagraph", "torch"):
        versions = [each.get(package) for each in come]
        if len(set(versions)) > 1:
            raise DifferentProcessesError(
                f"{package} must be the same version in all processes, got {versions} by rank"
            )


def _connect(store: Store, rank: int, size: int, timeout: float) -> None:
    """Connect all processes over gloo and disconnect; RuntimeError if two cannot reach each other.

    Torch waits long for its own group, and cannot make it again. So a process that does not answer
    is found here.
    """
    if size == 1:
        return
    limit = timedelta(seconds=min(_LONGEST_CONNECT, timeout / _CONNECT_SHARE))
    group = dist.ProcessGroupGloo(PrefixStore("trial", store), rank, size, limit)
    # Others may still be connecting. If this one disconnected now, they would wait for it.
    store.set(f"reached/{rank}", "")
    store.wait([f"reached/{each}" for each in range(size)], 5 * limit)
    del group
