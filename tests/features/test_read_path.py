"""How a field is read is resolved once for each version of its values, and never keeps these
alive."""

import threading
import time
import weakref

import numpy as np
import pytest
import torch
from plain_rows import is_current

from pagraph.cache.fields import FieldSet
from pagraph.features import IndexedRows
from pagraph.system.buffers import BufferPools

CPU = torch.device("cpu")
IDS = torch.tensor([3, 0, 3])


def field_set(fields):
    pools = BufferPools(2)
    sources = {name: (lambda name=name: fields[name]) for name in fields}
    return FieldSet(
        sources, device=CPU, budget=None, rank=lambda types: {}, pool_of=pools, num_nodes=5
    )


def path_of(of, name="a"):
    return of._fields[name]._path


def rows(of, name="a"):
    return of.read(name, IDS).tensor


def test_a_path_is_kept_while_nothing_changes():
    fields = {"a": torch.arange(10.0).view(5, 2)}
    of = field_set(fields)
    assert torch.equal(rows(of), fields["a"][IDS])
    path = path_of(of)
    assert torch.equal(rows(of), fields["a"][IDS]) and path_of(of) is path


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.add_(1),
        lambda x: x.t_(),
        lambda x: x.unsqueeze_(1),
        lambda x: setattr(x, "data", x.data.view(5, 1, 5)),
        lambda x: setattr(x, "data", x.data.t()),
        lambda x: setattr(x, "data", torch.ones(5, 5)),
        lambda x: x.resize_(5, 2),
        lambda x: x.set_(torch.zeros(7, 3)),
    ],
    ids=["add", "transpose", "unsqueeze", "view", "strides", "memory", "resize", "set"],
)
def test_values_written_or_laid_out_anew_get_another_path(change):
    fields = {"a": torch.arange(25.0).view(5, 5)}
    of = field_set(fields)
    before = of.read("a", IDS)
    change(fields["a"])
    assert not is_current(of, "a", before)
    assert torch.equal(rows(of), fields["a"][IDS])


@pytest.mark.parametrize("part", ["source", "ids"])
def test_writes_to_rows_by_reference_are_seen(part):
    held = IndexedRows(torch.arange(8.0).view(4, 2), torch.tensor([3, 1, 1, 0, 2]))
    of = field_set({"a": held})
    before = of.read("a", IDS)
    path = path_of(of)
    assert torch.equal(rows(of), held[IDS]) and path_of(of) is path
    getattr(held, part).copy_(getattr(held, part).flip(0))
    assert not is_current(of, "a", before)
    assert torch.equal(rows(of), held[IDS]) and path_of(of) is not path


@pytest.mark.parametrize(
    "make", [lambda x: x, lambda x: IndexedRows(x, torch.arange(5))], ids=["tensor", "reference"]
)
def test_replaced_values_are_freed_at_once(make):
    fields = {"a": make(torch.rand(5, 3))}
    of = field_set(fields)
    rows(of)
    tensor = fields["a"].source if isinstance(fields["a"], IndexedRows) else fields["a"]
    memory = weakref.ref(tensor.untyped_storage())
    del tensor
    fields["a"] = make(torch.ones(5, 3))
    assert memory() is None
    assert torch.equal(rows(of), torch.ones(3, 3))


def test_deleted_values_are_freed_at_once():
    fields = {"a": torch.rand(5, 3)}
    of = field_set(fields)
    rows(of)
    memory = weakref.ref(fields["a"].untyped_storage())
    del fields["a"]
    assert memory() is None
    with pytest.raises(KeyError):
        of.read("a", IDS)


def test_another_tensor_of_the_same_memory_is_another_field_value():
    whole = torch.arange(20.0).view(10, 2)
    fields = {"a": whole[:5]}
    of = field_set(fields)
    before = of.read("a", IDS)
    fields["a"] = whole[5:]
    assert not is_current(of, "a", before) and torch.equal(rows(of), whole[5:][IDS])


@pytest.mark.parametrize(
    "make", [lambda x: x, lambda x: IndexedRows(x, torch.arange(5))], ids=["tensor", "reference"]
)
def test_new_memory_at_the_address_of_freed_memory_is_new(make):
    """As an allocator gives addresses again: the memory was replaced twice, and is where it was at
    first."""
    place, source = np.zeros((5, 2)), torch.ones(5, 2).double()
    of = field_set({"a": make(source)})
    source.data = torch.from_numpy(place)
    before = of.read("a", IDS)
    source.data = torch.ones(5, 2).double()
    place[:] = 2
    source.data = torch.from_numpy(place)
    assert not is_current(of, "a", before)
    again = of.read("a", IDS)
    assert (
        again.tensor.eq(2).all() and again.version != before.version and is_current(of, "a", again)
    )


@torch.inference_mode()
def test_tensors_that_count_no_writes_are_looked_at_each_time():
    fields = {"a": torch.zeros(5, 2)}
    of = field_set(fields)
    before = of.read("a", IDS)
    fields["a"] += 1
    assert not is_current(of, "a", before) and rows(of).eq(1).all()


@pytest.mark.parametrize("shape", [(5,), (5, 0), (5, 2, 3)])
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64]
)
def test_all_shapes_and_dtypes_through_a_kept_path(shape, dtype):
    values = torch.from_numpy(np.arange(int(np.prod(shape))).reshape(shape)).to(dtype)
    for tensor in (values, values.conj() if dtype.is_complex else values.flip(0)):
        of = field_set({"a": tensor})
        for _ in range(2):
            assert torch.equal(rows(of), tensor[IDS])


def test_a_bad_id_is_refused_each_time():
    of = field_set({"a": torch.zeros(5, 2)})
    for _ in range(2):
        with pytest.raises(IndexError, match=r"ids must be in \[0, 5\), got 5 at position 1"):
            of.read("a", torch.tensor([0, 5]))


@pytest.mark.memory
def test_memory_that_is_swapped_while_it_is_read_is_not_freed_under_the_read():
    """``.data`` puts other memory behind the same tensor; a row is of the old one or of the new
    one, whole."""
    fields = {"a": torch.zeros(20_000, 64)}
    of, ids = field_set(fields), torch.arange(20_000)
    stop = threading.Event()

    def swap():
        value = 0
        while not stop.is_set():
            value += 1
            fields["a"].data = torch.full((20_000, 64), float(value))

    swapping = threading.Thread(target=swap)
    swapping.start()
    try:
        # Each read looks at the process's map of memory, which a long-lived process has much of.
        end = time.monotonic() + 20
        for number in range(150):
            if number > 20 and time.monotonic() > end:
                break
            rows = of.read("a", ids).tensor
            assert torch.equal(rows, rows[:1].expand_as(rows)) and float(rows[0, 0]).is_integer()
    finally:
        stop.set()
        swapping.join()
