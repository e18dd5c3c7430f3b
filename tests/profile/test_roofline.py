"""The roofline: what is timed and how it is counted, on the CPU in the part of a device."""

import time
from dataclasses import replace

import pytest
import torch
from gpu_ceilings import (
    DEVICE_COPY,
    PINNED_COPY,
    DeviceTimer,
    Rate,
    random_rows,
    read_rows,
    word_of,
)
from gpu_roofline import (
    HITS,
    LOOKUP,
    MODES,
    NEAR,
    OFF_LINE,
    PLACES,
    Roofline,
    RooflineSizes,
    filling,
    measure_roofline,
    misses,
    mixed,
    random_table,
    sampling,
)

from pagraph.accelerator import HostAccelerator, Pin, accelerator_for
from pagraph.features.gpu.accelerated import AcceleratedFeature
from pagraph.sampling import NeighborSampler

pytestmark = pytest.mark.compilers


TINY = RooflineSizes(
    rows=64, reads=20, copy_bytes=1024, scale=6, batch_size=4, fanouts=(2, 2), repeats=2
)
needs_interpreter = pytest.mark.skipif(
    not HostAccelerator().runs_kernels, reason="needs Triton's interpreter"
)


class CountingPins(HostAccelerator):
    """Counts what is pinned, and what of it is released."""

    def __init__(self):
        super().__init__()
        self.pinned = self.released = 0

    def pin(self, tensor):
        self.pinned += 1
        return Pin(tensor, self._release)

    def _release(self):
        self.released += 1


class NothingPinned(HostAccelerator):
    """Refuses to pin."""

    def pin(self, tensor):
        return None


class TestRate:
    def test_counts_bytes_over_the_median(self):
        rate = Rate("x", 100, (1.0, 4.0, 2.0))
        assert (rate.median, rate.bytes_per_second) == (2.0, 50.0)
        assert rate.to_json()["seconds"] == {"median": 2.0, "min": 1.0, "max": 4.0}

    def test_of_no_time_is_zero(self):
        assert Rate("x", 100, (0.0,)).bytes_per_second == 0.0


class TestDeviceTimer:
    def test_times_the_work_alone(self):
        calls = []
        timer = DeviceTimer(HostAccelerator(), repeats=3, lead_bytes=64)
        seconds = timer(lambda: calls.append(timer.accelerator.current_stream), times=4)
        assert len(seconds) == 3
        assert all(s >= 0 for s in seconds)
        assert len(calls) == 4 * (3 + 2)
        assert set(calls) == {timer.accelerator.stream("reading")}

    def test_times_the_calling_thread(self):
        calls = []
        timer = DeviceTimer(HostAccelerator(), repeats=3, lead_bytes=64)
        assert timer.host_seconds(lambda: calls.append(time.sleep(0.002)), times=2) >= 0.002
        assert len(calls) == 2 * (3 + 2)

    def test_refuses_no_run(self):
        with pytest.raises(ValueError, match="repeats must be at least 1, got 0"):
            DeviceTimer(HostAccelerator(), repeats=0)


class TestSizes:
    @pytest.mark.parametrize(
        "name", ["rows", "row_bytes", "reads", "copy_bytes", "scale", "batch_size", "repeats"]
    )
    def test_are_at_least_one(self, name):
        with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
            RooflineSizes(**{name: 0})

    @pytest.mark.parametrize(("rows", "row_bytes"), [(2, 8), (1, 4096)])
    def test_a_table_is_larger_than_a_sector(self, rows, row_bytes):
        message = f"rows must be at least 2 and of 1024 bytes in all, got {rows} of {row_bytes}"
        with pytest.raises(ValueError, match=message):
            RooflineSizes(rows=rows, row_bytes=row_bytes)


class TestRandomTable:
    @pytest.mark.parametrize(("rows", "row_bytes"), [(5, 512), (1000, 12), (1, 1024), (300, 7)])
    def test_has_rows_of_many_bytes(self, rows, row_bytes):
        table = random_table(rows, row_bytes)
        assert (table.shape, table.dtype) == ((rows, row_bytes), torch.uint8)
        assert len(torch.unique(table)) > 4
        assert table.data_ptr() % 4096 == 0
        if row_bytes >= 8:
            assert len(torch.unique(table, dim=0)) == rows


@needs_interpreter
@pytest.mark.parametrize(
    ("row_bytes", "count"),
    [(512, 9), (32, 130), (16, 1), (24, 33), (7, 5), (1, 3), (20000, 2), (512, 0)],
)
def test_the_measuring_kernel_reads_the_rows(row_bytes, count):
    table = random_table(50, row_bytes).view(word_of(row_bytes))
    ids = torch.randint(0, 50, (count,))
    out = torch.full((count, table.shape[1]), 77, dtype=table.dtype)
    read_rows(HostAccelerator(), table, ids, out)
    assert torch.equal(out, table[ids])


@pytest.mark.parametrize(("row_bytes", "size"), [(512, 8), (12, 4), (6, 2), (7, 1)])
def test_words_are_as_wide_as_rows_allow(row_bytes, size):
    assert word_of(row_bytes).itemsize == size


class TestRoofline:
    def test_gives_shares_of_ceilings_that_were_measured(self):
        rates = [
            Rate("top", 100, (1.0,)),
            Rate("way", 50, (1.0,), "top"),
            Rate("other", 50, (1.0,), "unknown"),
        ]
        roofline = Roofline("card", {}, rates)
        assert [roofline.share(rate) for rate in rates] == [None, 0.5, None]
        assert roofline.to_json()["rates"][1]["share"] == 0.5

    def test_names_the_rates_it_has(self):
        with pytest.raises(KeyError, match=r"rate must be one of \['top'\], got 'bottom'"):
            Roofline("card", {}, [Rate("top", 1, (1.0,))])["bottom"]

    @needs_interpreter
    @pytest.mark.compilers
    def test_measures_ceilings_and_every_way(self):
        roofline = measure_roofline(HostAccelerator(), TINY)
        assert roofline[DEVICE_COPY].nbytes == roofline[PINNED_COPY].nbytes == 1024
        assert roofline[random_rows("pinned host", 512)].nbytes == 20 * 512
        assert roofline[random_rows("device", 32)].nbytes == roofline[LOOKUP].nbytes == 20 * 32
        assert roofline[HITS].nbytes == roofline[NEAR].nbytes == 20 * 512
        for mode in MODES:
            assert roofline[misses(mode)].nbytes == 20 * 512
            assert 0 < roofline[mixed(mode)].nbytes < 20 * 512
            assert roofline[OFF_LINE].nbytes == 20 * 512
            assert roofline[filling(mode)].nbytes == 51 * 512  # 80 % of 64 rows
        for where in PLACES:
            assert "M edges/s" in roofline[sampling(where)].note
        assert roofline[HITS].note.endswith("us of the CPU a call")
        assert roofline.left_out == {}
        assert len({rate.name for rate in roofline.rates}) == len(roofline.rates)
        assert all(roofline.share(rate) is not None for rate in roofline.rates if rate.ceiling)

    @pytest.mark.compilers
    @pytest.mark.parametrize("row_bytes", [20, 7])
    @needs_interpreter
    def test_measures_rows_that_are_no_multiple_of_16_bytes(self, row_bytes):
        roofline = measure_roofline(HostAccelerator(), replace(TINY, rows=200, row_bytes=row_bytes))
        assert roofline[misses("zero-copy")].nbytes == 20 * row_bytes

    def test_says_what_needs_kernels(self, monkeypatch):
        monkeypatch.setattr(HostAccelerator, "runs_kernels", False)
        roofline = measure_roofline(HostAccelerator(), TINY)
        assert set(roofline.left_out) == {"random rows", "zero-copy", "sampling"}
        assert set(roofline.left_out.values()) == {"Triton is not installed"}
        assert roofline[HITS].nbytes == roofline[misses("staging")].nbytes == 20 * 512

    @needs_interpreter
    def test_says_why_rows_do_not_come_that_way(self):
        roofline = measure_roofline(NothingPinned(), TINY)
        refused = roofline.left_out.pop(sampling("pinned host"))
        assert "the host memory of the graph's indptr and indices cannot be pinned" in refused
        assert roofline.left_out == {
            random_rows("pinned host", 512): "its memory could not be pinned",
            misses("zero-copy"): "its memory could not be pinned",
            OFF_LINE: "its memory could not be pinned",
        }
        assert roofline[misses("staging")].nbytes == 20 * 512

    @needs_interpreter
    def test_notices_wrong_rows(self, monkeypatch):
        monkeypatch.setattr(AcceleratedFeature, "read", lambda self, ids, out: out)
        with pytest.raises(RuntimeError, match="rows were delivered wrong"):
            measure_roofline(HostAccelerator(), TINY)

    @needs_interpreter
    def test_notices_wrong_neighbours(self, monkeypatch):
        sample = NeighborSampler.sample
        monkeypatch.setattr(
            NeighborSampler,
            "sample",
            lambda self, graph, seeds, key: sample(self, graph, seeds, ~key),
        )
        with pytest.raises(RuntimeError, match="sampled other neighbours than the CPU"):
            measure_roofline(HostAccelerator(), TINY)

    @needs_interpreter
    def test_leaves_nothing_pinned(self):
        accelerator = CountingPins()
        measure_roofline(accelerator, TINY)
        assert accelerator.pinned > 0
        assert accelerator.released == accelerator.pinned


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    ("row_bytes", "count"), [(512, 1000), (32, 1), (24, 33), (7, 5), (20000, 9)]
)
@pytest.mark.parametrize("where", ["device", "pinned"])
def test_the_measuring_kernel_reads_the_rows_on_a_gpu(row_bytes, count, where):
    accelerator = accelerator_for(torch.device("cuda", 0))
    table = random_table(500, row_bytes).view(word_of(row_bytes))
    ids = torch.randint(0, 500, (count,))
    pin = accelerator.pin(table)
    assert pin is not None
    out = torch.full((count, table.shape[1]), 77, dtype=table.dtype, device="cuda")
    with torch.cuda.device(0):
        read_rows(accelerator, table if where == "pinned" else table.cuda(), ids.cuda(), out)
    assert torch.equal(out.cpu(), table[ids])
    pin.release()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_copies_within_it_are_the_fastest():
    accelerator = accelerator_for(torch.device("cuda", 0))
    roofline = measure_roofline(
        accelerator, RooflineSizes(rows=1 << 18, reads=1 << 16, copy_bytes=1 << 26, scale=14)
    )
    assert roofline.left_out == {}
    assert roofline[DEVICE_COPY].bytes_per_second > 2 * roofline[PINNED_COPY].bytes_per_second
    assert 0.2 < roofline.share(roofline[random_rows("pinned host", 512)]) < 1.2
