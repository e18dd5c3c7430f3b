"""RandomStates: puts random generators back after ours has drawn from them and failed."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any


class RandomStates:
    """The states of generators that a loader may draw from, as they are now.

    Those of Python and NumPy, torch's on the CPU, and the loader's own and its sampler's. So a
    loader of theirs that takes over shuffles as it would have without us. DGL's generator and
    CUDA's are not put back: DGL's has no state that can be read.

    Args:
        loader: The loader, which is not kept alive.
        arguments: Those of its constructor by keyword, if it has not run.
    """

    def __init__(self, loader: Any, arguments: Mapping[str, Any] | None = None) -> None:
        self._put_back: list[Callable[[], object]] = [partial(random.setstate, random.getstate())]
        # Neither is imported here: a loader's framework has imported both.
        numpy = sys.modules.get("numpy")
        torch = sys.modules.get("torch")
        if numpy is not None:
            self._put_back.append(partial(numpy.random.set_state, numpy.random.get_state()))
        if torch is None:
            return
        self._put_back.append(partial(torch.set_rng_state, torch.get_rng_state()))
        held = vars(loader) | dict(arguments or {})
        for holder in (held, getattr(held.get("sampler"), "__dict__", {})):
            # A user's object may be of any kind.
            with contextlib.suppress(Exception):
                generator = holder.get("generator")
                if isinstance(generator, torch.Generator):
                    self._put_back.append(partial(generator.set_state, generator.get_state()))

    def put_back(self) -> None:
        """Have all generators draw again what they have drawn since."""
        for put_back in self._put_back:
            put_back()
