"""Rows in fewer bytes: what they say of themselves, what is read, how far it is from the values,
what is refused."""

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pagraph import Graph
from pagraph.features import FieldVersion, IndexedRows, NarrowRows
from pagraph.graph.fields import stored_row_bytes
from pagraph.graph.row_form import FORMS, form_of

pytestmark = pytest.mark.kernels


NAMES = list(FORMS)
VALUES = torch.randn(20, 7, generator=torch.Generator().manual_seed(0))


def plain_int8(row):
    """Scale and levels of a row of float32, by the definition."""
    top = max(abs(float(x)) for x in row)
    scale = np.float32(top / 127)
    if 127.5 * float(scale) < top:
        scale = np.nextafter(scale, np.float32(np.inf))
    if 127 * float(scale) >= 2.0**128 - 2.0**103:  # it would round to infinity
        scale = np.nextafter(scale, np.float32(0))
    return scale, [
        0 if not scale else max(-127, min(127, round(float(x) / float(scale)))) for x in row
    ]


def any_rows(data, **floats):
    width = data.draw(st.integers(1, 9))
    numbers = st.floats(width=32, allow_nan=False, allow_infinity=False, **floats)
    rows = data.draw(st.lists(st.lists(numbers, min_size=width, max_size=width), max_size=5))
    return torch.tensor(rows, dtype=torch.float32).view(len(rows), width)


@given(st.data())
def test_int8_is_the_plain_reference_and_within_its_bound(data):
    values = any_rows(data, allow_subnormal=True)
    narrow = NarrowRows.of(values, "int8")
    assert (
        narrow.stored.shape == (len(values), values.shape[1] + 4)
        and narrow.stored.dtype == torch.uint8
    )
    read = narrow.materialize()
    for row, stored, got in zip(values.numpy(), narrow.stored.numpy(), read.numpy(), strict=True):
        scale, levels = plain_int8(row)
        assert stored[:4].tobytes() == scale.astype("<f4").tobytes()
        assert stored[4:].view(np.int8).tolist() == levels
        with np.errstate(over="raise"):
            assert [np.float32(level) * scale for level in levels] == got.tolist()
        for x, back in zip(row, got, strict=True):
            assert math.isfinite(back)
            assert abs(float(x) - float(back)) <= float(scale) / 2 * (1 + 1e-9) + 2.0**-24 * abs(
                float(back)
            )


@given(st.data(), st.sampled_from(["float16", "bfloat16"]))
def test_16_bits_are_torchs(data, name):
    values = any_rows(data, min_value=-65000, max_value=65000)
    narrow = NarrowRows.of(values, name)
    assert torch.equal(
        narrow.stored.view(torch.int16), values.to(FORMS[name].dtype).view(torch.int16)
    )
    assert torch.equal(narrow.materialize(), values.to(FORMS[name].dtype).float())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("by_reference", [False, True])
def test_reading_is_indexing_the_values(name, dtype, by_reference):
    narrow = NarrowRows.of(VALUES.to(dtype), name)
    whole = narrow.materialize()
    if by_reference:
        ids = torch.tensor([3, 3, 19, 0, 7])
        narrow, whole = NarrowRows(IndexedRows(narrow.stored, ids), dtype), whole[ids]
    assert torch.equal(narrow.materialize(), whole) and whole.dtype == narrow.dtype == dtype
    assert (narrow.shape, len(narrow), narrow.dim(), narrow.numel()) == (
        whole.shape,
        len(whole),
        2,
        whole.numel(),
    )
    assert (
        torch.equal(narrow[:], whole)
        and torch.equal(narrow[1:3], whole[1:3])
        and torch.equal(narrow[-1], whole[-1])
    )
    places = torch.tensor([4, 0, 0])
    assert torch.equal(narrow[places], whole[places])
    assert torch.equal(narrow[whole[:, 0] > 0], whole[whole[:, 0] > 0])
    # The plain way, of devices.
    assert torch.equal(narrow.decoding.widened(narrow.stored[:]), whole)
    assert narrow.device.type == "cpu" and not narrow.requires_grad
    assert narrow.is_floating_point() and not narrow.is_complex()
    assert stored_row_bytes(narrow) == {"float16": 14, "bfloat16": 14, "int8": 11}[name]


def test_the_largest_of_a_row_and_zeros_come_back():
    rows = [
        [1.0, 0.0, -1.0],
        [0.0, 0.0, 0.0],
        [3.4028234e38, 1.0, 0.0],
        [1e-44, -1e-44, 0.0],
        [-0.0, 0.0, 0.0],
    ]
    values = torch.tensor(rows)
    read = NarrowRows.of(values, "int8").materialize()
    assert torch.equal(read[[0, 1, 3, 4]], values[[0, 1, 3, 4]]) and read[2].isfinite().all()
    assert not torch.signbit(read[4]).any()


@pytest.mark.parametrize("shape", [(0, 3), (4, 0), (0, 0)], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_stored_of_nothing(name, shape):
    narrow = NarrowRows.of(torch.zeros(shape), name)
    assert torch.equal(narrow.materialize(), torch.zeros(shape)) and narrow.shape == torch.Size(
        shape
    )


def test_rows_of_other_shapes_in_16_bits():
    for shape in ((5,), (5, 2, 3)):
        values = torch.rand(shape)
        assert torch.equal(NarrowRows.of(values, "float16").materialize(), values.half().float())
        with pytest.raises(ValueError, match="values must have 2 dimensions"):
            NarrowRows.of(values, "int8")


REFUSED = [
    (
        "float16",
        70000.0,
        r"float16 must hold the values of row 17, got 70000, but the largest .* 65504: use bfloat16",
    ),
    ("bfloat16", 3.4e38, r"bfloat16 must hold the values of row 17, got 3.4e\+38"),
    ("int8", math.nan, "int8 must hold the values of row 17, got nan: int8 cannot hold it"),
    ("int8", -math.inf, "int8 must hold the values of row 17, got inf: int8 cannot hold it"),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("name", "value", "text"), REFUSED)
def test_what_a_form_cannot_hold_is_refused_with_its_row(name, value, text, dtype):
    values = VALUES.to(dtype, copy=True)
    values[17, 3] = value
    with pytest.raises(ValueError, match=text):
        NarrowRows.of(values, name)


@pytest.mark.parametrize("name", NAMES)
def test_float64_beyond_float32_is_refused(name):
    with pytest.raises(ValueError, match=rf"{name} must hold the values of row 1, got 1e\+300"):
        NarrowRows.of(torch.tensor([[1.0], [1e300]], dtype=torch.float64), name)


def test_nan_and_infinities_stay_in_16_bits():
    values = torch.tensor([[math.nan, math.inf, -math.inf, -0.0]])
    for name in ("float16", "bfloat16"):
        read = NarrowRows.of(values, name).materialize()
        assert (
            read[0, 0].isnan()
            and read[0, 1:3].tolist() == [math.inf, -math.inf]
            and torch.signbit(read[0, 3])
        )


def test_other_arguments_are_refused():
    with pytest.raises(
        TypeError, match="stored must be float16, bfloat16, or uint8 for int8, got torch.float32"
    ):
        NarrowRows(VALUES)
    with pytest.raises(TypeError, match="stored must be a dense CPU tensor, got list"):
        NarrowRows([1.0])
    with pytest.raises(
        ValueError, match="dtype must be torch.float32 or torch.float64, got torch.float16"
    ):
        NarrowRows(VALUES.half(), torch.float16)
    for shape in ((3,), (3, 3), (3, 5, 2)):
        with pytest.raises(
            ValueError, match=r"stored must be of shape \(n, 4 \+ d\) for int8, got"
        ):
            NarrowRows(torch.zeros(shape, dtype=torch.uint8))
    with pytest.raises(
        TypeError, match="values must be rows of float32 or float64, got torch.int64"
    ):
        NarrowRows.of(torch.zeros(3, 3, dtype=torch.int64), "int8")
    with pytest.raises(ValueError, match="form must be None, torch.float16, .* got 'int4'"):
        NarrowRows.of(VALUES, "int4")


def test_what_only_tensors_have_is_refused_with_the_way_out():
    narrow = NarrowRows.of(VALUES, "int8")
    with pytest.raises(
        AttributeError, match=r"\[ids\] or materialize\(\) to become a tensor, got \.numpy"
    ):
        narrow.numpy()
    for other in (copy.deepcopy(narrow), pickle.loads(pickle.dumps(narrow))):
        assert torch.equal(other.materialize(), narrow.materialize()) and other.form is not None


def test_a_version_is_that_of_the_stored_rows():
    stored = NarrowRows.of(VALUES, "float16").stored
    before = FieldVersion.of(NarrowRows(stored))
    assert before == FieldVersion.of(NarrowRows(stored))
    assert before != FieldVersion.of(stored) and before != FieldVersion.of(
        NarrowRows(stored, torch.float64)
    )
    stored[0] = 0
    assert before != FieldVersion.of(NarrowRows(stored))


def test_a_graph_takes_them_as_fields():
    narrow = NarrowRows.of(VALUES, "int8")
    graph = Graph.from_coo([0, 1], [1, 2], 20, ndata={"feat": narrow})
    assert graph.ndata["feat"] is narrow and form_of("form", "INT8") is narrow.form
    with pytest.raises(ValueError, match="must have one row per vertex"):
        graph.set_field("more", NarrowRows.of(VALUES[:3], "int8"))
