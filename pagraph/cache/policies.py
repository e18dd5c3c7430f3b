"""The policies that have a name."""

from __future__ import annotations

from .auto import adaptive, auto
from .degree import degree
from .oracle import Hindsight
from .policy import Policy
from .presample import Presample
from .random_order import random_order
from .vip import vip

__all__ = ["POLICIES", "ranks_all", "resolve_policy"]

POLICIES: dict[str, Policy] = {
    "adaptive": adaptive,
    "auto": auto,
    "degree": degree,
    "ideal": Hindsight(begin=1_000_000, epochs=30),
    "oracle": Hindsight(),
    "presample": Presample(),
    "random": random_order,
    "vip": vip,
}
"""Name to policy; "presample:K" samples K epochs."""

_PRESAMPLE = "presample:"


def resolve_policy(policy: str | Policy) -> Policy:
    """The policy of that name, or ``policy`` itself if it is a function.

    Raises:
        ValueError: No policy has this name.
        TypeError: ``policy`` is neither a name nor a function.

    >>> resolve_policy("presample:3")
    Presample(epochs=3)
    """
    if isinstance(policy, str) and policy.startswith(_PRESAMPLE):
        return Presample(_epochs(policy))
    if isinstance(policy, str):
        if policy not in POLICIES:
            raise ValueError(f"cache_policy must be one of {sorted(POLICIES)} or a function, got {policy!r}")
        return POLICIES[policy]
    if not callable(policy):
        raise TypeError(f"cache_policy must be a name or a function, got {type(policy).__name__}")
    return policy


def _epochs(policy: str) -> int:
    number = policy.removeprefix(_PRESAMPLE)
    if not (number.isascii() and number.isdigit() and int(number) >= 1):
        raise ValueError(f"cache_policy 'presample:K' needs a whole number of epochs K of at least 1, got {policy!r}")
    return int(number)


def ranks_all(policy: Policy) -> bool:
    """Whether a policy is one of these, which leave no vertex out."""
    return policy in POLICIES.values() or isinstance(policy, Presample)
