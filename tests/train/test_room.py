import pytest
import torch

from pagraph.accelerator import OutOfMemory
from pagraph.train.room import with_room


class Cache:
    """A loader whose cache can be halved a few times."""

    device = torch.device("cuda", 0)

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


@pytest.mark.parametrize("needed", [0, 1, 3])
def test_a_step_is_repeated_with_smaller_caches(needed):
    loader = Cache(5)
    assert with_room(loader, step_that_needs(loader, needed)) == "done"
    assert loader.asked == needed


def test_a_step_that_never_fits_says_what_to_do():
    loader = Cache(2)
    with pytest.raises(OutOfMemory, match=r"does not fit on cuda:0, and no cache is left.*Tried to allocate 2.00 GiB"):
        with_room(loader, step_that_needs(loader, 9))
    assert loader.asked == 3


def test_a_loader_without_a_cache_of_its_own():
    class Plain:
        device = torch.device("cuda", 0)

    with pytest.raises(OutOfMemory, match="batch size"):
        with_room(Plain(), step_that_needs(Cache(0), 1))


def test_other_errors_pass():
    def step():
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        with_room(Cache(5), step)
