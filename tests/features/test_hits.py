"""Hits that are known, and hits that a device has not counted yet."""

import torch

from pagraph.accelerator import Event
from pagraph.features.store import Hits


class Later(Event):
    """An event that happens when somebody waits for it."""

    has_happened = False

    def __init__(self, do):
        self._do = do

    def wait(self):
        if not self.has_happened:
            self._do()
            self.has_happened = True

    def seconds_since(self, earlier):
        raise NotImplementedError


def test_known_hits_need_no_waiting():
    hits = Hits.known([3, 0, 2])
    assert hits.now() == hits.wait() == (3, 0, 2)
    assert Hits.known([]).now() == ()
    assert repr(hits) == "Hits(3, 0, 2)"


def test_pending_hits_are_read_when_they_have_arrived():
    memory = torch.full((2,), -1)
    ready = Later(lambda: memory.copy_(torch.tensor([5, 6])))
    hits = Hits(memory, ready)
    assert hits.now() is None and hits.now() is None
    assert repr(hits) == "Hits(not known yet)"
    assert hits.wait() == (5, 6)
    assert hits.now() == (5, 6)
