"""The CUDA accelerator, and the accelerator for a device argument."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Protocol, TypeVar, cast

import torch
from torch import Tensor

from .._postponed import collection_later
from ..errors import MissingDependencyError
from .accelerator import Accelerator, Event, OutOfMemory, Stream, empty_in_any_mode
from .pinning import Pin, PinnedMemory
from .triton_kernels import has_triton, interprets, launch

# One for all devices: memory is pinned for all of them, until none reads it any more.
_pinned = PinnedMemory()


class _CudaEvent(Event):
    def __init__(self, event: torch.cuda.Event) -> None:
        self.event = event

    @property
    def has_happened(self) -> bool:
        return bool(self.event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        self.event.synchronize()

    def seconds_since(self, earlier: Event) -> float:
        return float(cast(_CudaEvent, earlier).event.elapsed_time(self.event)) * 1e-3


class _CudaStream(Stream):
    def __init__(self, stream: torch.cuda.Stream, here: threading.local) -> None:
        self._stream = stream
        self._here = here

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _CudaStream) and bool(self._stream == other._stream)

    def __hash__(self) -> int:
        return hash(self._stream)

    @contextmanager
    def use(self) -> Iterator[None]:
        # Triton launches on the thread's device, so it must be this stream's. torch.cuda.stream
        # would set it too. But to restore another device it calls cudaSetDevice, which creates a
        # context of some hundred MB on a device that may not be used at all.
        before: _CudaStream | None = getattr(self._here, "stream", None)
        index = self._stream.device.index
        elsewhere = torch.cuda.current_device() != index
        with torch.cuda.device(index) if elsewhere else nullcontext():
            previous = before._stream if before is not None else torch.cuda.current_stream(index)
            torch.cuda.set_stream(self._stream)
            self._here.stream = self
            try:
                yield
            finally:
                self._here.stream = before
                torch.cuda.set_stream(previous)

    def record(self) -> Event:
        # blocking=True: a waiting thread sleeps. If it spun, it would take a core from threads that
        # gather rows.
        event = torch.cuda.Event(enable_timing=True, blocking=True)  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return _CudaEvent(event)

    def wait_for(self, event: Event) -> None:
        self._stream.wait_event(cast(_CudaEvent, event).event)

    def owns(self, tensor: Tensor) -> None:
        tensor.record_stream(self._stream)


class CudaAccelerator(Accelerator):
    """A CUDA device, with an index."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._lock = threading.Lock()  # guards _streams; its holder takes no other
        # Held while kernels are tried, which takes _lock and the lock of launches.
        self._trying = threading.Lock()
        # Held while work is captured, which one thread may do at a time.
        self._recording = threading.Lock()
        self._runs_kernels: bool | None = None
        self._streams: dict[str, _CudaStream] = {}
        # The user's streams by torch's key. Torch has a few per device and reuses them.
        self._seen: dict[tuple[int, ...], _CudaStream] = {}
        # `stream` is the stream of ours that the thread uses. Asking torch takes 10 us.
        self._here = threading.local()

    def stream(self, name: str) -> Stream:
        """See :class:`Accelerator`."""
        with self._lock:
            stream = self._streams.get(name)
            if stream is None:
                made = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
                stream = self._streams[name] = _CudaStream(made, self._here)
            return stream

    @property
    def current_stream(self) -> Stream:
        """See :class:`Accelerator`."""
        used: _CudaStream | None = getattr(self._here, "stream", None)
        if used is not None:
            return used
        # torch.cuda.current_stream makes a new object in 3 us, and a batch asks four times.
        key = torch._C._cuda_getCurrentStream(self.device.index)
        known = self._seen.get(key)
        if known is None:
            stream = torch.cuda.current_stream(self.device)
            known = self._seen[key] = _CudaStream(stream, self._here)
        return known

    @property
    def runs_kernels(self) -> bool:
        """See :class:`Accelerator`; tried once, as Triton may lack a compiler or the device."""
        with self._trying:
            if self._runs_kernels is None:
                self._runs_kernels = has_triton() and not interprets() and self._answers()
            return self._runs_kernels

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """See :class:`Accelerator`."""
        return empty_in_any_mode(shape, dtype=dtype, device=self.device)

    def host_memory(self, nbytes: int) -> Tensor:
        """See :class:`Accelerator`."""
        return empty_in_any_mode(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)

    def recorded(self, work: Callable[[], object]) -> Callable[[], object]:
        """See :class:`Accelerator`; a CUDA graph, made without ``torch.cuda.graph``, which empties
        all caches."""
        work()  # compiles and loads kernels, which must not happen during capture
        graph = torch.cuda.CUDAGraph()
        pool = torch.cuda.graph_pool_handle()
        # Captured on a separate stream, since other threads' work on this one would be recorded
        # too. A graph may be replayed on any stream. Garbage collection is postponed, because a
        # finaliser may wait for the device, which must not happen during capture.
        with self._recording, collection_later(), self.stream("recording").use():
            try:
                graph.capture_begin(pool, capture_error_mode="thread_local")
                try:
                    work()
                except BaseException:
                    # Ending an incomplete capture raises too, which would hide the first error.
                    with contextlib.suppress(RuntimeError):
                        graph.capture_end()
                    raise
                graph.capture_end()
            except BaseException:
                _end_pool(self.device, pool)
                raise
        replay: Callable[[], object] = graph.replay
        return replay

    def pin(self, tensor: Tensor) -> Pin | None:
        """See :class:`Accelerator`."""
        return _pinned.pin(tensor, self.device)

    def free_bytes(self) -> tuple[int, int]:
        """See :class:`Accelerator`; memory that torch's allocator keeps for reuse is free."""
        free, total = torch.cuda.mem_get_info(self.device)
        kept = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return free + kept, total

    def release_memory(self) -> None:
        """See :class:`Accelerator`."""
        torch.cuda.empty_cache()

    def synchronize(self) -> None:
        """See :class:`Accelerator`."""
        torch.cuda.synchronize(self.device)

    def _answers(self) -> bool:
        try:
            from ._gpu import answer  # needs Triton

            with self.stream("reading").use():
                out = self.empty((1,), torch.int32)
                launch(answer, 1, out)
                answered = int(out.cpu()) == 42
            problem = "a kernel returned a wrong result"
        except OutOfMemory:
            raise
        except Exception as error:  # a compiler may raise anything
            answered = False
            problem = (str(error).strip() or repr(error)).splitlines()[0]
        if not answered:
            warnings.warn(
                f"Triton's kernels do not run on {self.device} ({problem}): rows go through a "
                "staging buffer instead, and only the CPU samples",
                RuntimeWarning,
                stacklevel=3,
            )
        return answered

    def __repr__(self) -> str:
        return f"CudaAccelerator({str(self.device)!r})"


def _end_pool(device: torch.device, pool: Any) -> None:
    """Tell torch's allocator that a capture has ended.

    Torch does not do so if CUDA reports that the capture failed. Then memory that several streams
    have used would never be freed.
    """
    calls: Any = torch._C
    # The function's name before torch 2.8.
    older: Any = getattr(calls, "_cuda_endAllocateCurrentStreamToPool", None)
    end = getattr(calls, "_cuda_endAllocateToPool", older)
    with contextlib.suppress(RuntimeError):  # raised if torch has told it
        end(device.index, pool)
        calls._cuda_releasePool(device.index, pool)


_lock = threading.Lock()
_known: dict[torch.device, CudaAccelerator] = {}


def accelerator_for(device: torch.device) -> Accelerator | None:
    """The accelerator of a CUDA device with an index, one object each; None for other devices."""
    if device.type != "cuda":
        return None
    with _lock:
        return _known.setdefault(device, CudaAccelerator(device))


def resolve_device(device: Any, *, name: str = "device") -> torch.device:
    """A device argument as a ``torch.device`` that exists; ValueError if it does not.

    "cuda" means the current CUDA device.
    """
    try:
        resolved = torch.device(device)
    except (RuntimeError, TypeError, ValueError):
        raise ValueError(
            f'{name} must be "cpu", "cuda", "cuda:1" or a torch.device, got {device!r}'
        ) from None
    if resolved.type != "cuda":
        return resolved
    if not torch.cuda.is_available():
        raise ValueError(
            f"{name}={str(device)!r} needs a CUDA device, this machine has none that torch "
            f"{torch.__version__} can use"
        )
    index = torch.cuda.current_device() if resolved.index is None else resolved.index
    if index >= torch.cuda.device_count():
        raise ValueError(
            f"{name} must be one of {torch.cuda.device_count()} CUDA devices, got {str(device)!r}"
        )
    return torch.device("cuda", index)


def resolve_accelerator(
    device: Any, *, name: str = "device"
) -> tuple[torch.device, Accelerator | None]:
    """Device and accelerator of a device argument, which may also be an accelerator.

    Raises ValueError unless it is the CPU or a CUDA device.
    """
    if isinstance(device, Accelerator):
        return device.device, device
    resolved = resolve_device(device, name=name)
    accelerator = accelerator_for(resolved)
    if accelerator is None and resolved.type != "cpu":
        raise ValueError(f"{name} must be 'cpu' or a CUDA device, got {str(device)!r}")
    return resolved, accelerator


def samples_on_device(
    sampling_device: Any, device: torch.device, accelerator: Accelerator | None
) -> bool:
    """Whether batches are sampled on the device that they are delivered on, not on the CPU.

    Raises ValueError for any other ``sampling_device``.
    """
    where, sampler = resolve_accelerator(sampling_device, name="sampling_device")
    if sampler is None and where.type == "cpu":
        return False
    if sampler is None or sampler is not accelerator:
        raise ValueError(
            f"sampling_device must be 'cpu' or the batches' device {str(device)!r}, got "
            f"{str(where)!r}"
        )
    return True


class Placed(Protocol):
    """Something that knows where its arrays are, in words."""

    placement: str


P = TypeVar("P", bound=Placed)


def sampler_where_wanted(
    sampling_device: Any,
    device: torch.device,
    accelerator: Accelerator | None,
    make: Callable[[Accelerator], P],
) -> tuple[P | None, str]:
    """What samples on the batches' device, if that is wanted and can be, and where the graph is, in
    words.

    Args:
        sampling_device: ``"auto"``, for the device where it can; else see
            :func:`samples_on_device`.
        device: Where batches are delivered.
        accelerator: That device's.
        make: Makes what samples there; ValueError, MissingDependencyError or OutOfMemory where only
            the CPU can. With ``"auto"`` that is the reason, else the error.
    """
    is_auto = isinstance(sampling_device, str) and sampling_device == "auto"
    if not is_auto and not samples_on_device(sampling_device, device, accelerator):
        return None, "host"
    if accelerator is None:
        return None, "host"
    try:
        sampler = make(accelerator)
    except (ValueError, MissingDependencyError, OutOfMemory) as error:
        if not is_auto:
            raise
        return None, f"host: {error}"
    return sampler, sampler.placement


def check_named(sampling_device: Any, what: str = "several types") -> None:
    """Raise ValueError where ``"auto"`` is to sample on a device what nobody has measured on a
    GPU."""
    if isinstance(sampling_device, str) and sampling_device == "auto":
        raise ValueError(f"sampling_device must name a device to sample {what} on it, got 'auto'")
