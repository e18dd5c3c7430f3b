"""Rounding to 16 bits: torch's own conversion for every pattern of bits, and the errors that are
promised."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from pagraph.features.narrow import parse_cache_dtype
from pagraph.graph import _row_form
from pagraph.graph.row_form import FORMS, Decoding
from pagraph.graph.stored_rows import decode, encode

HALVES = [torch.float16, torch.bfloat16]


def all_patterns():
    """Bits of float32: random ones, every float16 and bfloat16, the ties between them and their
    neighbours."""
    top = np.arange(65536, dtype=np.uint32) << 16
    ties = np.arange(2**19, dtype=np.uint32) << 13
    rng = np.random.default_rng(0)
    parts = [
        top,
        top | 0x7FFF,
        top | 0x8000,
        top | 0x8001,
        ties,
        ties | 0xFFF,
        ties | 0x1000,
        ties | 0x1001,
    ]
    return np.concatenate(
        [*parts, rng.integers(0, 2**32, 300_000, dtype=np.uint64).astype(np.uint32)]
    )


def rounded(values, dtype):
    """By the kernels, into the form and out of it; with the largest finite magnitude."""
    form = FORMS[str(dtype).removeprefix("torch.")]
    rows = values.view(-1, 1)
    stored, bad, _ = encode(form, rows)
    result = decode(Decoding(form, torch.float32, (1,)), stored)
    bits, shut = values.numpy().view(np.uint32), np.uint32(form.limit)
    worst = _row_form.largest(bits, np.uint64(0), len(values), form.code)
    assert bad == -1 or worst >= shut
    if bad >= 0:  # encode stops there; the kernels go on
        _row_form.round_run(bits, np.uint64(0), flat(result), np.uint64(0), len(values), form.code)
    return result.view(-1), np.uint32(worst).view(np.float32)


def flat(rows):
    return rows.view(-1).numpy().view(np.uint32)


def bits_of(tensor):
    return tensor.view(torch.int32)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_every_pattern_is_rounded_as_torch_does(dtype):
    values = torch.from_numpy(all_patterns().view(np.float32))
    result, worst = rounded(values, dtype)
    expected, nan = values.to(dtype).float(), values.isnan()
    assert torch.equal(result.isnan(), nan)
    assert torch.equal(bits_of(result)[~nan], bits_of(expected)[~nan])
    assert worst == values[values.isfinite()].abs().max()


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_narrow_and_wide_again_is_the_same_bits(dtype):
    form, values = (
        FORMS[str(dtype).removeprefix("torch.")],
        torch.from_numpy(all_patterns().view(np.float32)),
    )
    code, bits, zero, count = form.code, flat(values), np.uint64(0), len(values)
    narrow, wide = np.empty(count, dtype=np.uint16), np.empty(count, dtype=np.uint32)
    _row_form.narrow_run(bits, zero, narrow, zero, count, code, np.uint32(0))
    _row_form.widen_run(narrow, zero, wide, zero, count, code)
    assert np.array_equal(wide, bits_of(rounded(values, dtype)[0]).numpy().view(np.uint32))
    number = ~values.isnan()
    assert torch.equal(
        torch.from_numpy(narrow.view(np.int16))[number], values.to(dtype).view(torch.int16)[number]
    )


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_every_16_bits_become_the_number_they_are(dtype):
    narrow = np.arange(65536).astype(np.uint16)
    wide = np.empty(65536, dtype=np.uint32)
    code = FORMS[str(dtype).removeprefix("torch.")].code
    _row_form.widen_run(narrow, np.uint64(0), wide, np.uint64(0), 65536, code)
    expected = torch.from_numpy(narrow.view(np.int16)).view(dtype).float()
    number = ~expected.isnan()
    result = torch.from_numpy(wide.view(np.float32))
    assert torch.equal(result.isnan(), ~number)
    assert torch.equal(bits_of(result)[number], bits_of(expected)[number])


@settings(max_examples=examples(300), deadline=None)
@given(x=st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_the_tolerances_hold(x):
    value = torch.tensor([x], dtype=torch.float32)
    half, brain = (float(rounded(value, dtype)[0]) for dtype in HALVES)
    if abs(x) >= 2.0**-14 and abs(x) < 65520:
        assert abs(half - x) <= 2.0**-11 * abs(x)
    elif abs(x) < 2.0**-14:
        assert abs(half - x) <= 2.0**-25
    if 2.0**-126 <= abs(x) < 3.38e38:
        assert abs(brain - x) <= 2.0**-8 * abs(x)


def test_the_tolerances_are_reached():
    close = torch.tensor([1 + 2.0**-11, 1 + 2.0**-8, 2.0**-25])
    assert rounded(close, torch.float16)[0].tolist() == [1, 1 + 2.0**-8, 0]
    assert rounded(close, torch.bfloat16)[0].tolist() == [1, 1, 2.0**-25]


def test_signs_of_zero_and_infinities_stay():
    values = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), -1e-30, float("nan")])
    for dtype in HALVES:
        result, worst = rounded(values, dtype)
        assert result[:4].tolist() == values[:4].tolist() and result[5].isnan()
        assert torch.signbit(result[:5]).tolist() == torch.signbit(values[:5]).tolist()
        assert worst == np.float32(1e-30)


@pytest.mark.parametrize("count", [0, 1, 7, 4096, 4097, 9000])
def test_runs_of_any_length(count):
    values = torch.randn(count, generator=torch.Generator().manual_seed(count))
    result, worst = rounded(values, torch.float16)
    assert torch.equal(result, values.half().float())
    assert worst == (values.abs().max() if count else 0)


@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        (None, None),
        (torch.float16, torch.float16),
        (torch.bfloat16, torch.bfloat16),
        *((name, torch.float16) for name in ("float16", "fp16", "half", "FP16")),
        *((name, torch.bfloat16) for name in ("bfloat16", "bf16", "BF16")),
        *((name, torch.int8) for name in ("int8", "INT8", torch.int8)),
    ],
    ids=str,
)
def test_dtypes_and_their_names(given, dtype):
    assert parse_cache_dtype(given) is dtype


@pytest.mark.parametrize(
    "wrong", ["float32", "uint8", "", torch.float32, torch.int16, 16, True, np.float16], ids=str
)
def test_anything_else_is_refused(wrong):
    with pytest.raises(
        ValueError,
        match=r"cache_dtype must be None, torch.float16, .* torch.int8 or their names, got",
    ):
        parse_cache_dtype(wrong)
