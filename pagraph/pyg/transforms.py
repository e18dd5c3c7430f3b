"""Calls of a loader's transforms in its threads, with the batch's own random numbers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import dropout
from torch.overrides import TorchFunctionMode

from ..seeds.keys import derive_key

_DRAWS = {
    torch.rand,
    torch.randn,
    torch.randint,
    torch.randperm,
    torch.normal,
    torch.bernoulli,
    torch.multinomial,
    torch.poisson,
    torch.binomial,
    torch._standard_gamma,
    torch._sample_dirichlet,
    Tensor.bernoulli,
    Tensor.bernoulli_,
    Tensor.multinomial,
    Tensor.random_,
    Tensor.uniform_,
    Tensor.normal_,
    Tensor.exponential_,
    Tensor.geometric_,
    Tensor.cauchy_,
    Tensor.log_normal_,
}
"""Functions of torch that take a ``generator``."""

# These take a generator only since torch 2.9; drawing into an empty tensor always does.
_DRAWS_LIKE: dict[Any, Callable[..., Any]] = {
    torch.rand_like: Tensor.uniform_,
    torch.randn_like: Tensor.normal_,
    torch.randint_like: Tensor.random_,
}


class _OwnRandomness(TorchFunctionMode):
    """Makes the current thread draw from generators seeded by a key, not from torch's global ones.

    The training loop draws from the global generator (dropout) while a transform runs in another
    thread, so neither would be reproducible. Modes are per thread, like ``torch.device``.
    """

    def __init__(self, key: int) -> None:
        super().__init__()
        self._key = key
        self._generators: dict[torch.device, torch.Generator] = {}
        # A transform that seeds the global generator wants to draw from it.
        self._seeded = torch.initial_seed()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # All functions of torch pass here, so the common case comes first.
        draws = func in _DRAWS or func in _DRAWS_LIKE or func is dropout
        if not draws or kwargs.get("generator") is not None:
            return func(*args, **kwargs)
        if torch.initial_seed() != self._seeded:
            return func(*args, **kwargs)
        if func is dropout:
            return self._dropout(*args, **kwargs)
        if func in _DRAWS:
            generator = self._generator(args, kwargs)
            return func(*args, **{**kwargs, "generator": generator})
        return self._like(func, args, kwargs)

    def _like(self, func: Any, args: Any, kwargs: Any) -> Tensor:
        """A function that draws a tensor like another, such as ``torch.rand_like``."""
        given = args or (kwargs.pop("input"),)
        bounds = list(given[1:])
        for name in ("low", "high"):
            if name in kwargs:
                bounds.append(kwargs.pop(name))
        if func is torch.randint_like and len(bounds) == 1:
            bounds.insert(0, 0)  # only `high` was given
        wants_grad = kwargs.pop("requires_grad", False)
        drawn = torch.empty_like(given[0], **kwargs)
        _DRAWS_LIKE[func](drawn, *bounds, generator=self._generator((drawn,)))
        return drawn.requires_grad_() if wants_grad else drawn

    def _dropout(
        self, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        """Torch's dropout, which takes no generator."""
        if not training or not 0.0 < p < 1.0:  # nothing is drawn, or torch raises
            return dropout(input, p, training, inplace)
        kept = torch.empty_like(input, requires_grad=False)
        kept.bernoulli_(1 - p, generator=self._generator((input,)))
        kept.div_(1 - p)
        return input.mul_(kept) if inplace else input * kept

    def _generator(self, args: Any, kwargs: Any = MappingProxyType({})) -> torch.Generator | None:
        """The generator of the device that a function draws on; None on "meta"."""
        for value in (*args, *kwargs.values()):
            if isinstance(value, Tensor):
                device = value.device
                break
        else:
            # An empty tensor tells the default device, which a user's mode may set.
            device = torch.empty(0, device=kwargs.get("device")).device
        if device.type == "meta":
            return None
        if device not in self._generators:
            made = torch.Generator(device).manual_seed(self._key >> 1)  # seeds have 63 bits
            self._generators[device] = made
        return self._generators[device]


class _Running(threading.local):
    """Ids of the views of the loaders whose transforms this thread is running."""

    views: tuple[int, ...] = ()


_running = _Running()


def call(function: Callable[[Any], Any], value: Any, view: Any, key: int, place: int) -> Any:
    """Call a loader's transform for a batch.

    In it, torch's random numbers are a function of the batch's ``key``, in any thread. ``place``
    tells the loader's transforms apart.
    """
    before = _running.views
    _running.views = (*before, id(view))
    try:
        with _OwnRandomness(derive_key(key, place)):
            return function(value)
    finally:
        _running.views = before


def is_running(view: Any) -> bool:
    """Whether the calling thread is running a transform of the loader with this view."""
    return id(view) in _running.views
