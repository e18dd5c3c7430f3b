"""Steps for which a GPU is too small."""

import gc

import pytest
import torch

from pagraph.accelerator import HostAccelerator, OutOfMemory
from pagraph.train import loop
from pagraph.train.loop import repeated_with_room

GPU = torch.device("cuda", 0)


@pytest.fixture(scope="module", autouse=True)
def _few_objects():
    """Each repetition collects garbage, which takes seconds after many other tests."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def gpu(monkeypatch):
    monkeypatch.setattr(
        loop, "accelerator_for", lambda device: HostAccelerator() if device.type == "cuda" else None
    )


class CachingLoader:
    """A loader whose cache can be halved a few times."""

    def __init__(self, halves):
        self.halves, self.asked = halves, 0

    def shrink_cache(self):
        self.asked += 1
        self.halves -= 1
        return self.halves >= 0


def step_that_needs(loader, halvings):
    def step():
        if loader.asked < halvings:
            raise OutOfMemory("CUDA out of memory. Tried to allocate 2.00 GiB")
        return "done"

    return step


@pytest.mark.every
@pytest.mark.parametrize("needed", [0, 1, 3])
def test_a_step_is_repeated_with_smaller_caches(needed):
    loader = CachingLoader(5)
    assert repeated_with_room(loader, GPU, step_that_needs(loader, needed)) == "done"
    assert loader.asked == needed


def test_a_step_that_never_fits_says_what_to_do():
    loader = CachingLoader(2)
    said = (
        r"a training step does not fit on .* even without a cache.*batch size.*Tried to allocate "
        r"2.00 GiB"
    )
    with pytest.raises(OutOfMemory, match=said):
        repeated_with_room(loader, GPU, step_that_needs(loader, 9))
    assert loader.asked == 3


def test_a_loader_without_a_cache_of_its_own():
    with pytest.raises(OutOfMemory, match="lower the batch size, fan-outs or hidden size"):
        repeated_with_room(object(), GPU, step_that_needs(CachingLoader(0), 1))


def test_on_the_cpu_a_step_is_made_once():
    loader = CachingLoader(5)
    with pytest.raises(OutOfMemory, match="^CUDA out of memory"):
        repeated_with_room(loader, torch.device("cpu"), step_that_needs(loader, 1))
    assert loader.asked == 0


def test_other_errors_pass():
    with pytest.raises(ZeroDivisionError):
        repeated_with_room(CachingLoader(5), GPU, lambda: 1 // 0)
