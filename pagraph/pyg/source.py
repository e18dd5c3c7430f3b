"""SubgraphSource: makes the batches of PyG's loaders."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ..accelerator import Accelerator, Handover, OutOfMemory, StagingRing
from ..engine.program import Arrays
from ..engine.recording import Wanted
from ..engine.steps import FailedBatch, Fetched, Finish, Sampled
from ..graph.graph import NODE_TYPE
from ..sampling.gpu.state import subgraph_of, typed_subgraph_of
from ..sampling.sampler import seeds_by_type
from ..system.threads import lock_of
from . import transforms
from .filtering import stacked
from .joining import Joiner, Levels, Reading, stores_of
from .package import import_pyg
from .padding import PaddedOutput
from .sampler import output_of, owned

import_pyg()
from torch_geometric.sampler import SamplerOutput  # noqa: E402

if TYPE_CHECKING:
    from ..accelerator import Event
    from ..engine.engine import Engine
    from ..features.field import FieldRows
    from ..graph.minibatch import Subgraph
    from ..sampling.gpu.sampler import DeviceSampler
    from ..sampling.gpu.state import Plan
    from ..seeds.order import Ticket
    from ..stats.stats import EpochRecorder


class _Transformed(NamedTuple):
    """A batch that the loader's transforms have processed ahead of the reader.

    Attributes:
        of_output, of_batch: ``transform_sampler_output`` and ``transform``.
        batch: The result of ``transform``.
        error: The error that one of them raised instead.
        seeds: A copy of the ticket's seeds, since the transforms may write ``input_id``.
        written: Versions of the sampler's output before ``transform``, which may write it.
    """

    of_output: Callable[[Any], Any] | None
    of_batch: Callable[[Any], Any] | None
    seeds: Tensor
    batch: Any = None
    error: Exception | None = None
    written: Sequence[object] = ()


class _Prepared(NamedTuple):
    """A sampled batch.

    Attributes:
        ticket: The batch's ticket.
        output: The sampler's output, after ``called``.
        hop_ends: Ends of each hop's vertices by vertex type; empty for a user's own sampler.
        reading: What is read of the data for it; None if planning failed.
        batch: The batch, joined ahead; None if it is to be joined on delivery.
        rows: The rows that it was joined from.
        sent: The batch's copy on the accelerator, if any.
        called: The ``transform_sampler_output`` that was called, if any.
        transformed: The batch transformed ahead, if any.
        ready: Event of a device's sampling; None if the CPU sampled, or after waiting for it.
        words: Sizes of a batch that a device sampled, see ``Plan``.
    """

    ticket: Ticket
    output: Any
    hop_ends: Mapping[str, list[int]]
    reading: Reading | None = None
    batch: Any = None
    rows: Sequence[Tensor] = ()
    sent: Sent | None = None
    called: Callable[[Any], Any] | None = None
    transformed: _Transformed | None = None
    ready: Event | None = None
    words: Sequence[int] = ()


class _OwnError(Exception):
    """A loader's transform failed, with its error as the cause."""


class Sent(NamedTuple):
    """A batch that was copied to an accelerator.

    Attributes:
        handover: All tensors that a thread has made on the accelerator, also by PyG's selection.
            They must arrive before use.
        is_whole: Whether nothing is left for ``batch.to(device)``.
    """

    handover: Handover
    is_whole: bool


class Sender:
    """Copies batches to an accelerator through pinned memory, ahead of the reader. Thread-safe."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self._ring = StagingRing(accelerator)

    def send(self, batch: Any, rows: Collection[Tensor], sampled: Collection[Tensor] = ()) -> Sent:
        """Replace a batch's plain tensors in host memory by copies on the accelerator.

        Other tensors (sparse ones, PyG's ``EdgeIndex``) are left to ``batch.to(device)``.

        Args:
            batch: A batch that this thread joined.
            rows: Its tensors that fields have read.
            sampled: Its tensors that the accelerator made, on this thread's current stream.
        """
        # Rows have their own events.
        skipped = {id(tensor) for tensor in rows}
        made_there = {id(tensor) for tensor in sampled}
        waiting: dict[int, Tensor] = {}
        others: list[Tensor] = []
        is_whole = True

        def note(tensor: Any) -> Any:
            nonlocal is_whole
            if id(tensor) in skipped:
                return tensor
            if id(tensor) in made_there:
                others.append(tensor)
                return tensor
            if _is_plain(tensor):
                waiting[id(tensor)] = tensor
                return tensor
            if type(tensor) is Tensor and tensor.layout == torch.strided:
                others.append(tensor)
            if isinstance(tensor, Tensor) and tensor.device != self._accelerator.device:
                is_whole = False
            return tensor

        places = _places_of(batch)
        if places is None:
            is_whole = False
            batch.apply(note)
        else:
            for _, _, tensor in places:
                note(tensor)
        # PyG may have selected attributes on the device, on this thread's stream.
        made = self._accelerator.current_stream.record()
        stream = self._accelerator.stream("copying")
        with stream.use():
            stream.wait_for(made)  # so that one event covers both
            begun = stream.record()
            copies = self._ring.upload([tensor.contiguous() for tensor in waiting.values()])
            ready = stream.record()
        sent = dict(zip(waiting, copies, strict=True))
        if places is None:
            batch.apply(lambda tensor: sent.get(id(tensor), tensor))
        else:
            for mapping, name, tensor in places:
                mapping[name] = sent.get(id(tensor), tensor)
        # All copies share one allocation.
        handover = Handover([*copies[:1], *others], self._accelerator, ready, begun)
        return Sent(handover, is_whole)


def _places_of(batch: Any) -> list[tuple[dict[str, Any], str, Tensor]] | None:
    """The tensors of a batch and their places; None if some may be nested deeper than in a store.

    PyG's ``apply`` does the same, but takes 0.07 ms for a batch with nine attributes.
    """
    if not stores_of(batch):
        return None
    places = []
    for store in batch.stores:
        mapping = store._mapping
        for name, value in mapping.items():
            if isinstance(value, Tensor):
                places.append((mapping, name, value))
            elif not _holds_no_tensor(value):
                return None
    return places


def _holds_no_tensor(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_holds_no_tensor, value))
    if isinstance(value, dict):
        return all(map(_holds_no_tensor, value.values()))
    return value is None or isinstance(value, int | float | str)


def _is_plain(tensor: Any) -> bool:
    return (
        type(tensor) is Tensor
        and tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and not tensor.requires_grad
        and not tensor.is_quantized
    )


class SubgraphSource:
    """Samples subgraphs, by our sampler or a user's own, and joins them with the data's attributes.

    Args:
        view: The loader's current ``data``, transforms, inputs and sampler: ours, or any
            ``BaseSampler``.
        joiner: Joins the attributes.
        engine: Recycles memory and makes room.
        device: Device of the batches; None: that of their attributes.
        pins: Deliver batches in pinned memory.
        calls_ahead: Call users' stores and transforms in the threads that prepare batches.
        sender: Copies batches to the device ahead, if any.
        device_sampler: Samples on the device; None: the CPU samples.
    """

    def __init__(
        self,
        view: Any,
        joiner: Joiner,
        engine: Engine[Any],
        device: torch.device | None,
        *,
        pins: bool,
        calls_ahead: bool,
        sender: Sender | None,
        device_sampler: DeviceSampler | None = None,
    ) -> None:
        self._view = view
        self._joiner = joiner
        self._device = device
        self._pins = pins
        self._fields = engine.fields
        self._pools = engine.pools
        self._envelope = engine.envelope
        self._calls_ahead = calls_ahead
        self._sender = sender
        self._device_sampler = device_sampler
        self._whole: tuple[Levels, bool] | None = None
        # Whether the CPU samples nevertheless. Set once, by any thread.
        self._declines = view.transform_sampler_output is not None
        # Selected on the CPU, for which the thread that joins the batch waits for the device.
        self._selects_edges = joiner.selects_edges
        # Our sampler is a pure function. A user's own is called by one thread at a time, across all
        # loaders that share it.
        self._is_ours = view.is_ours
        self._lock: AbstractContextManager[object] = (
            nullcontext() if self._is_ours else lock_of(view.sampler)
        )

    rereads = True
    renewal = None
    send = None
    outputs = ()

    @property
    def inputs(self) -> Sequence[Hashable]:
        """See ``ProgramSource``: all attributes are read for all vertices."""
        return self._joiner.keys

    @property
    def looks_ahead(self) -> bool:
        """See ``BatchSource``."""
        return self._device_sampler is None

    @property
    def is_pure(self) -> bool:
        """See ``BatchSource``; False for stores, which are user code."""
        return self._is_ours and not self._joiner.is_remote

    @property
    def draw(self) -> Callable[[Ticket, EpochRecorder], Any] | None:
        """Sampling in order, one batch at a time, for a user's own sampler."""
        return None if self._is_ours else self._draw

    @property
    def finish(self) -> Finish | None:
        """The loader's transforms, if they may run ahead.

        On another device the reader calls them, since their work runs on the caller's stream.
        """
        view = self._view
        if view.transform is None and view.transform_sampler_output is None:
            return None
        on_cpu = self._device is None or self._device.type == "cpu"
        on_cpu = on_cpu and self._fields.accelerator is None
        return self._transform_ahead if self._calls_ahead and on_cpu else None

    def _draw(self, ticket: Ticket, recorder: EpochRecorder) -> tuple[Any, Ticket]:
        inputs = self._view.inputs(ticket.seeds)
        with self._lock, recorder.time("sampling"):
            return self._view.sample(inputs), ticket

    def sample(self, drawn: Any, recorder: EpochRecorder) -> Sampled:
        """Sample, unless a user's own sampler did, and plan what to read."""
        there = self._device_sampler
        if there is not None and not self._declines:
            sampled = self._sampled_there(there, drawn, recorder)
            if sampled is not None:
                return sampled
        if self._is_ours:
            begin = time.perf_counter_ns()
            try:
                output, hop_ends = self._sampled(drawn.seeds, drawn.key)
            finally:
                recorder.spent("sampling", begin)
            ticket = drawn
        else:
            output, ticket = drawn
            hop_ends = {}
        try:
            reading = self._joiner.plan(output, hop_ends)
        except MemoryError:
            raise
        except Exception:
            # The user may be about to set an attribute. Otherwise `deliver` raises the same error.
            return Sampled(_Prepared(ticket, output, hop_ends))
        return Sampled(_Prepared(ticket, output, hop_ends, reading), reading.reads)

    def _sampled_there(
        self, sampler: DeviceSampler, ticket: Ticket, recorder: EpochRecorder
    ) -> Sampled | None:
        """A batch that the device samples; None if PyG must select something on the CPU."""
        ready: Event | None = None

        words: Sequence[int] = ()

        def draw(
            seeds: Tensor | Mapping[str, Tensor],
            times: Mapping[str, Tensor] | None,
            key: int,
            owners: Tensor | None,
        ) -> Subgraph:
            nonlocal ready, words
            found = self._fields.with_room(partial(sampler.sample, seeds, key, dtype, times))
            ready = found.ready
            words = found.words
            subgraph: Subgraph = found.batch
            if owners is not None:
                with sampler.stream.use():
                    subgraph = owned(subgraph, owners.to(self._device))
                    ready = sampler.stream.record()
            recorder.device_time("sampling", found.begun, ready)
            return subgraph

        begin = time.perf_counter_ns()
        view = self._view
        dtype = view.sampler.dtype
        try:
            inputs = view.inputs(ticket.seeds)
            output, hop_ends = view.sample_ahead(inputs, ticket.key, self._pools, draw)
            reading = self._joiner.plan(output, hop_ends)
        finally:
            recorder.spent("sampling", begin)
        if reading.levels is None or (reading.versions and not self._selects_edges):
            # Attributes were added that PyG selects, so the CPU samples from now on.
            self._declines = True
            return None
        self._joiner.keys = [read.key for read in reading.reads]
        prepared = _Prepared(ticket, output, hop_ends, reading, ready=ready, words=words)
        return Sampled(prepared, reading.reads, ready)

    def begin(self, ticket: Ticket) -> Wanted | None:
        """See ``ProgramSource``: input vertices, their ``input_id``, and their times, if any."""
        view = self._view
        if self._declines or view.transform_sampler_output is not None:
            return None
        inputs = view.inputs(ticket.seeds)
        sampler = view.sampler
        seeds, times = sampler.begins(inputs)
        try:
            # Kernels do not check ids.
            seeds_by_type(sampler.graph, seeds)
        except IndexError:
            return None  # `sample` raises it in the batch's turn
        beside = [inputs.input_id]
        if inputs.time is not None:
            beside.append(inputs.time)
        return Wanted(seeds, beside, times)

    def arrays(self, sampled: Sampled) -> Arrays | None:
        """See ``ProgramSource``: the arrays of a homogeneous subgraph without trees or times.

        None if PyG must select something.
        """
        prepared: _Prepared = sampled.batch
        reading = prepared.reading
        output = prepared.output
        if self._view.transform_sampler_output is not None or type(output) is not SamplerOutput:
            return None
        if reading is None or reading.levels is None or reading.versions:
            return None
        input_id, seed_time, *_ = output.metadata
        is_plain = output.batch is None and output.edge is not None and seed_time is None
        if not is_plain or output.num_sampled_edges is None:
            return None
        self._joiner.keys = [read.key for read in sampled.reads]
        ends = stacked(output.row, output.col).view(-1)
        arrays = [output.node, ends, output.edge, input_id]
        if not all(array.dtype in (torch.int32, torch.int64) for array in arrays):
            return None
        return Arrays(arrays, prepared.hop_ends[NODE_TYPE], output.num_sampled_edges)

    def made(
        self,
        origin: Any,
        plan: Plan,
        arrays: Sequence[Tensor],
        words: Sequence[int],
        keys: Sequence[Hashable],
        rows: Sequence[Tensor],
        recorder: EpochRecorder,
    ) -> Any:
        """See ``ProgramSource``: the batch from what a device has made."""
        view = self._view
        if view.transform_sampler_output is not None:
            return None
        sampler = view.sampler
        # A single type may have a name, too.
        if sampler.is_hetero or plan.trees:
            seeds = {view.input_data.input_type or NODE_TYPE: len(origin.seeds)}
            subgraph = typed_subgraph_of(plan, sampler.graph, seeds, arrays, words)
        else:
            subgraph = subgraph_of(arrays, words, len(plan.hops))
        output = output_of(subgraph, hetero=sampler.is_hetero)
        has_times = view.input_data.time is not None
        output.metadata = arrays[-2:] if has_times else (arrays[-1], None)
        # If attributes were added or removed, None: the batch is made step by step.
        if isinstance(origin, Sampled):
            # The CPU sampled, and planned what to read.
            ticket = origin.batch.ticket
            reading = origin.batch.reading
            if not self._joiner.is_current(reading):
                return None
        else:
            ticket = origin
            reading = self._joiner.plan(output, subgraph.hop_ends)
            if reading.levels is None or reading.versions:
                return None
            if len(reading.reads) != len(keys):
                return None
            for read, key in zip(reading.reads, keys, strict=True):
                if read.key != key:
                    return None
        levels = reading.levels
        batch = self._joiner.join(output, reading, rows)
        if self._whole is None or self._whole[0] is not levels:
            # Attributes of the graph may be on other devices.
            places = _places_of(batch)
            here = arrays[0].device
            is_whole = places is not None and all(place[2].device == here for place in places)
            self._whole = levels, is_whole
        if not self._whole[1]:
            batch = batch.to(self._device, non_blocking=True)
        if view.transform is None:
            return batch
        try:
            return self._transformed(
                view.transform, batch, _Prepared(ticket, output, subgraph.hop_ends), recorder
            )
        except _OwnError as failure:
            return FailedBatch(_cause(failure))

    def words(self, prepared: _Prepared) -> Sequence[int]:
        """See ``ProgramSource``."""
        return prepared.words

    def build(self, prepared: _Prepared, rows: Sequence[FieldRows | None]) -> _Prepared:
        """Join the batch ahead, unless a transform of the sampler's output comes first."""
        reading = prepared.reading
        if reading is None or self._view.transform_sampler_output is not prepared.called:
            return prepared
        if reading.levels is None and not self._calls_ahead:
            return prepared
        # If changes cannot be detected (some require gradients), the reader joins.
        if None in rows or None in reading.versions.values():
            return prepared
        tensors = [known.tensor for known in rows if known is not None]
        stream: AbstractContextManager[object] = nullcontext()
        if prepared.ready is not None and self._device_sampler is not None:
            # The stream that sampled, so that this work is ordered after it.
            stream = self._device_sampler.stream.use()
        try:
            with stream:
                batch = self._join(prepared.output, reading, tensors)
                sent = None
                if self._sender is not None:
                    there = []
                    if prepared.ready is not None:
                        there = _sampled_parts(batch, prepared.output.batch is not None)
                    sent = self._sender.send(batch, tensors, there)
        except (MemoryError, OutOfMemory):
            raise
        except Exception:
            if reading.levels is None:  # a user's stores are read only once, even if they raise
                raise
            return prepared  # as in `sample`
        return prepared._replace(batch=batch, rows=tensors, sent=sent)

    def _transform_ahead(self, fetched: Fetched, recorder: EpochRecorder) -> Fetched:
        """Call the loader's transforms on a batch, unless it cannot be joined yet."""
        prepared, sampled, rows = fetched
        of_output = self._view.transform_sampler_output
        transform = self._view.transform
        seeds = prepared.ticket.seeds.clone()
        done = _Transformed(of_output, transform, seeds)
        try:
            if of_output is not prepared.called:
                prepared = self._called(prepared, of_output, recorder)
                begin = time.perf_counter_ns()
                prepared, sampled, rows = self._joined_ahead(prepared, rows)
                recorder.spent("building", begin)
            if prepared.batch is None:
                return Fetched(prepared, sampled, rows)
            batch = prepared.batch
            done = done._replace(written=_versions(prepared.output))
            if transform is not None:
                batch = self._transformed(transform, batch, prepared, recorder)
            done = done._replace(batch=batch)
        except _OwnError as failure:
            # Not stored in a local: its traceback refers to this frame, and the cycle would keep
            # both until garbage collection.
            return Fetched(_failed(prepared, done, failure), sampled, rows)
        # Drop the batch before the transform, which may have written to it.
        return Fetched(prepared._replace(batch=None, transformed=done), sampled, rows)

    def _joined_ahead(
        self, prepared: _Prepared, rows: Sequence[FieldRows | None]
    ) -> tuple[_Prepared, Sampled, Sequence[FieldRows | None]]:
        """Join a batch whose sampler's output was transformed; reads only rows that changed."""
        try:
            reading = self._joiner.plan(prepared.output, prepared.hop_ends)
            known: dict[int, FieldRows | None] = {}
            if prepared.reading is not None:
                known = self._joiner.still_right(prepared.reading, rows, reading)
            known_rows = [known.get(place) for place in range(len(reading.reads))]
            found = self._fields.current_each(reading.reads, known_rows)
        except MemoryError:
            raise
        except Exception:  # as in `sample`
            return prepared._replace(reading=None), Sampled(None), ()
        prepared = self.build(prepared._replace(reading=reading), found)
        return prepared, Sampled(None, reading.reads), found

    def _called(
        self, prepared: _Prepared, function: Callable[[Any], Any] | None, recorder: EpochRecorder
    ) -> _Prepared:
        """The batch with ``function`` applied to the sampler's output, not joined."""
        if prepared.called is not None:
            prepared = self._sampled_again(prepared, prepared.ticket.seeds)
        output = prepared.output
        if function is not None:
            output = self._transformed(function, output, prepared, recorder, place=0)
        return prepared._replace(output=output, called=function, batch=None)

    def _transformed(
        self,
        function: Callable[[Any], Any],
        value: Any,
        prepared: _Prepared,
        recorder: EpochRecorder,
        place: int = 1,
    ) -> Any:
        """The result of a loader's transform; _OwnError if it raises."""
        begin = time.perf_counter_ns()
        try:
            return transforms.call(function, value, self._view, prepared.ticket.key, place)
        except Exception as error:
            raise _OwnError from error
        finally:
            recorder.spent("transform", begin)

    def _join(self, output: Any, reading: Reading, rows: Sequence[Tensor]) -> Any:
        batch = self._joiner.join(output, reading, rows)
        return batch.apply(_pinned) if self._pins else batch

    def deliver(
        self, prepared: _Prepared, rows: Sequence[Tensor] | None, recorder: EpochRecorder
    ) -> Any:
        """The batch with the data's current attributes, on its device, transformed."""
        view = self._view
        done = prepared.transformed
        try:
            if done is not None and self._stands(prepared, done, rows):
                if done.error is not None:
                    return FailedBatch(done.error)
                batch = done.batch
            else:
                if done is not None:
                    # The transform may have written to the rows.
                    prepared = self._before(prepared, done)
                    rows = None
                if view.transform_sampler_output is not prepared.called:
                    # Before the transform, which may return anything.
                    prepared = self._handed_over(prepared)
                    prepared = self._called(prepared, view.transform_sampler_output, recorder)
                begin = time.perf_counter_ns()
                is_there = False
                try:
                    if self._is_current(prepared, rows):
                        batch = prepared.batch
                        if prepared.sent is not None:
                            sent, is_there = prepared.sent
                            sent.arrive()
                            recorder.device_time("copying", sent.begun, sent.ready)
                    else:
                        prepared = self._handed_over(prepared)
                        batch = self._fields.with_room(partial(self._joined_now, prepared, rows))
                    if (device := self._device) is not None and not is_there:
                        move = partial(batch.to, device, non_blocking=device.type != "cpu")
                        batch = self._fields.with_room(move)
                finally:
                    recorder.spent("building", begin)
                if view.transform is not None:
                    batch = self._transformed(view.transform, batch, prepared, recorder)
        except _OwnError as failure:
            return FailedBatch(_cause(failure))
        output = prepared.output
        edges: Any = output.row
        nodes: Any = output.node
        if isinstance(output, PaddedOutput):
            assert self._envelope is not None
            nodes = output.sampled_nodes
            edges = range(sum(output.sampled.edges))
            self._envelope.delivered(output.sampled, output.number, recorder)
        recorder.delivered(
            seeds=len(prepared.ticket.seeds), edges=_total(edges), input_nodes=_total(nodes)
        )
        return batch

    def _handed_over(self, prepared: _Prepared) -> _Prepared:
        """The batch, after making the reader's stream wait for a device's sample."""
        accelerator = self._fields.accelerator
        if prepared.ready is None or accelerator is None:
            return prepared
        output = prepared.output
        arrays: list[Tensor] = []
        # `col` shares memory with `row`.
        for value in (output.node, output.row, output.edge, output.batch):
            if value is not None:
                arrays += value.values() if isinstance(value, Mapping) else [value]
        accelerator.hand_over(arrays, prepared.ready)
        return prepared._replace(ready=None)

    def _stands(
        self, prepared: _Prepared, done: _Transformed, rows: Sequence[Tensor] | None
    ) -> bool:
        """Whether the batch that was transformed ahead is still right."""
        view = self._view
        if (
            done.of_output is not view.transform_sampler_output
            or done.of_batch is not view.transform
        ):
            return False
        if done.error is not None or self._is_current(prepared, rows):
            return True
        # A user's sampler cannot sample again, so keep the batch if the sample was overwritten.
        return not self._is_ours and done.written != _versions(prepared.output)

    def _before(self, prepared: _Prepared, done: _Transformed) -> _Prepared:
        """The batch before its transform, which may have written to the sampler's output."""
        is_same = done.of_output is self._view.transform_sampler_output
        if is_same and done.written == _versions(prepared.output):
            return prepared._replace(transformed=None)
        return self._sampled_again(prepared, done.seeds)

    def _sampled_again(self, prepared: _Prepared, seeds: Tensor) -> _Prepared:
        """The batch, sampled again; unchanged for a user's own sampler."""
        if not self._is_ours:
            return prepared._replace(transformed=None)
        ticket = prepared.ticket
        return _Prepared(ticket, *self._sampled(seeds, ticket.key))

    def _sampled(self, seeds: Tensor, key: int) -> tuple[Any, dict[str, list[int]]]:
        """Our sampler's output, padded for fixed shapes, and the ends of each hop's vertices."""
        output, hop_ends = self._view.sample_ahead(self._view.inputs(seeds), key, self._pools)
        if self._envelope is None:
            return output, hop_ends
        if self._view.transform_sampler_output is not None:
            raise ValueError(
                "transform_sampler_output must be None with shapes='fixed', which pads what was "
                "sampled"
            )
        return PaddedOutput.of(output, self._envelope, self._pools), hop_ends

    def _is_current(self, prepared: _Prepared, rows: Sequence[Tensor] | None) -> bool:
        """Whether the batch was joined from the data's current values."""
        if prepared.reading is None or rows is None:
            return False
        if prepared.batch is None and prepared.transformed is None:
            return False
        for now, then in zip(rows, prepared.rows, strict=True):
            if now is not then:
                return False
        return self._joiner.is_current(prepared.reading)

    def _joined_now(self, prepared: _Prepared, rows: Sequence[Tensor] | None) -> Any:
        """The batch from the data's current values; reads only rows that changed."""
        output = prepared.output
        reading = self._joiner.plan(output, prepared.hop_ends)
        known = {}
        if rows is not None and prepared.reading is not None:
            known = self._joiner.still_right(prepared.reading, rows, reading)
        places = [place for place in range(len(reading.reads)) if place not in known]
        missing = [reading.reads[place] for place in places]
        found = self._fields.current_each(missing, [None] * len(missing))
        for place, rows_now in zip(places, found, strict=True):
            known[place] = rows_now.arrive()
        return self._join(output, reading, [known[place] for place in range(len(reading.reads))])


def _sampled_parts(batch: Any, has_trees: bool) -> list[Tensor]:
    """The tensors of a batch that a device sampled."""
    names = ["n_id", "e_id", "edge_index"]
    if has_trees:
        names.append("batch")
    return [
        store._mapping[name] for store in batch.stores for name in names if name in store._mapping
    ]


def _versions(output: Any) -> list[object]:
    """Versions of the tensors of a sampler's output; inference tensors never compare equal."""
    versions: list[object] = []
    for name in ("node", "row", "col", "edge", "batch", "metadata"):
        value = getattr(output, name, None)
        several = [value]
        if isinstance(value, Mapping):
            several = list(value.values())
        elif isinstance(value, tuple | list):
            several = list(value)
        for tensor in several:
            if isinstance(tensor, Tensor):
                version: object = object() if tensor.is_inference() else tensor._version
                versions.append(version)
    return versions


def _failed(prepared: _Prepared, done: _Transformed, failure: _OwnError) -> _Prepared:
    """The batch, with the error of the user's transform in its place."""
    return prepared._replace(batch=None, transformed=done._replace(error=_cause(failure)))


def _cause(failure: _OwnError) -> Exception:
    """The error of the user's transform."""
    error = failure.__cause__
    assert isinstance(error, Exception)
    if isinstance(error, StopIteration):
        # It would end the epoch silently.
        stopped = RuntimeError("a transform raised StopIteration")
        stopped.__cause__ = error
        return stopped
    return error


def _pinned(tensor: Any) -> Any:
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:  # torch pins no others
        return tensor
    return tensor.pin_memory()


def _total(tensors: Any) -> int:
    """Length of a tensor, or total length of those in a mapping."""
    if isinstance(tensors, Mapping):
        return sum(len(tensor) for tensor in tensors.values())
    return len(tensors)
