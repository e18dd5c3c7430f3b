"""A race detector for streams: an accelerator on the CPU that knows what would be unordered on a
GPU.

Everything is done at once here, so wrong order gives right values. What would be ordered on a GPU
is kept in vector clocks: each stream and each thread of the host has one; giving work to a stream
orders it after what the thread knows, a stream that waits for an event after what was recorded, and
a thread that waits for it too. An access is a race if it is not ordered after the last write, or a
write not after the last reads. Memory that is freed must have been used in the stream that it was
made in, or be recorded in the others, unless that stream, or who frees it, has waited for these.
"""

import threading
import weakref
from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pagraph.accelerator import Event, HostAccelerator, Stream

WRITTEN = {
    *(
        "out",
        "hits",
        "state",
        "nodes",
        "first",
        "keys",
        "starts",
        "degrees",
        "counts",
        "positions",
        "neighbors",
    ),
    *("places", "flags", "local_ids", "edge_index", "numbers"),
}
"""What kernels write, by the names of their arguments; ``out_indptr`` only ``measure`` does."""


def this_thread():
    """The calling thread as an actor."""
    return f"thread {threading.get_ident()}"


class Memory:
    """Who wrote it last and who has read it since, by actor and clock; which streams may use it."""

    def __init__(self, made_in):
        self.written: tuple[str, int] | None = None
        self.reads: dict[str, int] = {}
        self.users: dict[str, int] = {}  # with the time of their last use
        self.owners = {made_in}
        self.made_in = made_in


class RacingEvent(Event):
    def __init__(self, detector, inner, clock):
        self.detector, self.inner, self.clock = detector, inner, clock

    @property
    def has_happened(self):
        """As late as can be: not before the thread has waited for it, or for something after it."""
        known = self.detector.clock(this_thread())
        return all(known.get(actor, 0) >= time for actor, time in self.clock.items())

    def wait(self):
        self.detector.learn(this_thread(), self.clock)

    def seconds_since(self, earlier):
        return self.inner.seconds_since(earlier.inner)


class RacingStream(Stream):
    def __init__(self, detector, inner):
        self.detector, self.inner, self.name = detector, inner, inner.name

    @contextmanager
    def use(self):
        with self.inner.use(), Watch(self.detector):
            yield

    def record(self):
        return RacingEvent(self.detector, self.inner.record(), self.detector.give_work(self.name))

    def wait_for(self, event):
        self.detector.learn(self.name, event.clock)

    def owns(self, tensor):
        if self.detector.is_on_device(tensor):
            self.detector.memory(tensor).owners.add(self.name)


class Watch(TorchDispatchMode):
    """Tells the detector of the thread's torch operations."""

    def __init__(self, detector):
        super().__init__()
        self.detector = detector

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        read, written = [], []
        for i, argument in enumerate(func._schema.arguments):
            value = args[i] if i < len(args) else kwargs.get(argument.name)
            writes = argument.alias_info is not None and argument.alias_info.is_write
            (written if writes else read).extend(
                t for t in tree_leaves(value) if isinstance(t, torch.Tensor)
            )
        views = all(r.alias_info is not None for r in func._schema.returns)
        made = [] if views else [t for t in tree_leaves(result) if isinstance(t, torch.Tensor)]
        self.detector.operation(func.__name__, [] if views and not written else read, written, made)
        return result


class RaceDetector(HostAccelerator):
    """``races`` tells what would be one on a GPU."""

    def __init__(self, **options):
        super().__init__(**options)
        self.races: list[str] = []
        self._clocks: dict[str, dict[str, int]] = {}
        self._memories: dict[int, Memory] = {}
        self._guard = threading.RLock()
        self._wrapped: dict[int, RacingStream] = {}
        self._freed_in: dict[str, int] = {}  # when each stream used memory last that is free now
        self._at: dict[int, weakref.ref[Memory]] = {}  # by address, for kernels that are told one

    # -- the accelerator
    # ----------------------------------------------------------------------------------

    def stream(self, name):
        return self._wrap(super().stream(name))

    @property
    def current_stream(self):
        return self._wrap(super().current_stream)

    def _wrap(self, stream):
        if isinstance(stream, RacingStream):
            return stream
        with self._guard:
            return self._wrapped.setdefault(id(stream), RacingStream(self, stream))

    def empty(self, shape, dtype):
        tensor = super().empty(shape, dtype)
        storage = tensor.untyped_storage()
        with self._guard:
            stream = self.current_stream.name
            made = self._memories[storage._cdata] = Memory(stream)
            # It may be memory that was freed in this stream, whose own work is not waited for.
            made.reads = {stream: self._freed_in.get(stream, 0)}
            self._at[storage.data_ptr()] = weakref.ref(made)
        weakref.finalize(storage, self._freed, storage._cdata).atexit = False
        return tensor

    def host_memory(self, nbytes):
        tensor = super().host_memory(nbytes)
        storage = tensor.untyped_storage()
        with self._guard:
            memory = self._memories[storage._cdata] = Memory(this_thread())
            memory.owners = None  # pinned memory is held by who copies
        weakref.finalize(storage, self._memories.pop, storage._cdata, None).atexit = False
        return tensor

    def synchronize(self):
        with self._guard:
            for clock in list(self._clocks.values()):
                self.learn(this_thread(), clock)

    # -- clocks
    # -------------------------------------------------------------------------------------------

    def clock(self, actor):
        return self._clocks.setdefault(actor, {})

    def learn(self, actor, clock):
        """What happened before ``clock`` happens before what the actor does from now on."""
        with self._guard:
            mine = self.clock(actor)
            for other, time in clock.items():
                mine[other] = max(mine.get(other, 0), time)

    def give_work(self, actor):
        """The actor does something now; its clock then."""
        with self._guard:
            self.learn(actor, self.clock(this_thread()))
            mine = self.clock(actor)
            mine[actor] = mine.get(actor, 0) + 1
            return dict(mine)

    # -- accesses
    # -----------------------------------------------------------------------------------------

    def memory(self, tensor):
        """What is known of a tensor's memory; None: it is neither the device's nor pinned by the
        engine."""
        return self._memories.get(tensor.untyped_storage()._cdata)

    def is_on_device(self, tensor):
        memory = self.memory(tensor)
        return memory is not None and memory.owners is not None

    def operation(self, name, read, written, made):
        """An operation of torch: on the device if one of its tensors is there, else on the host."""
        with self._guard:
            there = any(self.is_on_device(t) for t in (*read, *written))
            actor = self.current_stream.name if there else this_thread()
            for tensor in made:
                storage = tensor.untyped_storage()
                if there and storage._cdata not in self._memories:
                    self._memories[storage._cdata] = Memory(actor)
                    weakref.finalize(storage, self._freed, storage._cdata).atexit = False
            self.access(name, actor, read, [*written, *made])

    def access(self, name, actor, read, written):
        with self._guard:
            clock = self.give_work(actor)
            for tensor, writes in [*((t, False) for t in read), *((t, True) for t in written)]:
                memory = tensor if isinstance(tensor, Memory) else self.memory(tensor)
                if memory is None:
                    continue
                before = dict([memory.written] if memory.written else [])
                if writes:
                    before |= {k: max(v, before.get(k, 0)) for k, v in memory.reads.items()}
                for other, time in before.items():
                    if clock.get(other, 0) < time:
                        self.races.append(
                            f"{name} on {actor} {'writes' if writes else 'reads'} what {other} uses"
                        )
                memory.users[actor] = clock[actor]
                if writes:
                    memory.written, memory.reads = (actor, clock[actor]), {}
                else:
                    memory.reads[actor] = clock[actor]

    def launched(self, kernel, arguments, constants=None):
        """A kernel, on the current stream."""
        names, read, written = kernel.arg_names, [], []
        for name, value in zip(names, arguments, strict=False):
            if isinstance(value, torch.Tensor):
                writes = name in WRITTEN or (name == "out_indptr" and kernel.__name__ == "measure")
                (written if writes else read).append(value)
        if constants and "SLAB" in constants:
            # It writes to an address that stands in the state, and may read at others.
            state = arguments[names.index("state")].numpy()
            written.append(self._memory_at(state[constants["SLAB"]]))
            if "ADDRESSES" in constants:
                first = constants["ADDRESSES"]
                read += [self._memory_at(address) for address in state[first : first + 5]]
        used = [part for part in read if part is not None]
        self.access(kernel.__name__, self.current_stream.name, used, written)

    def _memory_at(self, address):
        """What is known of the memory that begins at an address; None: it is not the device's."""
        made = self._at.get(int(address))
        return None if made is None else made()

    def _freed(self, key):
        with self._guard:
            memory = self._memories.pop(key, None)
            if memory is not None:
                for stream in memory.owners:
                    last = memory.users.get(stream, 0)
                    self._freed_in[stream] = max(last, self._freed_in.get(stream, 0))
                # Who frees it may have waited for the user, or the stream that gets it next.
                waited = self.clock(this_thread()), self.clock(memory.made_in)
                for user, last in memory.users.items():
                    if user in memory.owners or any(c.get(user, 0) >= last for c in waited):
                        continue
                    self.races.append(
                        f"memory of {memory.owners} is freed, {user} used it and was not recorded"
                    )
