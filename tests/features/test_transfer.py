"""Transfer: what is chosen and why, what is pinned for how long, and that both ways deliver the
same."""

import gc
import threading

import numpy as np
import pytest
import torch
from fresh_processes import HANGING

from pagraph.accelerator import HostAccelerator, OutOfMemory, Pin, StagingRing, accelerator_for
from pagraph.features.disk import DiskFeature
from pagraph.features.feature import HostFeature
from pagraph.features.gpu import reachable
from pagraph.features.gpu import transfer as transfer_module
from pagraph.features.gpu.accelerated import AcceleratedFeature
from pagraph.features.gpu.reachable import ReachableRows
from pagraph.features.gpu.transfer import Transfer
from pagraph.features.narrow import NarrowFeature
from pagraph.graph.stored_rows import IndexedRows

IDS = torch.tensor([3, 0, 3])
needs_interpreter = pytest.mark.skipif(
    not HostAccelerator().runs_kernels, reason="needs Triton's interpreter"
)


class Pins(HostAccelerator):
    """Keeps account of what is pinned."""

    def __init__(self, memory=1 << 40):
        super().__init__(memory)
        self.pinned = []

    def pin(self, tensor):
        begin = tensor.data_ptr()
        self.pinned.append(begin)
        return Pin(tensor, lambda: self.pinned.remove(begin))


class Refusing(HostAccelerator):
    """A device that cannot pin this memory."""

    def pin(self, tensor):
        return None


class WithoutKernels(HostAccelerator):
    """As a GPU without Triton."""

    runs_kernels = False


def delivered(source, accelerator, transfer):
    """What a read of a few rows gives."""
    ring = StagingRing(accelerator, slot_bytes=4096)
    return AcceleratedFeature(source, None, accelerator, ring, transfer).read(IDS)


def reach(transfer, source, accelerator):
    """What the kernels may read."""
    return transfer.reach(source, StagingRing(accelerator, slot_bytes=4096))


def test_modes_are_checked():
    with pytest.raises(
        ValueError, match="transfer must be one of 'auto', 'zero-copy', 'staging', got 'fast'"
    ):
        Transfer(HostAccelerator(), "fast")


def test_nothing_is_decided_before_rows_are_missed():
    accelerator = Pins()
    transfer = Transfer(accelerator)
    assert (transfer.mode, transfer.chosen, transfer.reason) == (
        "auto",
        None,
        "no row has missed the cache yet",
    )
    assert not accelerator.pinned


@needs_interpreter
def test_auto_measures_once_and_stages_what_is_clearly_faster_so(monkeypatch):
    rows = torch.randn(40, 6)
    for zero_copy, staging, chosen in [
        (0.1, 0.2, "zero-copy"),
        (0.19, 0.1, "zero-copy"),
        (0.21, 0.1, "staging"),
    ]:
        accelerator, calls = Pins(), []
        monkeypatch.setattr(
            Transfer,
            "_seconds",
            lambda self, way, ids, out, times=(zero_copy, staging), calls=calls: (
                calls.append(way.__name__) or times[way.__name__ == "staging"]
            ),
        )
        transfer = Transfer(accelerator)
        source = HostFeature(rows)
        assert torch.equal(delivered(source, accelerator, transfer), rows[IDS])
        assert transfer.chosen == chosen
        assert transfer.reason.startswith("measured zero-copy ") and ", staging " in transfer.reason
        assert len(accelerator.pinned) == (chosen == "zero-copy")
        measured = len(calls)
        assert torch.equal(delivered(source, accelerator, transfer), rows[IDS])
        assert (
            len(calls) == measured
            and calls.count("staging") == calls.count("zero_copy") == measured / 2
        )
        transfer.close()
        assert not accelerator.pinned


@needs_interpreter
def test_measured_rows_are_few_bytes_and_speeds_those_of_the_clock(monkeypatch):
    most = []
    monkeypatch.setattr(
        Transfer,
        "_seconds",
        lambda self, way, ids, out: most.append(out.numel() * out.element_size()) or 1e-3,
    )
    monkeypatch.setattr(transfer_module, "_SAMPLE_BYTES", 6400)
    transfer = Transfer(HostAccelerator())
    delivered(HostFeature(torch.zeros(5000, 8)), HostAccelerator(), transfer)
    assert max(most) == 6400
    assert transfer.reason == "measured zero-copy 0.0064 GB/s, staging 0.0064 GB/s"


@needs_interpreter
def test_the_real_measurement_chooses_one_of_the_two():
    accelerator = HostAccelerator()
    transfer = Transfer(accelerator)
    rows = torch.randn(500, 16)
    assert torch.equal(delivered(HostFeature(rows), accelerator, transfer), rows[IDS])
    assert transfer.chosen in ("zero-copy", "staging") and "GB/s" in transfer.reason


@needs_interpreter
def test_a_way_that_is_asked_for_is_not_measured():
    rows = torch.arange(20).view(4, 5)
    for mode in ("zero-copy", "staging"):
        accelerator = Pins()
        transfer = Transfer(accelerator, mode)
        assert torch.equal(delivered(HostFeature(rows), accelerator, transfer), rows[IDS])
        assert (transfer.chosen, transfer.reason) == (mode, "asked for")
        assert len(accelerator.pinned) == (mode == "zero-copy")


@needs_interpreter
@pytest.mark.parametrize("mode", ["auto", "zero-copy"])
def test_memory_that_cannot_be_pinned_is_staged(mode):
    accelerator, rows = Refusing(), torch.arange(20).view(4, 5)
    transfer = Transfer(accelerator, mode)
    for _ in range(2):
        assert torch.equal(delivered(HostFeature(rows), accelerator, transfer), rows[IDS])
    assert (transfer.chosen, transfer.reason) == ("staging", "its memory could not be pinned")


@needs_interpreter
@pytest.mark.parametrize(
    ("make", "accelerator", "reason"),
    [
        (
            lambda: NarrowFeature(HostFeature(torch.ones(4, 5)), torch.float16, "x"),
            Pins(),
            "the CPU rounds its rows",
        ),
        (lambda: HostFeature(torch.ones(4, 5)), WithoutKernels(), "Triton is missing"),
        (lambda: HostFeature(torch.ones(5, 4).t()), Pins(), "its rows are not contiguous"),
    ],
)
def test_where_zero_copy_is_out_of_the_question_it_says_so_once(make, accelerator, reason):
    source = make()
    transfer = Transfer(accelerator, "auto")
    assert torch.equal(delivered(source, accelerator, transfer), torch.ones(3, *source.row_shape))
    assert (transfer.chosen, transfer.reason) == ("staging", reason)
    forced = Transfer(accelerator, "zero-copy")
    with pytest.warns(
        RuntimeWarning, match=f"transfer 'zero-copy' is not possible for a field, because {reason}"
    ):
        delivered(source, accelerator, forced)
    assert torch.equal(delivered(source, accelerator, forced), torch.ones(3, *source.row_shape))
    assert (forced.chosen, forced.reason) == ("staging", reason)


@needs_interpreter
def test_rows_on_disk_are_pinned_only_if_asked_for(tmp_path):
    np.arange(20.0).reshape(4, 5).tofile(tmp_path / "rows")
    rows = torch.from_numpy(np.memmap(tmp_path / "rows", dtype=np.float64, mode="r+", shape=(4, 5)))
    for mode, chosen, reason in [
        ("auto", "staging", "its rows are on disk"),
        ("zero-copy", "zero-copy", "asked for"),
    ]:
        accelerator = Pins()
        transfer = Transfer(accelerator, mode)
        assert torch.equal(delivered(DiskFeature(rows), accelerator, transfer), rows[IDS])
        assert (transfer.chosen, transfer.reason, len(accelerator.pinned)) == (
            chosen,
            reason,
            mode == "zero-copy",
        )


@needs_interpreter
def test_rows_by_reference_have_their_table_pinned_too():
    accelerator = Pins()
    source, ids = torch.randn(9, 3), torch.tensor([8, 1, 1, 7])
    transfer = Transfer(accelerator, "zero-copy")
    assert torch.equal(
        delivered(HostFeature(IndexedRows(source, ids)), accelerator, transfer), source[ids[IDS]]
    )
    assert sorted(accelerator.pinned) == sorted([source.data_ptr(), ids.data_ptr()])
    transfer.close()
    assert not accelerator.pinned


@needs_interpreter
def test_a_field_in_other_memory_is_pinned_instead_of_the_old():
    accelerator = Pins()
    transfer = Transfer(accelerator, "zero-copy")
    old, new = torch.zeros(4, 5), torch.ones(4, 5)
    delivered(HostFeature(old), accelerator, transfer)
    # The same memory: pinned once.
    assert torch.equal(delivered(HostFeature(old), accelerator, transfer), old[IDS])
    assert accelerator.pinned == [old.data_ptr()]
    assert torch.equal(delivered(HostFeature(new), accelerator, transfer), new[IDS])
    assert accelerator.pinned == [new.data_ptr()]
    half = HostFeature(new[:, 1:])
    assert torch.equal(delivered(half, accelerator, transfer), new[IDS, 1:])
    assert accelerator.pinned == [new[:, 1:].data_ptr()]


@needs_interpreter
def test_closing_waits_for_who_reads_and_stages_from_then_on():
    accelerator, rows = Pins(), torch.arange(20).view(4, 5)
    source = HostFeature(rows)
    transfer = Transfer(accelerator, "zero-copy")
    reading = reach(transfer, source, accelerator)
    assert isinstance(reading, ReachableRows)
    transfer.close()
    transfer.close()
    assert accelerator.pinned == [rows.data_ptr()]
    del reading
    assert not accelerator.pinned
    assert torch.equal(delivered(source, accelerator, transfer), rows[IDS])
    assert not accelerator.pinned


@needs_interpreter
def test_no_kernel_reads_memory_that_is_not_pinned(monkeypatch):
    accelerator = Pins()
    fields = [HostFeature(torch.full((30, 4), float(i))) for i in range(2)]
    begins = {field.rows.ctypes.data for field in fields}
    transfer, wrong, launched = Transfer(accelerator, "zero-copy"), [], []
    launch = reachable.launch

    def watched(kernel, programs, *arguments, **constants):
        read = {a.data_ptr() for a in arguments if isinstance(a, torch.Tensor)} & begins
        launched.append(read)
        if not read <= set(accelerator.pinned):
            wrong.append(read)
        launch(kernel, programs, *arguments, **constants)
        if not read <= set(accelerator.pinned):
            wrong.append(read)

    monkeypatch.setattr(reachable, "launch", watched)

    def reads(field, value):
        for _ in range(30):
            if not (delivered(field, accelerator, transfer) == value).all():
                wrong.append(value)

    threads = [threading.Thread(target=reads, args=(fields[i % 2], float(i % 2))) for i in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(20):  # two memories take turns, and are closed in between
        delivered(fields[0], accelerator, transfer)
    transfer.close()
    for thread in threads:
        thread.join()
    assert launched and not wrong and not accelerator.pinned


@needs_interpreter
def test_a_transfer_that_nobody_has_unpins():
    accelerator = Pins()
    transfer = Transfer(accelerator, "zero-copy")
    delivered(HostFeature(torch.zeros(4, 5)), accelerator, transfer)
    gc.disable()  # by counting alone: nothing holds it in a cycle
    try:
        del transfer
        assert not accelerator.pinned
    finally:
        gc.enable()


@needs_interpreter
def test_other_threads_stage_while_one_measures(monkeypatch):
    accelerator, rows = Pins(), torch.arange(20).view(4, 5)
    measuring, go_on = threading.Event(), threading.Event()

    def slow(self, way, ids, out):
        measuring.set()
        assert go_on.wait(HANGING)
        return 1.0

    monkeypatch.setattr(Transfer, "_seconds", slow)
    transfer = Transfer(accelerator)
    results = []
    thread = threading.Thread(
        target=lambda: results.append(delivered(HostFeature(rows), accelerator, transfer))
    )
    thread.start()
    assert measuring.wait(HANGING)
    assert torch.equal(delivered(HostFeature(rows), accelerator, transfer), rows[IDS])
    assert transfer.chosen is None
    go_on.set()
    thread.join()
    assert torch.equal(results[0], rows[IDS]) and transfer.chosen == "zero-copy"


@needs_interpreter
def test_it_may_be_closed_while_it_measures(monkeypatch):
    accelerator = Pins()
    transfer = Transfer(accelerator)
    monkeypatch.setattr(Transfer, "_seconds", lambda self, way, ids, out: self.close() or 1.0)
    rows = torch.arange(20).view(4, 5)
    assert torch.equal(delivered(HostFeature(rows), accelerator, transfer), rows[IDS])
    assert transfer.chosen == "zero-copy" and not accelerator.pinned


@needs_interpreter
def test_no_memory_to_measure_decides_nothing():
    accelerator, rows = Pins(memory=1 << 20), torch.zeros(4000, 64)
    transfer = Transfer(accelerator)
    hog = accelerator.empty(((1 << 20) - 100,), torch.uint8)
    with pytest.raises(OutOfMemory):
        reach(transfer, HostFeature(rows), accelerator)
    assert transfer.chosen is None and not accelerator.pinned
    del hog
    reach(transfer, HostFeature(rows), accelerator)
    assert transfer.chosen is not None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("mode", ["auto", "zero-copy", "staging"])
@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.bfloat16, torch.float32, torch.int64, torch.complex64]
)
@pytest.mark.parametrize("width", [(), (1,), (100,), (129,), (3, 1000)])
def test_rows_arrive_on_a_gpu(mode, dtype, width):
    accelerator = accelerator_for(torch.device("cuda", 0))
    raw = torch.randint(0, 2, (3000, *width, dtype.itemsize), dtype=torch.uint8)
    rows = raw.view(dtype).view(3000, *width)
    transfer = Transfer(accelerator, mode)
    ring = StagingRing(accelerator, slot_bytes=1 << 16)
    feature = AcceleratedFeature(HostFeature(rows), None, accelerator, ring, transfer)
    ids = torch.randint(3000, (5000,))
    with accelerator.stream("reading").use():
        out = feature.read(ids)
        again = feature.read(ids.to(accelerator.device))
        ready = accelerator.current_stream.record()
    ready.wait()
    for got in (out, again):
        assert torch.equal(got.cpu().view(torch.uint8), rows[ids].view(torch.uint8))
    assert transfer.chosen == mode or mode == "auto"
    transfer.close()
