"""A user's ``worker_init_fn`` in worker threads."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import numpy as np
import torch

__all__ = ["run_worker_init"]

_lock = threading.Lock()


def run_worker_init(worker_init_fn: Callable[[int], object], worker: int) -> None:
    """Run the user's function in a worker thread; its seeds are its own.

    What is written for worker processes seeds Python's, NumPy's and torch's global generators, which here are the
    training loop's: they are put back.
    """
    with _lock:
        state = random.getstate(), np.random.get_state(), torch.get_rng_state()
        try:
            worker_init_fn(worker)
        finally:
            random.setstate(state[0])
            np.random.set_state(state[1])
            torch.set_rng_state(state[2])
