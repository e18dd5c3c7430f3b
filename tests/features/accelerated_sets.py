"""Field sets on accelerators that tests can look into."""

import threading
from functools import partial

import pytest
import torch
from fresh_processes import HANGING

from pagraph.accelerator import HostAccelerator, Pin
from pagraph.accelerator.accelerator import Event, Stream
from pagraph.cache import FieldSet
from pagraph.ranking import Ranking
from pagraph.system import Budget
from pagraph.system.buffers import BufferPool

CPU = torch.device("cpu")
needs_interpreter = pytest.mark.skipif(
    not HostAccelerator().runs_kernels, reason="needs Triton's interpreter"
)


class WithoutKernels(HostAccelerator):
    """As a GPU without Triton."""

    runs_kernels = False


class CountsPins(HostAccelerator):
    """Says which memory is pinned."""

    def __init__(self, *args):
        super().__init__(*args)
        self.pinned = []

    def pin(self, tensor):
        self.pinned.append(tensor.data_ptr())
        return Pin(tensor, partial(self.pinned.remove, tensor.data_ptr()))


class _HeldEvent(Event):
    """Happens when it is let."""

    def __init__(self, event, gate):
        self.event, self.gate = event, gate

    @property
    def has_happened(self):
        return self.gate.is_set()

    def wait(self):
        assert self.gate.wait(HANGING), "nobody let this event happen"

    def seconds_since(self, earlier):
        assert self.has_happened and earlier.has_happened
        return self.event.seconds_since(earlier.event)


class _HeldStream(Stream):
    def __init__(self, owner, stream):
        self.owner, self.stream = owner, stream

    def use(self):
        return self.stream.use()

    def record(self):
        return _HeldEvent(self.stream.record(), self.owner.gate)

    def wait_for(self, event):
        self.owner.waited.append(event)

    def owns(self, tensor):
        self.owner.owned.append(tensor.data_ptr())


class Slow(HostAccelerator):
    """An accelerator whose events happen when it is told so, with :meth:`finish` or, for all to
    come, :meth:`run`."""

    def __init__(self, *args):
        super().__init__(*args)
        self.gate = threading.Event()
        self.waited, self.owned = [], []

    def stream(self, name):
        return _HeldStream(self, super().stream(name))

    @property
    def current_stream(self):
        return _HeldStream(self, super().current_stream)

    def finish(self):
        """Everything until now has happened; what comes is held again."""
        self.gate.set()
        self.gate = threading.Event()

    def run(self):
        """From now on everything happens at once."""
        self.gate.set()


def first(ids):
    """A ranking of these vertices."""
    ids = torch.as_tensor(list(ids))
    return lambda types: dict.fromkeys(types, Ranking(ids))


def set_of(sources, num_nodes, budget="25%", accelerator=None, **options):
    """A set of these fields: tensors, or functions that give them."""
    pool = BufferPool(4)
    return FieldSet(
        {
            key: (value if callable(value) else lambda value=value: value)
            for key, value in sources.items()
        },
        device=CPU if accelerator is None else accelerator.device,
        budget=Budget.parse(budget),
        rank=options.pop("rank", None) or first(range(num_nodes)),
        pool_of=lambda key: pool,
        num_nodes=num_nodes,
        accelerator=accelerator,
        **options,
    )


def same_bits(left, right):
    """Whether two tensors are equal, NaN by NaN."""
    return left.dtype == right.dtype and torch.equal(
        left.contiguous().reshape(-1).view(torch.uint8),
        right.contiguous().reshape(-1).view(torch.uint8),
    )
