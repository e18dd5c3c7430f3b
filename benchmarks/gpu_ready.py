"""Whether ``make gpu`` can run with this Python: one line says what is missing. Nothing is
installed."""

import importlib.util
import sys

NEEDED = (
    "torch",
    "triton",
    "numpy",
    "scipy",
    "numba",
    "networkx",
    "click",
    "rich",
    "pytest",
    "pytest_timeout",
    "hypothesis",
)


def obstacle():
    """What is missing, in one sentence; None where nothing is."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        return (
            f"make gpu needs {', '.join(missing)} in {sys.executable}; `make venv` installs "
            "them in an environment"
        )
    import torch

    if not torch.cuda.is_available():
        return (
            "make gpu needs a CUDA device, this machine has none that torch "
            f"{torch.__version__} can use"
        )
    return None


if __name__ == "__main__":
    sys.exit(obstacle())
