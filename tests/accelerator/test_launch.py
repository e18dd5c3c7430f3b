"""Launching kernels, here by Triton's interpreter."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from pagraph.accelerator import HostAccelerator
from pagraph.accelerator.triton_kernels import launch

pytest.importorskip("triton")
if not HostAccelerator().runs_kernels:
    pytest.skip("needs TRITON_INTERPRET=1 in the environment", allow_module_level=True)

from copying_kernel import copy_words


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 200])
def test_a_kernel_runs_on_as_many_programs_as_it_is_told(count):
    source, out = torch.arange(200), torch.zeros(256, dtype=torch.int64)
    launch(copy_words, -(-count // 64), source, out, count, BLOCK=64)
    assert torch.equal(out[:count], source[:count])
    assert not out[count:].any()


def test_threads_launch_at_the_same_time():
    outs = [torch.zeros(100, dtype=torch.int64) for _ in range(4)]

    def work(out):
        for _ in range(5):
            launch(copy_words, 2, torch.arange(100), out, 100, BLOCK=64)

    threads = [threading.Thread(target=work, args=(out,)) for out in outs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(out, torch.arange(100)) for out in outs)


def test_a_kernel_is_compiled_by_one_thread_at_a_time(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    inside, most = [], []

    class Kernel:
        def __getitem__(self, grid):
            return self.run

        def run(self, argument):
            inside.append(argument)
            most.append(len(inside))
            time.sleep(0.005)
            inside.pop()

    kernel = Kernel()
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda i: launch(kernel, 1, i), range(12)))
    assert most == [1] * 12
