"""Random fields: reproducible, spread as they say, masks disjoint; ranges cover everything once."""

import math
import time

import numpy as np
import pytest
import torch

from pagraph.datasets import random_fields
from pagraph.datasets.generators import check_fractions
from pagraph.datasets.random_fields import (
    bit_rows,
    for_ranges,
    label_rows,
    mask_rows,
    normal_rows,
)

FIELDS = [
    lambda key: bit_rows(1000, key)[:],
    lambda key: label_rows(1000, 7, key)[:],
    lambda key: normal_rows((100, 10), key)[:],
    lambda key: mask_rows(1000, (0.5, 0.2, 0.1), key)["train_mask"][:],
]


@pytest.mark.parametrize("make", FIELDS)
def test_the_key_decides(make):
    assert torch.equal(make(5), make(5))
    assert not torch.equal(make(5), make(6))
    assert not torch.equal(make(5), make(2**64 - 1))


def test_a_longer_array_begins_like_a_shorter_one():
    assert torch.equal(bit_rows(3_000_000, 1)[:10], bit_rows(10, 1)[:])


def test_known_values():
    # SplitMix64 with seed 0 begins with 0xE220A8397B1DCDAF; the lowest bit is dropped.
    assert bit_rows(2, 0)[:].tolist() == [0, 0xE220A8397B1DCDAF >> 1]
    assert label_rows(4, 2**32, 0)[:].tolist() == [0, 0xE220A839, 0x6E789E6A, 0x06C45D18]


def test_labels_are_uniform():
    counts = torch.bincount(label_rows(70_000, 7, 1)[:], minlength=7)
    chi_square = float(((counts - 10_000) ** 2 / 10_000).sum())
    assert chi_square < 22.5  # 99.9 % of the distribution with 6 degrees of freedom


def test_normal_has_its_moments():
    values = normal_rows((1000, 1000), 1)[:].double()
    assert abs(float(values.mean())) < 0.005
    assert abs(float(values.var()) - 1) < 0.005
    assert abs(float((values**3).mean())) < 0.01
    # Four uniform numbers: a little flatter.
    assert 3 - 1.2 / 4 - 0.05 < float((values**4).mean()) < 3.0
    flat = values.view(-1)
    assert abs(float((flat[1:] * flat[:-1]).mean())) < 0.005


@pytest.mark.parametrize(
    ("fractions", "sizes"),
    [
        ((0.6, 0.2, 0.2), (60, 20, 20)),
        ((0.1, 0.0, 0.3), (10, 0, 30)),
        ((1.0, 0.0, 0.0), (100, 0, 0)),
    ],
)
def test_masks_are_disjoint_and_exact(fractions, sizes):
    masks = {name: mask[:] for name, mask in mask_rows(100, fractions, 4).items()}
    assert list(masks) == ["train_mask", "val_mask", "test_mask"]
    assert tuple(int(mask.sum()) for mask in masks.values()) == sizes
    assert int(torch.stack(list(masks.values())).sum(0).max()) <= 1


@pytest.mark.parametrize("count", [0, 1, 2, 7, 1000, 70_000])
@pytest.mark.parametrize(
    "fractions", [(0.6, 0.2, 0.2), (0.1, 0.0, 0.3), (0.0, 0.0, 0.0), (1.0, 0.0, 0.0)]
)
@pytest.mark.parametrize("spread", [2**63, 5])
def test_masks_are_those_of_sorted_numbers(monkeypatch, count, fractions, spread):
    """With few different numbers, most are equal: then the first rows come first."""
    drawn = bit_rows(count, 4)[:] if spread == 2**63 else bit_rows(count, 4)[:] % spread
    monkeypatch.setattr(random_fields, "bit_rows", lambda count, key: drawn)
    monkeypatch.setattr(random_fields, "_ROWS_AT_ONCE", 300)
    order, begin = torch.argsort(drawn, stable=True), 0
    for mask, fraction in zip(mask_rows(count, fractions, 4).values(), fractions, strict=True):
        end = begin + int(count * fraction + 1e-9)
        want = torch.zeros(count, dtype=torch.bool)
        want[order[begin:end]] = True
        assert torch.equal(mask[:], want)
        begin = end


def test_rows_are_the_same_wherever_they_are_cut():
    rows = random_fields.normal_rows((100, 3), 5, torch.float16)
    assert rows.dtype == torch.float16
    assert torch.equal(
        torch.cat([rows[:7], rows[7:8], rows[8:200]]), normal_rows((100, 3), 5)[:].half()
    )


@pytest.mark.parametrize(
    "fractions",
    [
        (0.5, 0.5, 0.5),
        (-0.1, 0.2, 0.2),
        (math.nan, 0, 0),
        (1.1, 0, 0),
        (0.5, 0.5),
        (math.inf, 0, 0),
    ],
)
def test_fractions_that_are_none(fractions):
    with pytest.raises(ValueError, match="fractions must"):
        check_fractions(fractions)


@pytest.mark.parametrize("total", [0, 1, 9, 10, 11, 95])
def test_covers_everything_once(monkeypatch, total):
    monkeypatch.setattr(random_fields, "_RANGE", 10)
    counts = np.zeros(total, dtype=int)
    calls = []

    def run(begin, end):
        counts[begin:end] += 1

    for_ranges(total, run, progress=lambda done, whole: calls.append((done, whole)))
    assert (counts == 1).all()
    assert [whole for _, whole in calls] == [total] * len(calls)
    assert [done for done, _ in calls][-1:] == ([total] if total else [])


def test_a_failure_reaches_the_caller_and_stops_the_rest(monkeypatch):
    monkeypatch.setattr(random_fields, "_RANGE", 1)
    ran = []

    def run(begin, _end):
        ran.append(begin)
        time.sleep(0.001)
        if begin == 3:
            raise RuntimeError("bad range")

    with pytest.raises(RuntimeError, match="bad range"):
        for_ranges(2000, run)
    assert len(ran) < 2000


def test_a_failing_progress_reaches_the_caller():
    def progress(_done, _total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        for_ranges(10, lambda begin, end: None, progress=progress)
