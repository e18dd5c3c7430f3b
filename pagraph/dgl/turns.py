"""Turns: one conversation with DGL's servers at a time, so that a thread may read ahead.

A process of DistDGL has one queue of answers, and whoever asks takes the next answer for his own.
DGL therefore allows one thread only. Here each thread keeps the queue from its first question until
its last answer, whatever function of DGL's it is in: reading rows ahead, sampling, a barrier, or an
embedding's push in the training loop.
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Turns:
    """Lets threads have the connection in turn, first come, first served.

    A turn begins with a question, and ends when all its answers are there. DGL sends all questions
    of a conversation before it takes the first answer, so none ends too early.
    """

    def __init__(self) -> None:
        # Guards what follows; its holder calls nothing that waits, but for the condition itself.
        self._changed = threading.Condition()
        self._queue: deque[int] = deque()
        self._owner: int | None = None
        self._answers = 0
        self._calls = 0

    def begin(self) -> None:
        """Wait for this thread's turn; nothing to wait for inside of one."""
        me = threading.get_ident()
        with self._changed:
            if self._owner == me:
                return
            self._queue.append(me)
            try:
                while self._owner is not None or self._queue[0] != me:
                    self._changed.wait()
                self._owner = me
            finally:  # Ctrl-C may end the wait: then the next one in the queue must not wait for us
                self._queue.remove(me)
                self._changed.notify_all()

    def asked(self, *, answers: int) -> None:
        """Count the answers that a question will have; without any the turn may end."""
        with self._changed:
            self._answers += answers
            self._end_if_done()

    def answered(self) -> None:
        """Count an answer that has been taken."""
        with self._changed:
            self._answers -= 1
            self._end_if_done()

    @contextmanager
    def call(self) -> Iterator[None]:
        """A turn that lasts as long as the ``with`` body, which asks and takes answers itself."""
        self.begin()
        self._calls += 1
        try:
            yield
        finally:
            with self._changed:
                self._calls -= 1
                self._end_if_done()

    def leave(self) -> None:
        """Give this thread's turn up, if it has one: an error has ended its conversation."""
        with self._changed:
            if self._owner == threading.get_ident():
                self._answers = 0
                self._calls = 0
                self._end_if_done()

    def _end_if_done(self) -> None:
        if self._owner == threading.get_ident() and self._answers <= 0 and not self._calls:
            self._answers = 0
            self._owner = None
            self._changed.notify_all()


turns = Turns()
"""Those of this process, as it has one connection."""

Refuse = Callable[[str], None]
"""Called with the name of a tensor that is about to be written; raises where that must not be."""
_refusals: list[Refuse] = []
_installed = False
# Several loaders share DGL's sampler processes: who waits for one of their batches has the queue of
# results to himself. No other lock is taken while it is held.
_pool_lock = threading.RLock()


def install(refuse: Refuse) -> None:
    """Have all of DGL's functions take turns from now on; done once, whoever asks.

    Args:
        refuse: Asked before this process writes a distributed tensor.
    """
    global _installed
    if refuse not in _refusals:
        _refusals.append(refuse)
    if _installed:
        return
    _installed = True
    # Imported here: they are DGL's own parts, which no one else needs.
    from dgl.distributed import dist_context, kvstore, rpc, standalone_kvstore

    # All of DGL's client code sends and receives by these four, looked up in their module.
    begin_question = rpc.incr_msg_seq
    send = rpc.send_rpc_message
    receive = rpc.recv_rpc_message

    @functools.wraps(begin_question)
    def incr_msg_seq() -> Any:
        turns.begin()
        return begin_question()

    @functools.wraps(send)
    def send_rpc_message(msg: Any, target: int) -> None:
        send(msg, target)
        # A client registers with all servers, and only the first one answers.
        answers = rpc.get_service_property(msg.service_id)[1] is not None and not (
            msg.service_id == rpc.CLIENT_REGISTER and target
        )
        turns.asked(answers=int(answers))

    @functools.wraps(receive)
    def recv_rpc_message(timeout: int = 0) -> Any:
        message = receive(timeout)
        if message is not None:
            turns.answered()
        return message

    rpc.incr_msg_seq = incr_msg_seq
    rpc.send_rpc_message = send_rpc_message
    rpc.recv_rpc_message = recv_rpc_message
    rpc.fast_pull = _within(turns.call, rpc.fast_pull)
    for client in (kvstore.KVClient, standalone_kvstore.KVClient):
        client.push = _checked(client.push)
    pool = dist_context.CustomPool
    for name in ("get_result", "submit_task"):
        setattr(pool, name, _within(lambda: _pool_lock, getattr(pool, name)))


def _within(context: Callable[[], Any], function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with context():
            return function(*args, **kwargs)

    return wrapped


def _checked(push: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(push)
    def checked(self: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        for refuse in _refusals:
            refuse(name)
        return push(self, name, *args, **kwargs)

    return checked
