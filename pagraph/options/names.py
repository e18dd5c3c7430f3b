"""Names that options take: cache policies, row forms, partitioning methods, orders and files.

The rooms that implement them take seconds to import. Tests compare the names here with theirs.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..system.checks import StrPath

POLICY_NAMES = ("adaptive", "auto", "degree", "ideal", "oracle", "presample", "random", "vip")
"""Cache policies; "presample:K" samples K epochs."""
METHOD_NAMES = ("auto", "halo", "pagraph", "metis", "hash")
"""Partitioning methods; the first one is the default."""
FORM_NAMES = ("float16", "bfloat16", "int8")
"""Forms in which rows take fewer bytes."""
ORDERS = ("reads", "community", "both")
"""Orders of vertices that place rows read together next to each other."""
SUMS = {"sage": "feat_mean", "gcn": "feat_gcn"}
"""The field that holds the pre-aggregated sums, by model."""
EXPORT_FORMS = {"dgl": ".bin", "pyg": ".pt", "ogb": ""}
"""Form of an exported graph to the ending of its file's name; OGB's is a folder."""
FEATURE_DTYPES = ("float32", "float16", "bfloat16")
"""Dtypes of the random features of an RMAT graph."""
PLOT_FORMATS = (".png", ".svg")
"""Endings of files that a profile can be drawn into."""
PARTITION_PLOT_FORMATS = (*PLOT_FORMATS, ".pdf")
"""Endings of files that a partition can be drawn into."""

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
    """Raise ValueError unless ``policy`` names one that a hit-rate curve compares."""
    name, colon, number = policy.partition(":")
    if name not in POLICY_NAMES:
        known = sorted(POLICY_NAMES)
        raise ValueError(f"policies must be among {known} or functions, got {policy!r}")
    if name != "ideal":
        check_policy(policy)
    elif colon and not (number.isdecimal() and int(number) >= 1):
        raise ValueError(f"policies must be 'ideal:N' with N at least 1, got {policy!r}")


def check_method(name: str) -> None:
    """Raise ValueError unless ``name`` is a partitioning method."""
    if name not in METHOD_NAMES:
        raise ValueError(f"method must be one of {', '.join(METHOD_NAMES)}, got {name!r}")


def check_plot_name(path: StrPath, formats: Sequence[str]) -> None:
    """Raise ValueError unless the path of a plot ends in one of ``formats``."""
    if Path(path).suffix.lower() not in formats:
        raise ValueError(f"plot must end in {' or '.join(formats)}, got {os.fspath(path)!r}")


def form_name(argument: str, given: Any) -> str | None:
    """Name of the row form that ``given``, a name or a torch dtype, means; None for None.

    Raises:
        ValueError: It is something else. The message names the ``argument``.
    """
    if given is None:
        return None
    # A dtype is known by its repr, without importing torch.
    name = given.lower() if isinstance(given, str) else str(given).removeprefix("torch.")
    name = _ALIASES.get(name, name)
    if name in FORM_NAMES and (isinstance(given, str) or str(given) == f"torch.{name}"):
        return name
    raise ValueError(
        f"{argument} must be None, torch.float16, torch.bfloat16, torch.int8 or their names, got "
        f"{given!r}"
    )
