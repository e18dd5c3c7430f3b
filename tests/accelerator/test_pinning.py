"""Pins: what is registered, who claims it, and when it is given back. Without a driver."""

import gc
import mmap
import os
import threading
import warnings

import numpy as np
import pytest
import torch
from fresh_processes import HANGING
from pretended_driver import GPU, OTHER_GPU, PretendedDriver

from pagraph.accelerator.pinning import Pin, is_writable, memory_of


@pytest.fixture
def driver():
    return PretendedDriver()


def _paged(n, dtype=torch.float32):
    """A tensor that has its pages for itself."""
    return torch.from_numpy(
        np.frombuffer(mmap.mmap(-1, max(1, n * dtype.itemsize)), np.float32, n)
    ).view(dtype)


def test_memory_is_registered_once_and_unregistered_with_the_last_claim(driver):
    tensor = _paged(5000)
    first, second = driver.pin(tensor, GPU), driver.pin(tensor, GPU)
    assert driver.registered == {tensor.data_ptr(): 20000}
    first.release()
    first.release()  # once is enough
    assert driver.registered
    second.release()
    assert not driver.registered
    assert [call[0] for call in driver.calls] == ["register", "synchronize", "unregister"]


def test_a_claim_that_is_dropped_ends(driver):
    tensor = _paged(5000)
    pin = driver.pin(tensor, GPU)
    del tensor
    assert driver.registered
    del pin
    assert not driver.registered


def test_a_claim_in_a_cycle_ends_with_the_collector(driver):
    class Owner:
        pass

    owner = Owner()
    owner.self, owner.pin = owner, driver.pin(_paged(5000), GPU)
    del owner
    gc.collect()
    assert not driver.registered


def test_a_claim_that_ends_in_a_capture_is_unpinned_after_it(driver):
    pin, other = driver.pin(_paged(5000), GPU), driver.pin(_paged(5000), GPU)
    driver.captures = True
    del pin
    gc.collect()
    assert len(driver.registered) == 2
    driver.captures = False
    other.release()
    assert not driver.registered


def test_all_devices_that_read_are_waited_for(driver):
    tensor = _paged(5000)
    first, second = driver.pin(tensor, GPU), driver.pin(tensor, OTHER_GPU)
    first.release()
    assert len(driver.calls) == 1
    second.release()
    assert driver.calls[1:] == [
        ("synchronize", "cuda:0", "cuda:1"),
        ("unregister", tensor.data_ptr()),
    ]


def test_views_of_registered_memory_join_it(driver):
    tensor = _paged(8192).view(1024, 8)
    pins = [
        driver.pin(part, GPU) for part in (tensor, tensor[100:200], tensor[:, 3], tensor[7, 2:3])
    ]
    assert len(driver.registered) == 1
    for pin in pins[:-1]:
        pin.release()
    assert driver.registered  # the last view's claim is left
    pins[-1].release()
    assert not driver.registered


def test_columns_of_one_array_share_its_registration(driver):
    whole = _paged(8192).view(1024, 8)
    left, right = driver.pin(whole[:, :4], GPU), driver.pin(whole[:, 4:], GPU)
    assert driver.registered == {whole.data_ptr(): 32768}
    left.release()
    right.release()
    assert not driver.registered


def test_a_small_part_of_an_array_is_registered_alone(driver):
    whole = _paged(1 << 16)
    part = whole[1024:3072]
    pin = driver.pin(part, GPU)
    assert driver.registered == {part.data_ptr(): 8192}
    pin.release()


def test_memory_that_touches_a_registered_page_is_refused_with_one_warning(driver):
    whole = _paged(1 << 16)
    pin = driver.pin(whole[:2048], GPU)
    with pytest.warns(
        RuntimeWarning, match=r"could not be pinned \(part or all .* through a staging buffer"
    ) as seen:
        assert driver.pin(whole[2000:4000], GPU) is None
    assert len(seen) == 1
    pin.release()
    assert not driver.registered


def test_refused_memory_is_not_remembered(driver):
    tensor = _paged(5000)
    driver.refuses = "out of memory"
    with pytest.warns(
        RuntimeWarning, match=r"19\.53 KiB of host memory could not be pinned \(out of memory\)"
    ):
        assert driver.pin(tensor, GPU) is None
    driver.refuses = None
    pin = driver.pin(tensor, GPU)
    assert driver.registered
    pin.release()


def test_a_warning_that_is_an_error_leaves_the_lock_free(driver):
    driver.refuses = "out of memory"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeWarning):
            driver.pin(_paged(5000), GPU)
    driver.refuses = None
    driver.pin(_paged(5000), GPU).release()
    assert not driver.registered


def test_memory_that_others_have_pinned_is_claimed_but_never_unregistered(driver):
    tensor = _paged(5000)
    driver.registered[tensor.data_ptr()] = 20000
    pin = driver.pin(tensor, GPU)
    pin.release()
    assert pin.tensor is tensor
    assert driver.registered and not driver.calls


def test_memory_of_which_others_have_pinned_the_beginning_only_is_refused(driver):
    tensor = _paged(5000)
    driver.registered[tensor.data_ptr()] = 4096
    with pytest.warns(RuntimeWarning, match="already mapped"):
        assert driver.pin(tensor, GPU) is None


def test_nothing_needs_no_pin(driver):
    for nothing in (torch.empty(0), torch.empty(5, 0), _paged(100)[:0]):
        driver.pin(nothing, GPU).release()
    assert not driver.calls


def test_read_only_maps_are_registered_as_such(driver, tmp_path):
    np.arange(4096, dtype=np.float32).tofile(tmp_path / "rows")
    written = np.memmap(tmp_path / "rows", np.float32, "r+")
    read = np.memmap(tmp_path / "rows", np.float32, "r")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that the array is not writable
        tensors = [torch.from_numpy(array) for array in (written, read)]
    assert [is_writable(tensor) for tensor in tensors] == [True, False]
    pins = [driver.pin(tensor, GPU) for tensor in tensors]
    assert [call[-1] for call in driver.calls] == [True, False]
    for pin in pins:
        pin.release()


def test_files_larger_than_half_of_the_memory_are_not_read_into_it(driver, tmp_path, monkeypatch):
    np.zeros(1 << 16, dtype=np.float32).tofile(tmp_path / "rows")
    tensor = torch.from_numpy(np.memmap(tmp_path / "rows", np.float32, "r+"))
    monkeypatch.setattr("pagraph.accelerator.pinning.address_on_disk", lambda address: True)
    monkeypatch.setattr("pagraph.accelerator.pinning.host_available", lambda: 1 << 19)
    driver.pin(tensor, GPU).release()
    monkeypatch.setattr("pagraph.accelerator.pinning.host_available", lambda: (1 << 19) - 1)
    with pytest.warns(
        RuntimeWarning, match=r"file on disk of 256 KiB, more than half of the 512 KiB of memory"
    ):
        assert driver.pin(tensor, GPU) is None
    assert len(driver.calls) == 3


def test_shared_memory_is_pinned_in_place(driver):
    tensor = torch.arange(4096.0).share_memory_()
    pin = driver.pin(tensor, GPU)
    assert list(driver.registered) == [tensor.data_ptr()]
    pin.release()


def test_a_claim_that_ends_while_another_is_registered_does_not_wait(driver):
    """As the collector may do, in the very thread that registers."""
    tensor, other = _paged(5000), _paged(5000)
    address = tensor.data_ptr()
    pin = driver.pin(tensor, GPU)
    driver.inside.clear()
    driver.may_go_on.clear()
    pins = []
    thread = threading.Thread(target=lambda: pins.append(driver.pin(other, GPU)))
    thread.start()
    assert driver.inside.wait(HANGING)
    del tensor
    pin.release()
    del pin
    assert address in driver.registered  # the memory is held until somebody has unregistered it
    driver.may_go_on.set()
    thread.join()
    assert list(driver.registered) == [other.data_ptr()]
    pins[0].release()


def test_a_claim_that_ends_inside_of_registering_is_taken_account_of(driver):
    pin = driver.pin(_paged(5000), GPU)
    register = driver._register

    def collecting(*arguments, **more):
        nonlocal pin
        del pin
        return register(*arguments, **more)

    driver._register = collecting
    other = _paged(5000)
    kept = driver.pin(other, GPU)
    assert list(driver.registered) == [other.data_ptr()]
    kept.release()


@pytest.mark.compilers
def test_threads_that_claim_and_release_one_memory_register_it_well(driver):
    tensor = _paged(5000)
    failures = []

    def work():
        try:
            for _ in range(300):
                pin = driver.pin(tensor, GPU)
                assert driver.registered
                pin.release()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert not driver.registered
    kinds = [call[0] for call in driver.calls]
    assert kinds.count("register") == kinds.count("unregister")


def test_a_device_that_has_failed_does_not_stop_a_claim_from_ending(driver, caplog):
    def fails(devices):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    driver._synchronize = fails
    driver.pin(_paged(5000), GPU).release()
    assert "could not be unpinned: CUDA error" in caplog.text
    tensor = _paged(10)
    assert driver._claim(tensor, GPU).claims == 1  # it is not taken for registered


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # threads of torch's are about
def test_a_forked_child_leaves_the_parents_pins_alone(driver):
    pin = driver.pin(_paged(5000), GPU)
    child = os.fork()
    if not child:
        pin.release()
        os._exit(len(driver.calls))  # 1: nothing but the registering
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    assert driver.registered
    pin.release()
    assert not driver.registered


def test_at_exit_nothing_is_unpinned(driver):
    pin = driver.pin(_paged(5000), GPU)
    assert pin._finalizer.atexit is False
    pin.release()


def test_a_pin_of_nobody_releases_nothing():
    tensor = torch.arange(3)
    pin = Pin(tensor)
    pin.release()
    assert pin.tensor is tensor


def test_the_memory_of_a_tensor_is_from_its_first_to_its_last_element():
    whole = torch.arange(24, dtype=torch.int32).view(4, 6)
    begin = whole.data_ptr()
    assert memory_of(whole) == (begin, begin + 96)
    assert memory_of(whole[1:3, 2:4]) == (begin + 32, begin + 64)
    assert memory_of(whole.t()) == (begin, begin + 96)
    assert memory_of(whole[2, 2]) == (begin + 56, begin + 60)
    assert memory_of(whole[:0])[0] == memory_of(whole[:0])[1]
