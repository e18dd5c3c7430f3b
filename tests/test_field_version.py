"""When two versions of a field are the same."""

import gc

import pytest
import torch

from pagraph.features import FieldVersion


def test_the_same_tensor_unwritten_is_the_same_version():
    tensor = torch.zeros(4, 3)
    assert FieldVersion.of(tensor) == FieldVersion.of(tensor)
    assert FieldVersion.of(tensor) == FieldVersion.of(tensor.detach())
    assert FieldVersion.of(tensor) == FieldVersion.of(tensor[:])


def changes():
    yield "fill", lambda t: t.fill_(1)
    yield "slice write", lambda t: t.__setitem__(slice(1, 2), 5)
    yield "element write", lambda t: t.__setitem__((0, 0), 5)
    yield "write through a view", lambda t: t.view(-1)[3:].mul_(2)
    yield "write through detach", lambda t: t.detach().add_(1)
    yield "copy", lambda t: t.copy_(torch.ones(4, 3))
    yield "index_add", lambda t: t.index_add_(0, torch.tensor([1]), torch.ones(1, 3))
    yield "optimiser-like step", lambda t: t.add_(torch.ones(4, 3), alpha=-0.1)
    yield "out=", lambda t: torch.add(torch.ones(4, 3), 1, out=t)
    yield "replaced data", lambda t: setattr(t, "data", torch.zeros(4, 3))
    yield "resized", lambda t: t.resize_(40, 3)


@pytest.mark.parametrize(("name", "change"), list(changes()), ids=[name for name, _ in changes()])
def test_every_write_makes_another_version(name, change):
    tensor = torch.zeros(4, 3)
    before = FieldVersion.of(tensor)
    change(tensor)
    assert FieldVersion.of(tensor) != before


def test_another_layout_of_the_same_memory_is_another_version():
    tensor = torch.zeros(4, 4)
    base = FieldVersion.of(tensor)
    for other in (
        tensor.t(),
        tensor[1:],
        tensor[:, 1:],
        tensor.view(2, 8),
        tensor.view(torch.int32),
        tensor.view(-1),
    ):
        assert FieldVersion.of(other) != base
    number = torch.zeros(3, dtype=torch.complex64)
    assert FieldVersion.of(number) != FieldVersion.of(number.conj())


def test_equal_values_in_other_memory_are_another_version():
    tensor = torch.zeros(4)
    assert FieldVersion.of(tensor) != FieldVersion.of(tensor.clone())


def test_memory_used_again_is_not_taken_for_the_old_tensor():
    seen, reused = [], 0
    for _ in range(50):
        tensor = torch.zeros(100_000)
        version = FieldVersion.of(tensor)
        reused += any(version.layout == old.layout for old in seen)
        assert all(version != old for old in seen)
        seen.append(version)
        del tensor
    assert reused > 0  # else the allocator never gave us the case this test is about


@pytest.mark.many
def test_a_version_does_not_keep_the_tensor_alive():
    version = FieldVersion.of(torch.zeros(10))
    gc.collect()
    assert version.storage() is None
    assert version != FieldVersion(version.storage, version.layout, version.writes)


@pytest.mark.many
def test_a_version_outlives_the_python_object_of_its_tensor():
    holder = torch.nn.Module()
    holder.register_buffer("feat", torch.zeros(10))
    version = FieldVersion.of(holder.feat[:])
    gc.collect()
    assert FieldVersion.of(holder.feat[:]) == version


def test_inference_tensors_are_never_the_same():
    with torch.inference_mode():
        tensor = torch.zeros(3)
    assert FieldVersion.of(tensor) != FieldVersion.of(tensor)
    with torch.inference_mode():
        assert FieldVersion.of(tensor) != FieldVersion.of(tensor)
        normal = torch.ones(3)
    assert FieldVersion.of(normal) != FieldVersion.of(tensor)


def test_a_normal_tensor_is_comparable_in_inference_mode():
    tensor = torch.zeros(3)
    before = FieldVersion.of(tensor)
    with torch.inference_mode():
        assert FieldVersion.of(tensor) == before
        tensor.add_(1)
    assert FieldVersion.of(tensor) != before


def test_is_not_equal_to_other_things_and_not_hashable():
    version = FieldVersion.of(torch.zeros(3))
    assert version != 3
    with pytest.raises(TypeError, match="unhashable"):
        hash(version)
    assert repr(version) == "FieldVersion(shape=(3,), dtype=torch.float32, writes=0)"
