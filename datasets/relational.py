"""A generated temporal database, with a task whose best accuracy without leakage is known."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..graph.graph import CSC, EdgeType, Graph
from ..seeds.keys import derive_key
from ..system.arrays import Array, Float64Array, Int64Array
from ..system.progress import Progress
from .block_models import noisy_features, power_weights
from .random_fields import bit_rows, label_rows, normal_rows

PERIOD = 30 * 24 * 3600
"""Seconds of a period of :func:`shop`."""

_MOST_PURCHASES = 20.0  # per customer and period, so that no few customers dominate
_EXPONENT = 2.5  # of the power laws of activity and popularity

Ids = Int64Array


def draw_shop(
    num_customers: int,
    num_products: int,
    num_periods: int,
    *,
    persistence: float,
    num_features: int,
    seed: int,
    progress: Progress | None,
) -> Graph:
    """The database of :func:`~pagraph.datasets.shop`, which checks the arguments."""
    liked = _liked_kinds(num_customers, num_periods, persistence, derive_key(seed, 0))
    first = label_rows(num_customers, num_periods // 2, derive_key(seed, 1))[:].numpy()
    kinds = torch.arange(num_products, device="cpu") % 2
    customer, period = _purchases(first, num_periods, derive_key(seed, 2))
    product = _bought(kinds.numpy(), liked[customer, period], derive_key(seed, 3))
    asked, at = _questions(first, num_periods)
    sizes = {
        "customer": num_customers,
        "product": num_products,
        "purchase": len(customer),
        "task": len(asked),
    }
    keys: dict[EdgeType, Ids] = {
        ("customer", "made", "purchase"): customer,
        ("product", "sold_in", "purchase"): product,
        ("customer", "asked", "task"): asked,
    }
    csc = {}
    for (source, relation, target), key in keys.items():
        # Row i of a table refers to key[i].
        of_table = np.arange(len(key))
        csc[source, relation, target] = CSC.from_coo(key, of_table, (sizes[source], sizes[target]))
    csc["purchase", "made_by", "customer"] = csc["customer", "made", "purchase"].transpose()
    csc["purchase", "of", "product"] = csc["product", "sold_in", "purchase"].transpose()
    graph = Graph(csc, sizes)
    second = 1 + bit_rows(len(period), derive_key(seed, 4))[:] % PERIOD
    bought_at = _whole(period) * PERIOD + second
    asked_period = _whole(at)
    question = {"time": asked_period * PERIOD, "label": _whole(liked[asked, at])}
    tables: dict[str, dict[str, Tensor]] = {
        "customer": {
            "time": _whole(first) * PERIOD,
            "feat": _noise(num_customers, num_features, derive_key(seed, 5)),
        },
        "product": {"feat": noisy_features(kinds, 2, num_features, 0.0, derive_key(seed, 6))},
        "purchase": {
            "time": bought_at,
            "feat": _noise(len(customer), num_features, derive_key(seed, 7)),
        },
        "task": question | _by_period(asked_period, num_periods),
    }
    for done, (ntype, fields) in enumerate(tables.items(), 1):
        for name, rows in fields.items():
            graph.set_field(name, rows, node_type=ntype)
        if progress is not None:
            progress(done, len(tables))
    return graph


def _liked_kinds(num_customers: int, num_periods: int, persistence: float, key: int) -> Array:
    """The kind that each customer likes in each period, shape ``(num_customers, num_periods)``,
    bool."""
    uniform = _uniform(num_customers * num_periods, key).reshape(num_customers, num_periods)
    changes = uniform >= persistence
    # The first kind is a coin flip; each later one is the parity of changes so far.
    changes[:, 0] = uniform[:, 0] >= 0.5
    liked: Array = np.logical_xor.accumulate(changes, axis=1)
    return liked


def _purchases(first: Ids, num_periods: int, key: int) -> tuple[Ids, Ids]:
    """Customer and period of each purchase, by customer, at least one per period from the first."""
    activity = power_weights(len(first), _EXPONENT, derive_key(key, 0))
    rates = np.minimum(activity, _MOST_PURCHASES)
    uniform = _uniform(len(first) * num_periods, derive_key(key, 1)).reshape(-1, num_periods)
    # floor(rate + uniform) has mean rate, and is at least 1 like the rates.
    counts = np.floor(rates[:, None] + uniform).astype(np.int64)
    counts[np.arange(num_periods) < first[:, None]] = 0
    places = np.repeat(np.arange(counts.size), counts.ravel())
    return places // num_periods, places % num_periods


def _bought(kinds: Ids, wanted: Array, key: int) -> Ids:
    """The product of each purchase, drawn by popularity among the wanted kind."""
    uniform = _uniform(len(wanted), derive_key(key, 0))
    popularity = power_weights(len(kinds), _EXPONENT, derive_key(key, 1))
    product = np.empty(len(wanted), dtype=np.int64)
    for kind in (0, 1):
        of_kind = np.flatnonzero(kinds == kind)
        rows = wanted == kind
        sums = np.cumsum(popularity[of_kind])
        # `minimum` below: rounding may move the largest draw past the last sum.
        drawn = np.searchsorted(sums, uniform[rows] * sums[-1], side="right")
        product[rows] = of_kind[np.minimum(drawn, len(of_kind) - 1)]
    return product


def _questions(first: Ids, num_periods: int) -> tuple[Ids, Ids]:
    """Customer and asked period of each question, for all periods with an earlier one."""
    known = np.arange(num_periods) > first[:, None]
    customer, period = np.nonzero(known)
    return customer.astype(np.int64), period.astype(np.int64)


def _by_period(period: Tensor, num_periods: int) -> dict[str, Tensor]:
    """Masks of the questions: the last period is test, the one before validation."""
    last = num_periods - 1
    return {
        "train_mask": period < last - 1,
        "val_mask": period == last - 1,
        "test_mask": period == last,
    }


def _uniform(count: int, key: int) -> Float64Array:
    """Random numbers in [0, 1)."""
    numbers: Float64Array = bit_rows(count, key)[:].numpy() / 2.0**63
    return numbers


def _whole(values: Array) -> Tensor:
    return torch.from_numpy(values.astype(np.int64))


def _noise(count: int, width: int, key: int) -> Tensor:
    return normal_rows((count, width), key)[:]
