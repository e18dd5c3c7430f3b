"""LoaderControls: what every loader lets its user do."""

from __future__ import annotations

import os
from typing import Any

from ..cache.plan import CachePlans
from ..stats.stats import LoaderStats
from ..stats.trace import Tracer
from .engine import Engine

__all__ = ["LoaderControls"]


class LoaderControls:
    """Base of the loaders: statistics, the cache, a timeline, and a place to go on from. Subclasses set ``_engine``."""

    _engine: Engine[Any]

    @property
    def stats(self) -> LoaderStats:
        """Rows, bytes, hits and seconds by stage, tier and field, for each epoch and in total; prints as a table."""
        return self._engine.stats

    @property
    def cache_plan(self) -> CachePlans:
        """What the static cache holds of each type: rows, bytes and what they should save; prints as a table."""
        return self._engine.fields.plans

    def invalidate_cache(self) -> None:
        """Forget cached rows: for changes nobody can see (writes through NumPy views, by other processes)."""
        self._engine.fields.invalidate()

    def close(self) -> None:
        """End the newest pass, if it is not over, and unpin host memory; also done when nobody has the loader any more.

        A pass that begins after it pins it anew.
        """
        self._engine.close()

    def trace(self, path: str | os.PathLike[str] | Tracer, *, label: str = "loader") -> Tracer:
        """Write a timeline of what the loader does from now on: a Chrome trace, which Perfetto opens.

        Args:
            path: A new file (``.gz``: compressed), or the tracer of another loader: both are in its file then.
            label: What this loader is called there.

        Returns:
            A context manager; its ``stop()``, or the end of the ``with`` block, writes the file.

        Raises:
            OSError: The path cannot be written.
            PipelineError: The loader is being traced already.
        """
        return self._engine.epochs.tracing.start(path, label)

    def shrink_cache(self) -> bool:
        """Give up half of what is cached on a GPU, for a training step that ran out of memory; then repeat the step.

        Loaders do so by themselves where a batch of their own does not fit. The room stays smaller: give ``cache``
        what ``cache_plan`` says afterwards to have it from the start.

        Returns:
            Whether there was anything to give up; on the CPU there never is.
        """
        shrink = self._engine.epochs.steps.shrink
        return shrink is not None and shrink()

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass epoch number ``epoch`` (from 0); the passes after it count on from there.

        What ``DistributedSampler.set_epoch`` is to torch's loader. Passes are counted anyway: it is needed to go on
        where another run stopped, to repeat an epoch, or where processes made different numbers of passes.

        With a ``seed``, order and sampling are those of that epoch, exactly. A place in the middle of this very epoch
        that ``load_state_dict`` has set stays; any other is given up.

        Raises:
            TypeError: ``epoch`` is not an integer.
            ValueError: ``epoch`` is negative.
        """
        self._engine.epochs.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands: pass it to ``load_state_dict`` to go on with the batch after the last one."""
        return self._engine.epochs.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state_dict()``, of this loader or of one made with the same arguments."""
        self._engine.epochs.load_state_dict(state)
