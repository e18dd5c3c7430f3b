"""ReadAhead: reads a field's rows before their batch is delivered, and again if they have changed by then."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ..accelerator import OutOfMemory

if TYPE_CHECKING:
    from torch import Tensor

    from ..accelerator import Event
    from ..cache.fields import FieldRows, FieldSet
    from ..stats.stats import EpochRecorder

__all__ = ["ReadAhead"]


class ReadAhead:
    """Reads rows now, in any thread, for a batch that is delivered later; arguments as for ``FieldSet.read``.

    A field that cannot be read may have been deleted only to be set again: that is an error only when the rows are
    needed.

    Raises:
        IndexError: An id is out of range.
        OutOfMemory: The accelerator has no room for the rows.
    """

    __slots__ = ("_after", "_bounds", "_fields", "_ids", "_key", "_rows")

    def __init__(
        self,
        fields: FieldSet,
        key: Hashable,
        ids: Tensor,
        bounds: Sequence[int] | None = None,
        after: Event | None = None,
    ) -> None:
        self._fields, self._key, self._ids, self._bounds, self._after = fields, key, ids, bounds, after
        self._rows: FieldRows | None = None
        try:
            self._rows = fields.read(key, ids, bounds, after)
        except OutOfMemory:  # a RuntimeError too
            raise
        except (KeyError, RuntimeError):
            pass

    def current(self, recorder: EpochRecorder | None) -> Tensor:
        """The rows, for the calling thread's stream; read anew if the field was replaced or written since.

        Raises:
            KeyError: There is no such field now.
        """
        rows, fields = self._rows, self._fields
        if rows is None or not fields.is_current(self._key, rows):
            rows = fields.with_room(partial(fields.read, self._key, self._ids, self._bounds, self._after))
        if rows.ready is None:
            return rows.tensor
        if recorder is not None:
            recorder.device_time("reading", rows.begun, rows.ready)
        return rows.arrive()
