"""Names that options take: of cache policies, row forms, partitioning methods, orders and files.

What is behind a name is in the room that has it, and takes seconds to import. The tests compare
the names here with those there.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..system.checks import StrPath

POLICY_NAMES = (
    *("adaptive", "auto", "degree", "ideal"),
    *("oracle", "presample", "random", "vip"),
)
"""Cache policies; "presample:K" samples K epochs."""
METHOD_NAMES = ("auto", "halo", "pagraph", "metis", "hash")
"""Partitioning methods; the first one is the default."""
FORM_NAMES = ("float16", "bfloat16", "int8")
"""Forms in which rows take fewer bytes."""
ORDERS = ("reads", "community", "both")
"""Orders of vertices in which rows that are read together lie together."""
SUMS = {"sage": "feat_mean", "gcn": "feat_gcn"}
"""The field that holds the pre-aggregated sums, by model."""
EXPORT_FORMS = {"dgl": ".bin", "pyg": ".pt", "ogb": ""}
"""Form of an exported graph to what its file's name ends in; OGB's is a folder."""
FEATURE_DTYPES = ("float32", "float16", "bfloat16")
"""Dtypes of the random features of an RMAT graph."""
PLOT_FORMATS = (".png", ".svg")
"""Endings of the files that a profile can be drawn into."""
PARTITION_PLOT_FORMATS = (*PLOT_FORMATS, ".pdf")
"""Endings of the files that a partition can be drawn into."""

_PRESAMPLE = "presample:"
_ALIASES = {"fp16": "float16", "half": "float16", "bf16": "bfloat16"}


def check_policy(policy: str) -> int | None:
    """Check the name of a cache policy, or raise ValueError; returns the K of "presample:K"."""
    if policy.startswith(_PRESAMPLE):
        number = policy.removeprefix(_PRESAMPLE)
        if not (number.isascii() and number.isdigit() and int(number) >= 1):
            raise ValueError(
                "cache_policy 'presample:K' needs a whole number of epochs K of at least 1, got "
                f"{policy!r}"
            )
        return int(number)
    if policy not in POLICY_NAMES:
        raise ValueError(
            f"cache_policy must be one of {sorted(POLICY_NAMES)} or a function, got {policy!r}"
        )
    return None


def check_compared(policy: str) -> None:
    """Raise ValueError unless a hit-rate curve knows a policy of that name."""
    name, colon, number = policy.partition(":")
    if name not in POLICY_NAMES:
        known = sorted(POLICY_NAMES)
        raise ValueError(f"policies must be among {known} or functions, got {policy!r}")
    if name != "ideal":
        check_policy(policy)
    elif colon and not (number.isdecimal() and int(number) >= 1):
        raise ValueError(f"policies must be 'ideal:N' with N at least 1, got {policy!r}")


def check_method(name: str) -> None:
    """Raise ValueError unless there is a partitioning method of that name."""
    if name not in METHOD_NAMES:
        raise ValueError(f"method must be one of {', '.join(METHOD_NAMES)}, got {name!r}")


def check_plot_name(path: StrPath, formats: Sequence[str]) -> None:
    """Raise ValueError unless a file that is to be drawn ends in one of ``formats``."""
    if Path(path).suffix.lower() not in formats:
        raise ValueError(f"plot must end in {' or '.join(formats)}, got {os.fspath(path)!r}")


def form_name(argument: str, given: Any) -> str | None:
    """Name of the row form that a name or a torch dtype means, None for None; ValueError, which
    names the ``argument``, for anything else."""
    if given is None:
        return None
    # A dtype by what it prints as: torch need not be imported to know it.
    name = given.lower() if isinstance(given, str) else str(given).removeprefix("torch.")
    name = _ALIASES.get(name, name)
    if name in FORM_NAMES and (isinstance(given, str) or str(given) == f"torch.{name}"):
        return name
    raise ValueError(
        f"{argument} must be None, torch.float16, torch.bfloat16, torch.int8 or their names, got "
        f"{given!r}"
    )
