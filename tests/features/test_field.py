"""One field: when its cache serves, is dropped, and is due again."""

import pytest
import torch

from pagraph.accelerator import HostAccelerator
from pagraph.features import DeviceFeature, DiskFeature, HostFeature
from pagraph.features.field import Field, ReadPath, can_cache, host_feature
from pagraph.features.store import fill_cache
from pagraph.graph.mapped import map_npy

CPU = torch.device("cpu")
FIRST = 8


def resolve(field, seen):
    base = host_feature(seen.tensor, CPU)
    return ReadPath(seen, base, base, field.begin(seen, cacheable=True), True)


class Box:
    """A field whose tensor can be replaced."""

    def __init__(self, tensor):
        self.tensor = tensor
        self.field = Field("feat", lambda: self.tensor)

    def build(self):
        return fill_cache(HostFeature(self.tensor), torch.arange(2), device=CPU, num_nodes=4)

    def fill(self):
        return self.field.fill(self.field.snapshot(), self.build)

    def read(self):
        *_, path = self.field.path(resolve)
        return path.cache, self.field.is_due

    def reads_until_due(self, limit=10_000):
        for count in range(1, limit):
            if self.read()[1]:
                return count
        raise AssertionError("never due")


@pytest.fixture
def box():
    return Box(torch.zeros(4, 3))


def test_a_filled_cache_serves_the_version_it_was_filled_from(box):
    assert box.read() == (None, False)
    cache = box.fill()
    assert box.read() == (cache, False)


def test_a_write_drops_the_cache_at_once_and_it_is_due_when_settled(box):
    box.fill()
    box.tensor.add_(1)
    assert box.read() == (None, False)
    assert box.reads_until_due() == 2 * FIRST - 1
    cache = box.fill()
    assert box.read() == (cache, False)


def test_replacing_the_tensor_drops_the_cache(box):
    box.fill()
    box.tensor = torch.zeros(4, 7)
    assert box.read() == (None, False)


def test_a_field_that_keeps_changing_is_never_due(box):
    box.fill()
    for _ in range(200):
        box.tensor.add_(1)
        assert box.read() == (None, False)
        assert box.read() == (None, False)  # read again at delivery


def test_patience_doubles_for_caches_that_do_not_pay(box):
    box.fill()
    waits = []
    for _ in range(4):
        box.tensor.add_(1)
        waits.append(box.reads_until_due())
        box.fill()
    assert waits == [2 * FIRST, 4 * FIRST, 8 * FIRST, 16 * FIRST]


def test_patience_has_a_limit_and_comes_back_when_caches_pay(box):
    box.fill()
    for _ in range(15):
        box.tensor.add_(1)
        longest = box.reads_until_due()
        box.fill()
    assert longest == 4096
    for _ in range(8 * 4096):
        box.read()
    box.tensor.add_(1)
    assert box.reads_until_due() == 2048


def test_a_write_once_an_epoch_is_cached_every_epoch(box):
    box.fill()
    for _ in range(10):
        box.tensor.add_(1)
        for _ in range(300):
            cache, due = box.read()
            if due:
                box.fill()
        assert cache is not None


def test_a_write_while_filling_wins(box):
    def build():
        cache = box.build()
        box.tensor.add_(1)
        return cache

    assert box.field.fill(box.field.snapshot(), build) is None
    assert box.read() == (None, False)


def test_an_invalidation_while_filling_wins(box):
    def build():
        cache = box.build()
        box.field.invalidate()
        return cache

    assert box.field.fill(box.field.snapshot(), build) is None
    assert box.read() == (None, False)


def test_only_one_thread_fills(box):
    def build():
        assert box.fill() is None
        return box.build()

    assert box.field.fill(box.field.snapshot(), build) is not None


def test_a_failed_fill_can_be_tried_again(box):
    def build():
        raise MemoryError("no room")

    with pytest.raises(MemoryError):
        box.field.fill(box.field.snapshot(), build)
    assert box.fill() is not None


def test_is_current_until_written_replaced_invalidated_or_deleted(box):
    seen = box.field.snapshot()
    assert box.field.is_current(seen.version, seen.generation)
    box.tensor[1, 1] = 4
    assert not box.field.is_current(seen.version, seen.generation)
    seen = box.field.snapshot()
    box.field.invalidate()
    assert not box.field.is_current(seen.version, seen.generation)
    fields = {"h": torch.zeros(3)}
    field = Field("h", lambda: fields["h"])
    seen = field.snapshot()
    del fields["h"]
    assert not field.is_current(seen.version, seen.generation)
    with pytest.raises(KeyError, match="h"):
        field.snapshot()


def test_a_snapshot_from_before_an_invalidation_gets_no_cache(box):
    old = box.field.snapshot()
    box.field.invalidate()
    box.fill()
    assert box.field.begin(old, cacheable=True) is None
    assert box.read()[0] is not None


def test_a_deleted_field_lets_go_of_its_cache():
    fields = {"h": torch.zeros(4, 3)}
    field = Field("h", lambda: fields["h"])
    cache = fill_cache(HostFeature(fields["h"]), torch.arange(2), device=CPU, num_nodes=4)
    tensor = fields["h"]
    assert field.fill(field.snapshot(), lambda: cache) is cache
    del fields["h"]
    with pytest.raises(KeyError):
        field.snapshot()
    fields["h"] = tensor
    assert field.begin(field.snapshot(), cacheable=True) is None


def test_a_cache_does_not_keep_a_replaced_tensor_alive(box):
    storage = box.field.snapshot().version.storage
    box.fill()
    assert storage() is not None
    box.tensor = torch.ones(4, 3)
    assert storage() is None


def test_gradients_are_refused_as_by_dgl_while_gradients_are_on(box):
    box.tensor = torch.zeros(4, 3, requires_grad=True)
    with pytest.raises(
        RuntimeError, match=r"field 'feat' must not require gradients .* detach\(\) it"
    ):
        box.field.snapshot()
    with torch.no_grad():
        assert box.field.snapshot().tensor is box.tensor


def test_where_rows_are_decides_what_reads_them(tmp_path):
    import numpy as np

    path = tmp_path / "a.npy"
    np.save(path, np.zeros((4, 3), dtype=np.float32))
    mapped, memory = map_npy(path), torch.zeros(4, 3)
    assert type(host_feature(mapped, CPU)) is DiskFeature
    assert type(host_feature(memory, CPU)) is HostFeature
    assert type(host_feature(torch.zeros(4, 3, device="meta"), CPU)) is DeviceFeature


def test_what_is_worth_caching(tmp_path):
    import numpy as np

    path = tmp_path / "a.npy"
    np.save(path, np.zeros((4, 3), dtype=np.float32))
    there = HostAccelerator()
    disk, host = DiskFeature(map_npy(path)), HostFeature(torch.zeros(4, 3))
    assert can_cache(disk, None, 4) and can_cache(disk, there, 4)
    assert not can_cache(host, None, 4) and can_cache(host, there, 4)
    assert not can_cache(disk, None, 5) and not can_cache(host, there, 3)
    assert not can_cache(HostFeature(torch.zeros(4, 0)), there, 4)
    assert not can_cache(DiskFeature(map_npy(path)[:, ::2]), None, 4)
    assert not can_cache(DeviceFeature(torch.zeros(4, 3)), there, 4)
