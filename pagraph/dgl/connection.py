"""DGL's connection with its servers, shared by threads, so that one of them may read ahead.

A process of DistDGL has one queue of answers, and whoever asks takes the next answer for its own.
DGL allows one thread only for that reason. Here whoever asks holds a lock until all answers are
there, in whatever function of DGL's: rows read ahead, sampling, a barrier, or an embedding's push
in the training loop.
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

# Held while servers are asked. They wait for no thread of this process, nor does a barrier, which
# waits for other processes' training loops: so its holder always comes to an end. Reentrant, as
# these functions of DGL's call each other.
_connection = threading.RLock()
# Held while a result of the sampler processes is waited for, which may be another loader's: that
# one looks for it afterwards. No other lock is taken while it is held.
_results = threading.Lock()

_LOOK_SECONDS = 1.0
"""Of waiting for a sampler process, after which others may look, and whether it lives is asked."""

_SERVICES = (
    "_distributed_access",
    "_distributed_edge_access",
    "_distributed_get_node_property",
)
"""By these all of ``graph_services`` asks servers, and takes their answers."""


def _conversations() -> Iterator[tuple[Any, str]]:
    """DGL's functions that ask servers and wait for what they answer, each with its owner."""
    for name, function in vars(kvstore.KVClient).items():
        if inspect.isfunction(function) and not name.startswith("_"):
            yield kvstore.KVClient, name
    for name in _SERVICES:
        yield graph_services, name
    for name in ("remote_call", "remote_call_to_machine", "client_barrier"):
        yield rpc, name


@functools.cache
def share_connection(before_push: Callable[[str], None]) -> None:
    """Have threads share the connection from now on; done once.

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
        """DGL's, for several threads; PipelineError where a sampler process has died, for which
        DGL waits half an hour."""
        until = time.monotonic() + timeout
        while True:
            # First: what a dead process had sent before is in the queue.
            codes = [process.exitcode for process in pool.process_list]
            try:
                with _results:
                    return get_result(pool, dataloader_name, timeout=_LOOK_SECONDS)
            except queue.Empty:
                if any(code is not None for code in codes):
                    raise PipelineError(
                        "DGL's sampler processes must live, got one that has ended (exit code "
                        f"{next(code for code in codes if code is not None)}); its own output says "
                        "why"
                    ) from None
                if time.monotonic() > until:
                    raise

    return looking
