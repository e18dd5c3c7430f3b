"""Whether a tensor's memory is a file on disk."""

from __future__ import annotations

import threading
import weakref

import torch

from ..indexed_rows import FieldValue, IndexedRows
from ..memory_maps import address_on_disk

__all__ = ["on_disk"]

# A storage is never moved from memory to disk, so one look is enough; the entry dies with the storage.
_known: weakref.WeakKeyDictionary[torch.UntypedStorage, bool] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def on_disk(values: FieldValue) -> bool:
    """Whether the memory of a CPU tensor is a mapped file (``numpy.memmap``, ``torch.from_file``).

    Of rows by reference their source's counts.

    Files in memory (``/dev/shm``, any tmpfs, memfd) do not count. False where the system does not tell.
    """
    tensor = values.source if isinstance(values, IndexedRows) else values
    if tensor.device.type != "cpu" or tensor.layout != torch.strided or tensor.numel() == 0:
        return False
    storage = tensor.untyped_storage()
    with _lock:
        known = _known.get(storage)
    if known is None:
        known = address_on_disk(tensor.data_ptr())
        with _lock:
            _known[storage] = known
    return known
