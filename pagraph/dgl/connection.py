"""Sharing of DGL's connection to its servers between threads, so that one of them can read ahead.

A process of DistDGL has one queue of answers, and a request takes the next answer as its own. So
DGL allows only one thread. Here a thread holds a lock from a request until all its answers have
come. This covers all DGL functions that ask servers: reads of rows, sampling, barriers, and pushes
of embeddings in the training loop.
"""

from __future__ import annotations

import functools
import inspect
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from ..errors import PipelineError
from .graphbolt import import_dgl

dgl = import_dgl()
from dgl.distributed import (  # noqa: E402
    dist_context,
    graph_services,
    kvstore,
    rpc,
    standalone_kvstore,
)

# Held while servers are asked. Servers wait for no thread of this process; a barrier waits only for
# other processes' training loops. So the holder always finishes. It is re-entrant, because these
# functions of DGL call each other.
_connection = threading.RLock()
# Held while waiting for a result of the sampler processes. The result may be another loader's; DGL
# keeps it for that loader. No other lock is taken while it is held.
_results = threading.Lock()

_LOOK_SECONDS = 1.0
"""How long to wait for a sampler process before other threads may look, and before checking that it
is alive."""

_SERVICES = (
    "_distributed_access",
    "_distributed_edge_access",
    "_distributed_get_node_property",
)
"""The functions through which all of ``graph_services`` asks servers."""


def _conversations() -> Iterator[tuple[Any, str]]:
    """DGL's functions that ask servers and wait for answers, each as (owner, name)."""
    for name, function in vars(kvstore.KVClient).items():
        if inspect.isfunction(function) and not name.startswith("_"):
            yield kvstore.KVClient, name
    for name in _SERVICES:
        yield graph_services, name
    for name in ("remote_call", "remote_call_to_machine", "client_barrier"):
        yield rpc, name


@functools.cache
def share_connection(before_push: Callable[[str], None]) -> None:
    """Let threads share the connection from now on; later calls do nothing.

    Args:
        before_push: Called with a distributed tensor's name before this process writes it.
    """
    for owner, name in _conversations():
        setattr(owner, name, _locked(getattr(owner, name)))
    for client in (kvstore.KVClient, standalone_kvstore.KVClient):
        client.push = _checked(client.push, before_push)
    pool = dist_context.CustomPool
    pool.get_result = _looking(pool.get_result)


def _locked(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def locked(*args: Any, **kwargs: Any) -> Any:
        with _connection:
            return function(*args, **kwargs)

    return locked


def _checked(push: Callable[..., Any], before: Callable[[str], None]) -> Callable[..., Any]:
    @functools.wraps(push)
    def checked(self: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        before(name)
        return push(self, name, *args, **kwargs)

    return checked


def _looking(get_result: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(get_result)
    def looking(pool: Any, dataloader_name: str, timeout: float = 1800) -> Any:
        """DGL's ``get_result`` for several threads.

        Raises PipelineError if a sampler process has died. DGL would wait for half an hour.
        """
        until = time.monotonic() + timeout
        while True:
            # Read before the queue, which may still hold what a dead process had sent.
            codes = [process.exitcode for process in pool.process_list]
            try:
                with _results:
                    return get_result(pool, dataloader_name, timeout=_LOOK_SECONDS)
            except queue.Empty:
                if any(code is not None for code in codes):
                    raise PipelineError(
                        "DGL's sampler processes must be alive, got one with exit code "
                        f"{next(code for code in codes if code is not None)}: its own output "
                        "says why"
                    ) from None
                if time.monotonic() > until:
                    raise

    return looking
