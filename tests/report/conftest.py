"""Curves made by hand: what is drawn and written of them is known without sampling."""

import pytest

from pagraph.profile import CurveRecord, HitRateCurve
from pagraph.profile.loading import EpochTimes, LoadingTimes
from pagraph.report.times import Span

SHARES = (0.1, 0.2, 0.5, 1.0)
RATES = {
    "auto": (0.5, 0.7, 0.9, 1.0),
    "degree": (0.3, 0.5, 0.8, 1.0),
    "oracle": (0.6, 0.8, 1.0, 1.0),
}


def hand_curve(*, rates=None, features=True, num_nodes=1000, reads=2000.0):
    """A curve with these hit rates by policy at 10, 20, 50 and 100 % of the vertices."""
    rates = RATES if rates is None else rates
    records = []
    for policy, of_policy in rates.items():
        for share, rate, limit in zip(SHARES, of_policy, RATES["oracle"], strict=True):
            rows = int(share * num_nodes)
            records.append(
                CurveRecord(
                    policy,
                    share,
                    rows,
                    rows * 40 + 4 * num_nodes if features else None,
                    rate,
                    hit_rate_by_epoch=[rate, rate],
                    hit_rate_by_hop=[share, rate],
                    hit_rate_by_field={"feat": rate} if features else {},
                    bytes_moved=round((1 - rate) * reads * 40) if features else None,
                    predicted_hit_rate=None if policy == "degree" else rate,
                    oracle_hit_rate=limit,
                    share_of_oracle=rate / limit,
                )
            )
    return HitRateCurve(
        records,
        num_nodes,
        batches=4,
        reads=reads,
        rows_by_hop=[400.0, reads - 400.0],
        row_bytes={"feat": 40} if features else {},
        bytes_read=round(reads * 40) if features else None,
        settings={"sampler": "NeighborSampler([5])", "seed": 0},
        seconds={"ranking": 0.1, "counting": 0.5, "summing": 0.01},
    )


@pytest.fixture
def curve():
    return hand_curve()


@pytest.fixture
def make_curve():
    return hand_curve


@pytest.fixture
def loading():
    stages = {
        "sampling": 0.6,
        "gathering": 0.9,
        "filling": 0.0,
        "waiting": 0.5,
        "copying": 0.1,
        "computing": 0.3,
        "kernels": 0.0,
    }
    first = EpochTimes(0, 4, 1.5, {**stages, "filling": 0.4, "kernels": 2.0}, 0.7, 2000)
    return LoadingTimes(
        [first, EpochTimes(1, 4, 1.0, stages, 0.7, 2000)], {"computes": True}, "plan"
    )


@pytest.fixture
def spans():
    """Two threads and a training loop over four batches of two epochs; batch 2 of the last epoch
    comes late."""
    made = []
    for epoch in (0, 1):
        for batch in range(4):
            begin = epoch + 0.1 * batch
            made.append(Span(f"worker-{batch % 2}", "sampling", begin, begin + 0.05, epoch, batch))
            made.append(
                Span(f"worker-{batch % 2}", "gathering", begin + 0.05, begin + 0.09, epoch, batch)
            )
            made.append(Span("MainThread", "waiting", begin, begin + 0.09, epoch, batch))
            made.append(Span("MainThread", "computing", begin + 0.09, begin + 0.1, epoch, batch))
    return made
