"""The kernel that numbers a block's edges."""

from .._jit import kernel


@kernel
def count_up(out):  # type: ignore[no-untyped-def]
    """``out[i] = i``; on one thread, while ``torch.arange`` starts others beside the loader's own."""
    for i in range(len(out)):
        out[i] = i
