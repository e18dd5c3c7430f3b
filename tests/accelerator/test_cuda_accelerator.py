"""The accelerator that is a CUDA device: what only a GPU can show."""

import gc
import multiprocessing
import os
import subprocess
import sys
import textwrap
import threading
import warnings

import numpy as np
import pytest
import torch
from fresh_processes import HANGING

from pagraph.accelerator import OutOfMemory, StagingRing, accelerator_for
from pagraph.accelerator.pinning import is_pinned_at, memory_of
from pagraph.accelerator.triton_kernels import launch
from pagraph.graph.mapped import map_npy

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

_ROWS, _WIDTH = 4096, 128


@pytest.fixture
def device():
    return accelerator_for(torch.device("cuda", torch.cuda.current_device()))


@pytest.fixture
def copied(device):
    """Reads a host tensor by a kernel, in place."""
    if not device.runs_kernels:
        pytest.skip("needs Triton")
    from copying_kernel import copy_words

    def copied(tensor):
        out = torch.empty(tensor.shape, dtype=tensor.dtype, device=device.device)
        launch(copy_words, -(-tensor.numel() // 1024), tensor, out, tensor.numel(), BLOCK=1024)
        return out

    return copied


def _pinned(device, tensor):
    """A pin; skips, with the driver's reason, what a driver may refuse."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        pin = device.pin(tensor)
    if pin is None:
        assert len(seen) == 1
        # The driver's error is not torch's next one.
        torch.ones(4, device=device.device).sum().item()
        pytest.skip(str(seen[0].message))
    assert not seen
    return pin


def _memory(kind, folder):
    rows = np.arange(_ROWS * _WIDTH, dtype=np.float32).reshape(_ROWS, _WIDTH)
    if kind == "heap":
        return torch.from_numpy(rows.copy())
    if kind == "shared":
        return torch.from_numpy(rows.copy()).share_memory_()
    np.save(folder / "rows.npy", rows)
    if kind == "private map":
        return map_npy(folder / "rows.npy")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that the array is not writable
        return torch.from_numpy(
            np.load(folder / "rows.npy", mmap_mode={"read-only map": "r", "map": "r+"}[kind])
        )


@pytest.mark.parametrize("kind", ["heap", "shared", "map", "read-only map", "private map"])
def test_host_memory_is_pinned_in_place_read_by_a_kernel_and_unpinned(
    device, copied, tmp_path, kind
):
    tensor = _memory(kind, tmp_path)
    address = tensor.data_ptr()
    pin = _pinned(device, tensor)
    assert tensor.data_ptr() == address
    assert tensor.is_pinned()
    assert is_pinned_at(memory_of(tensor)[1] - 1)
    assert torch.equal(copied(tensor).cpu(), tensor)
    if kind in ("heap", "shared", "map"):
        tensor[7, 3] = -1.0
        assert copied(tensor)[7, 3].item() == -1.0
    pin.release()
    assert not tensor.is_pinned()


def test_a_pin_that_is_dropped_is_unpinned(device):
    tensor = torch.ones(1 << 20)
    pin = _pinned(device, tensor)
    again = _pinned(device, tensor[100:200])
    del pin
    gc.collect()
    assert tensor.is_pinned()
    del again
    assert not tensor.is_pinned()


def test_torchs_own_pinned_memory_stays_pinned(device, copied):
    tensor = torch.arange(1000.0).pin_memory()
    pin = _pinned(device, tensor)
    assert torch.equal(copied(tensor).cpu(), tensor)
    pin.release()
    assert tensor.is_pinned()


def test_memory_is_not_unpinned_while_it_is_read(device, copied):
    tensor = torch.arange(float(1 << 20))
    pin = _pinned(device, tensor)
    with device.stream("reading").use():
        torch.cuda._sleep(200_000_000)
        out = copied(tensor)
        done = device.current_stream.record()
    pin.release()
    assert done.has_happened
    assert torch.equal(out.cpu(), tensor)


def test_refused_memory_leaves_no_error_behind(device):
    whole = torch.ones(1 << 20)
    pin = _pinned(device, whole[: 1 << 16])
    with pytest.warns(RuntimeWarning, match="could not be pinned"):
        assert device.pin(whole[1 << 15 : 1 << 17]) is None
    assert torch.ones(4, device=device.device).sum().item() == 4
    pin.release()


def test_neighbours_in_one_page_are_pinned_or_refused(device):
    whole = torch.arange(1 << 16, dtype=torch.int32)  # parts of an eighth: each is registered alone
    first, second = whole[: (1 << 13) + 4], whole[(1 << 13) + 4 : 1 << 14]
    pin = _pinned(device, first)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        other = device.pin(second)
    assert (other is None) == (len(seen) == 1)
    for part in (first, second):
        assert torch.equal(StagingRing(device).upload([part])[0].cpu(), part)
    pin.release()
    if other is not None:
        assert is_pinned_at(second.data_ptr())
        other.release()
    assert not is_pinned_at(first.data_ptr())
    assert not is_pinned_at(second.data_ptr())


def _pin_elsewhere(tensor, answers):
    device = accelerator_for(torch.device("cuda", 0))
    pin = device.pin(tensor)
    total = int(tensor.to("cuda:0").sum().item())
    was_pinned = tensor.is_pinned()
    if pin is not None:
        pin.release()
    answers.put((was_pinned, total, tensor.is_pinned()))


def test_two_processes_pin_the_same_shared_memory(device):
    tensor = torch.arange(100_000).share_memory_()
    pin = _pinned(device, tensor)
    context = multiprocessing.get_context("spawn")
    answers = context.SimpleQueue()
    child = context.Process(target=_pin_elsewhere, args=(tensor, answers))
    child.start()
    answer = answers.get()
    child.join()
    assert answer == (True, int(tensor.sum()), False)
    assert tensor.is_pinned()
    pin.release()


def _run(code):
    return subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=HANGING,
    )


_BEGIN = """
    import os, resource, torch
    from pagraph.accelerator import StagingRing, accelerator_for
    device = accelerator_for(torch.device("cuda", 0))
    tensor = torch.arange(1 << 22)
"""


def test_a_process_may_end_with_pins():
    done = _run(f"{_BEGIN}\n    pin = device.pin(tensor)\n    assert tensor.is_pinned()")
    assert (done.returncode, done.stderr) == (0, "")


def test_limits_of_locked_memory_lead_to_staging_at_worst():
    done = _run(
        f"""{_BEGIN}
    import warnings
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (1 << 16, 1 << 16))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        pin = device.pin(tensor)
    assert (pin is None) == (len(seen) == 1), (pin, seen)
    assert torch.equal(StagingRing(device).upload([tensor])[0].cpu(), tensor)
    """
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_forked_child_leaves_the_parents_pins_alone():
    done = _run(
        f"""{_BEGIN}
    pin = device.pin(tensor)
    child = os.fork()
    if not child:
        pin.release()
        del pin, tensor
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert tensor.is_pinned()
    pin.release()
    assert not tensor.is_pinned()
    """
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_streams_run_beside_the_users_and_hand_over(device):
    reading, user = device.stream("reading"), device.current_stream
    assert device.stream("reading") is reading
    with reading.use():
        begun = device.current_stream.record()
        torch.cuda._sleep(50_000_000)
        rows = torch.full((1 << 20,), 3.0, device=device.device)
        ready = device.current_stream.record()
    assert user.record().has_happened or not ready.has_happened
    device.hand_over([rows], ready)
    total = rows.sum()
    assert total.item() == 3.0 * (1 << 20)
    assert ready.has_happened
    assert 0 < ready.seconds_since(begun) < 60


def test_memory_that_crossed_streams_is_not_given_out_early(device):
    reading = device.stream("reading")
    for _ in range(3):
        with reading.use():
            rows = device.empty((1 << 22,), torch.float32).fill_(1.0)
            ready = device.current_stream.record()
        device.hand_over([rows], ready)
        torch.cuda._sleep(100_000_000)
        total = rows.sum()
        del rows
        with reading.use():
            spoiled = device.empty((1 << 22,), torch.float32).fill_(9.0)
        assert total.item() == 1 << 22
        del spoiled


def test_threads_have_current_streams_of_their_own(device):
    seen = []
    with device.stream("reading").use():
        thread = threading.Thread(
            target=lambda: seen.append(torch.cuda.current_stream(device.device))
        )
        thread.start()
        thread.join()
        assert torch.cuda.current_stream(device.device) != seen[0]


def test_uploads_from_several_threads_have_their_bytes(device):
    ring, failures = StagingRing(device, slots=3, slot_bytes=1 << 18), []

    def work(number):
        try:
            source = torch.full(((1 << 20) + number,), number, dtype=torch.int32)
            for _ in range(20):
                with device.stream("reading").use():
                    (sent,) = ring.upload([source])
                    ready = device.current_stream.record()
                device.hand_over([sent], ready)
                assert bool((sent == number).all())
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_memory_of_the_device_ends(device):
    free, total = device.free_bytes()
    assert 0 < free <= total
    with pytest.raises(OutOfMemory):
        device.empty((2 * total,), torch.uint8)
    device.release_memory()
    kept = device.empty((1 << 20,), torch.uint8)
    device.synchronize()
    assert kept.device == device.device
    assert device.host_memory(100).is_pinned()


def test_kernels_run_where_triton_is(device):
    pytest.importorskip("triton")
    if os.environ.get("TRITON_INTERPRET", "0") != "0":
        pytest.skip("kernels are interpreted")
    assert device.runs_kernels


def test_it_says_what_it_is(device):
    assert repr(device) == f"CudaAccelerator('cuda:{torch.cuda.current_device()}')"


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_a_second_device_takes_nothing_of_the_first():
    script = """
        import threading
        import torch
        from pagraph.accelerator import StagingRing, accelerator_for

        device = accelerator_for(torch.device("cuda", 1))

        def work():
            with device.stream("reading").use():
                assert torch.cuda.current_device() == 1
                (there,) = StagingRing(device).upload([torch.arange(10)])
                assert there.sum().item() == 45
            assert torch.cuda.current_device() == 0

        for run in (work, lambda: [t := threading.Thread(target=work), t.start(), t.join()]):
            run()
        assert not torch._C._cuda_hasPrimaryContext(0)
        assert torch._C._cuda_hasPrimaryContext(1)
        print("done")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False
    )
    assert done.stdout == "done\n", done.stderr
