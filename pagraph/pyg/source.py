"""SubgraphSource: makes the batches of PyG's loaders."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ..accelerator import Accelerator, Handover, OutOfMemory, StagingRing
from ..engine.program import Arrays
from ..engine.recording import Wanted
from ..engine.steps import BatchSource, FailedBatch, Fetched, Finish, Sampled
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
    from ..sampling.gpu.sampler import DeviceSampler, SampledBatch
    from ..sampling.gpu.state import Plan
    from ..seeds.order import Ticket
    from ..stats.stats import EpochRecorder


class _Transformed(NamedTuple):
    """A batch that the loader's transforms have processed ahead of the reader.

    Attributes:
        of_output, of_batch: ``transform_sampler_output`` and ``transform``.
        batch: The result of ``transform``.
        error: The error that one of them raised instead.
        written: Versions of the sampler's output before ``transform``, which may write it.
    """

    of_output: Callable[[Any], Any] | None
    of_batch: Callable[[Any], Any] | None
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
        words: Sizes of a batch that a device sampled, see ``Plan``; read by the program.
    """

    ticket: Ticket
    output: Any
    hop_ends: Mapping[str, list[int]]
    reading: Reading | None = None
    batch: Any = None
    rows: Sequence[FieldRows | None] = ()
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


class SubgraphSource(BatchSource[Any]):
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
    def repeats(self) -> bool:
        """See ``BatchSource``; a user's stores are read only once, even if they raise."""
        return not self._joiner.is_remote

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
            prepared = _Prepared(drawn, output, hop_ends)
        else:
            output, ticket = drawn
            prepared = _Prepared(ticket, output, {})
        try:
            return self._planned(prepared)
        except MemoryError:
            raise
        except Exception:
            # The user may be about to set an attribute. Otherwise `again` raises the same error.
            return Sampled(prepared)

    def _planned(self, prepared: _Prepared) -> Sampled:
        """The batch with its reads."""
        reading = self._joiner.plan(prepared.output, prepared.hop_ends)
        return Sampled(prepared._replace(reading=reading), reading.reads, prepared.ready)

    def _sampled_there(
        self, sampler: DeviceSampler, ticket: Ticket, recorder: EpochRecorder
    ) -> Sampled | None:
        """A batch that the device samples; None if PyG must select something on the CPU."""
        made: list[SampledBatch] = []

        def draw(
            seeds: Tensor | Mapping[str, Tensor],
            times: Mapping[str, Tensor] | None,
            key: int,
            owners: Tensor | None,
        ) -> Subgraph:
            found = self._fields.with_room(partial(sampler.sample, seeds, key, dtype, times))
            if owners is not None:
                with sampler.stream.use():
                    batch = owned(found.batch, owners.to(self._device))
                    found = replace(found, batch=batch, ready=sampler.stream.record())
            recorder.device_time("sampling", found.begun, found.ready)
            made.append(found)
            return found.batch  # type: ignore[no-any-return]

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
        ready = made[0].ready
        prepared = _Prepared(ticket, output, hop_ends, reading, ready=ready, words=made[0].words)
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
            return self._transformed(view.transform, batch, ticket, recorder)
        except _OwnError as failure:
            return FailedBatch(_cause(failure))

    def build(self, prepared: _Prepared, rows: Sequence[FieldRows | None]) -> _Prepared:
        """Join the batch ahead, unless a transform of the sampler's output comes first.

        An attribute without rows stays whole until ``deliver`` puts its rows in its place.
        """
        reading = prepared.reading
        prepared = prepared._replace(rows=rows)
        if reading is None or self._view.transform_sampler_output is not prepared.called:
            return prepared
        if reading.levels is None and not self._calls_ahead:
            return prepared
        # If changes cannot be detected (some require gradients), the reader joins.
        if None in reading.versions.values() or (self._pins and None in rows):
            return prepared
        tensors = [None if known is None else known.tensor for known in rows]
        stream: AbstractContextManager[object] = nullcontext()
        if prepared.ready is not None and self._device_sampler is not None:
            # The stream that sampled, so that this work is ordered after it.
            stream = self._device_sampler.stream.use()
        with stream:
            # As `_join` has it, without the call.
            batch = self._joiner.join(prepared.output, reading, tensors)
            if self._pins:
                batch = batch.apply(_pinned)
            sent = None
            if self._sender is not None:
                there = []
                if prepared.ready is not None:
                    there = _sampled_parts(batch, prepared.output.batch is not None)
                # Attributes that are whole stay where they are.
                put: list[Any] = [*tensors, *[read.values for read in reading.reads]]
                sent = self._sender.send(batch, put, there)
        return prepared._replace(batch=batch, sent=sent)

    def is_current(self, prepared: _Prepared) -> bool:
        """See ``BatchSource``; of a batch that was transformed ahead also the rows, as the
        transform may have written the ids that they would be read by again."""
        view = self._view
        function = view.transform_sampler_output
        reading = prepared.reading
        done = prepared.transformed
        if done is not None:
            if done.of_output is not function or done.of_batch is not view.transform:
                return False
            if done.error is not None:
                return True
        elif prepared.called is not None and prepared.called is not function:
            return False
        if reading is None:
            return False
        is_current = self._joiner.is_current(reading)
        if done is None:
            return is_current
        if is_current and not self._fields.outdated(reading.reads, prepared.rows):
            return True
        # A user's sampler cannot sample again, so keep the batch if the sample was overwritten.
        return not self._is_ours and done.written != _versions(prepared.output)

    def again(self, prepared: _Prepared, recorder: EpochRecorder) -> Sampled:
        """See ``BatchSource``: from its sample, or from its ticket if transforms may have written
        that; always from the sample of a user's own sampler."""
        function = prepared.called
        done = prepared.transformed
        is_intact = done is None or done.written == _versions(prepared.output)
        if function is not None and function is not self._view.transform_sampler_output:
            is_intact = False
        ticket = prepared.ticket
        if self._is_ours and not is_intact:
            return self._planned(_Prepared(ticket, *self._sampled(ticket.seeds, ticket.key)))
        prepared = self._handed_over(prepared)
        return self._planned(_Prepared(ticket, prepared.output, prepared.hop_ends, called=function))

    def _transform_ahead(self, fetched: Fetched, recorder: EpochRecorder) -> Fetched:
        """Call the loader's transforms on a batch, unless it cannot be joined yet."""
        prepared, sampled, rows = fetched
        view = self._view
        of_output = view.transform_sampler_output
        if rows is None or (prepared.batch is None and of_output is prepared.called):
            return fetched
        # The transforms may write `input_id`, which has the memory of the seeds.
        ticket = replace(prepared.ticket, seeds=prepared.ticket.seeds.clone())
        prepared = prepared._replace(ticket=ticket)
        done = _Transformed(of_output, view.transform)
        try:
            if of_output is not prepared.called:
                output = self._transformed(of_output, prepared.output, ticket, recorder, place=0)
                before = prepared.reading
                prepared = prepared._replace(output=output, called=of_output, reading=None)
                begin = time.perf_counter_ns()
                prepared, rows = self._read(prepared, before, rows)
                prepared = self.build(prepared, rows)
                recorder.spent("building", begin)
            assert prepared.reading is not None
            sampled = Sampled(prepared, prepared.reading.reads)
            if prepared.batch is None or None in rows:
                return Fetched(prepared, sampled, rows)
            done = done._replace(written=_versions(prepared.output))
            batch = self._transformed(done.of_batch, prepared.batch, ticket, recorder)
            done = done._replace(batch=batch)
        except _OwnError as failure:
            # Not stored in a local: its traceback refers to this frame, and the cycle would keep
            # both until garbage collection.
            return Fetched(_failed(prepared, done, failure), Sampled(None), ())
        except (MemoryError, OutOfMemory):
            raise
        except Exception:
            if not self.repeats:
                raise
            return Fetched(prepared, sampled, None)
        # Without the batch before the transform, which may have written to it.
        prepared = prepared._replace(batch=None, transformed=done)
        return Fetched(prepared, Sampled(prepared), ())

    def _read(
        self, prepared: _Prepared, before: Reading | None, rows: Sequence[FieldRows | None]
    ) -> tuple[_Prepared, Sequence[FieldRows]]:
        """What is read for a sampler's output that was transformed, and its rows; those of before
        are kept if the vertices are the same."""
        reading = self._joiner.plan(prepared.output, prepared.hop_ends)
        kept: Sequence[FieldRows | None] = [None] * len(reading.reads)
        if before is not None:
            kept = self._joiner.kept(before, rows, reading)
        accelerator = self._fields.accelerator
        # The transform may have made the vertices on this thread's stream.
        after = None if accelerator is None else accelerator.current_stream.record()
        found = self._fields.current_each(reading.reads, after, kept)
        return prepared._replace(reading=reading), found

    def _transformed(
        self,
        function: Callable[[Any], Any] | None,
        value: Any,
        ticket: Ticket,
        recorder: EpochRecorder,
        place: int = 1,
    ) -> Any:
        """The result of a loader's transform, or the value without one; _OwnError if it raises."""
        if function is None:
            return value
        begin = time.perf_counter_ns()
        try:
            return transforms.call(function, value, self._view, ticket.key, place)
        except Exception as error:
            raise _OwnError from error
        finally:
            recorder.spent("transform", begin)

    def deliver(self, prepared: _Prepared, rows: Sequence[Tensor], recorder: EpochRecorder) -> Any:
        """The batch with the data's current attributes, on its device, transformed."""
        view = self._view
        ticket = prepared.ticket
        done = prepared.transformed
        try:
            if done is not None:
                if done.error is not None:
                    return FailedBatch(done.error)
                batch = done.batch
            else:
                function = view.transform_sampler_output
                if function is not prepared.called:
                    # Before the transform, which may return anything.
                    prepared = self._handed_over(prepared)
                    output = self._transformed(function, prepared.output, ticket, recorder, place=0)
                    before = prepared.reading
                    prepared = prepared._replace(output=output, called=function, batch=None)
                    prepared, found = self._read(prepared, before, prepared.rows)
                    rows = [known.arrive() for known in found]
                begin = time.perf_counter_ns()
                try:
                    batch = self._on_device(prepared, rows, recorder)
                finally:
                    recorder.spent("building", begin)
                if view.transform is not None:
                    batch = self._transformed(view.transform, batch, ticket, recorder)
        except _OwnError as failure:
            return FailedBatch(_cause(failure))
        output = prepared.output
        of_batch: list[Any] = [output.row, output.node]
        if isinstance(output, PaddedOutput):
            assert self._envelope is not None
            of_batch = [range(sum(output.sampled.edges)), output.sampled_nodes]
            self._envelope.delivered(output.sampled, output.number, recorder)
        edges, nodes = [
            sum(map(len, ids.values())) if isinstance(ids, Mapping) else len(ids)
            for ids in of_batch
        ]
        recorder.delivered(seeds=len(ticket.seeds), edges=edges, input_nodes=nodes)
        return batch

    def _on_device(
        self, prepared: _Prepared, rows: Sequence[Tensor], recorder: EpochRecorder
    ) -> Any:
        """The batch with its current rows, where it is delivered."""
        batch = prepared.batch
        is_there = False
        if batch is not None and _has_put(batch, prepared, rows):
            if prepared.sent is not None:
                sent, is_there = prepared.sent
                sent.arrive()
                recorder.device_time("copying", sent.begun, sent.ready)
        else:
            prepared = self._handed_over(prepared)
            batch = self._fields.with_room(partial(self._join, prepared, rows))
        if (device := self._device) is not None and not is_there:
            move = partial(batch.to, device, non_blocking=device.type != "cpu")
            batch = self._fields.with_room(move)
        return batch

    def _join(self, prepared: _Prepared, rows: Sequence[Tensor | None]) -> Any:
        assert prepared.reading is not None
        batch = self._joiner.join(prepared.output, prepared.reading, rows)
        return batch.apply(_pinned) if self._pins else batch

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


def _has_put(batch: Any, prepared: _Prepared, rows: Sequence[Tensor]) -> bool:
    """Put rows that were read again into a batch that was joined ahead; False if it must be joined
    anew, as those before are not found in it."""
    reading = prepared.reading
    assert reading is not None
    for name, read, then, now in zip(
        reading.names, reading.reads, prepared.rows, rows, strict=True
    ):
        before = read.values if then is None else then.tensor
        if before is now:
            continue
        store = stores_of(batch).get(name[0])
        if len(name) > 2 or store is None or store._mapping.get(name[1]) is not before:
            return False
        store._mapping[name[1]] = now
    return True


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
