"""The meeting of the processes that train together, before ``torch.distributed`` joins them.

torchrun keeps one store over all restarts, and torch looks in it for the addresses of the others: a
process that was restarted may find those of an earlier attempt, which nobody answers any more.
Here each process comes under a name of its own. Those that saw each other's names share a part of
the store that no attempt used before.
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
"""Seconds between two looks at who has come, and between two attempts."""
_LONGEST_CONNECT = 10.0
"""Seconds that gloo may take to connect two processes that are both there."""
_CONNECT_SHARE = 20
"""Attempts to connect in the time that one process waits for another: gloo waits five times as long
as it is told, so that at least four fit."""


class LostProcessError(PaGraphError):
    """Another process of the run ended without an error message, or did not answer in time."""


class DifferentProcessesError(PaGraphError, ValueError):
    """Processes of one run differ in what must be the same; all of them raise this."""


@dataclass(frozen=True)
class _Place:
    """Where processes meet: the store that rank 0, or its torchrun, opens there."""

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

    Whatever fails on the way is tried again until ``timeout`` seconds are over: a name that is not
    known yet, a store that is not there yet, a process that ended and is started again.

    Returns:
        A store for their process group, which no other group has used.

    Raises:
        ValueError: The port is taken, the address is not known, or one of both is not set.
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
    """A message of torch's or gloo's without the place in its source."""
    lines = str(error).splitlines() or [type(error).__name__]
    return re.sub(r"\[\S+:\d+\] ", "", lines[0])


def _opens_store(rank: int) -> bool:
    return rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"


def _open_store(place: _Place, timeout: float) -> Store:
    try:
        # By that name: a machine may not know its own public one. It is reached on all addresses.
        return TCPStore(
            "localhost",
            place.port,
            is_master=True,
            timeout=timedelta(seconds=timeout),
            wait_for_workers=False,
            multi_tenant=True,
        )
    except RuntimeError as error:
        # After the words of torch, which name the port, those of the system.
        reason = plain_text(error).rpartition("message: ")[2]
        raise ValueError(
            f"MASTER_PORT must be free on the machine of rank 0, got {place.port}: {reason}"
        ) from error


def _wait_for_answer(rank: int, place: _Place, deadline: float) -> None:
    """Wait until the store's port answers; torch's own attempts print stacks of calls."""
    while True:
        try:
            # At least one attempt, however late it is.
            left = max(_PAUSE, deadline - time.monotonic())
            socket.create_connection((place.host, place.port), timeout=left).close()
            return
        except OSError as error:
            # A name may be known later, as those of a cluster are that is being started.
            if time.monotonic() < deadline:
                time.sleep(_PAUSE)
                continue
            if isinstance(error, socket.gaierror):
                raise ValueError(
                    f"MASTER_ADDR must be a machine that rank {rank}'s knows, got {place.host!r}: "
                    f"{error.strerror}"
                ) from error
            raise LostProcessError(
                f"rank {rank}: nothing answers at {place} (MASTER_ADDR and MASTER_PORT), where "
                f"rank 0 should be: {error}"
            ) from error


def _join_store(rank: int, place: _Place, deadline: float) -> Store:
    """Connect to the store; torch waits for ever for another program, which does not answer."""
    made: list[Store | RuntimeError] = []
    left = max(_PAUSE, deadline - time.monotonic())

    def join() -> None:
        # torch tries for up to twice as long.
        limit = timedelta(seconds=left / 2)
        try:
            made.append(TCPStore(place.host, place.port, timeout=limit, wait_for_workers=False))
        except RuntimeError as error:
            made.append(error)

    # The process may end with it: torch holds no lock of Python's while it waits.
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
    """Wait until each process has seen the same names of all; their part of the store."""
    store = PrefixStore("pagraph", opened)
    # Builds of one release for several devices work together.
    release = torch.__version__.split("+")[0]
    own = json.dumps({"name": uuid.uuid4().hex, "pagraph": __version__, "torch": release})
    store.set(f"come/{rank}", own)
    names = [f"come/{each}" for each in range(size)]
    seen = ""
    while True:
        # Of two processes the later one has overwritten the name.
        if store.get(names[rank]).decode() != own:
            raise LostProcessError(f"rank {rank}: another process came to {place} as this rank")
        missing = [each for each, name in enumerate(names) if not store.check([name])]
        if not missing:
            come = [store.get(name).decode() for name in names]
            # One whose process was started again changes, and with it all that follows.
            group = hashlib.sha256("".join(come).encode()).hexdigest()[:16]
            if group != seen:
                store.set(f"{group}/seen/{rank}", "")
                seen = group
            # Who ended before does not see the names of this attempt.
            missing = [each for each in range(size) if not store.check([f"{group}/seen/{each}"])]
            if not missing:
                _check_versions([json.loads(text) for text in come])
                return PrefixStore(group, store)
        if time.monotonic() >= deadline:
            ranks = ", ".join(map(str, missing))
            raise LostProcessError(
                f"rank {rank}: rank {ranks} did not come to {place} within {timeout:g} s"
            )
        time.sleep(_PAUSE)


def _check_versions(come: list[dict[str, str]]) -> None:
    # Of torch, too: others may make other bits of the same weights, or other messages.
    for package in ("pagraph", "torch"):
        versions = [each.get(package) for each in come]
        if len(set(versions)) > 1:
            raise DifferentProcessesError(
                f"{package} must be the same version in all processes, got {versions} by rank"
            )


def _connect(store: Store, rank: int, size: int, timeout: float) -> None:
    """Connect all over gloo and hang up; RuntimeError where two do not reach each other.

    torch cannot try again to make its own group, and waits long: that a process does not answer is
    found out here.
    """
    if size == 1:
        return
    limit = timedelta(seconds=min(_LONGEST_CONNECT, timeout / _CONNECT_SHARE))
    group = dist.ProcessGroupGloo(PrefixStore("trial", store), rank, size, limit)
    # Others may fail where this one did not. Who hangs up before they are through lets them wait.
    store.set(f"reached/{rank}", "")
    store.wait([f"reached/{each}" for each in range(size)], 5 * limit)
    del group
