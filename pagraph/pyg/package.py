"""Import of PyG, with an error that says how to install it."""

from __future__ import annotations

import warnings
from types import ModuleType

from ..errors import MissingDependencyError, how_to_install


def import_pyg() -> ModuleType:
    """The package ``torch_geometric``; neither pyg-lib nor torch-sparse is needed.

    Raises:
        MissingDependencyError: It is not installed.
    """
    try:
        with warnings.catch_warnings():
            # Of torch.jit, which PyG uses on import.
            for category in (DeprecationWarning, FutureWarning):
                warnings.simplefilter("ignore", category)
            import torch_geometric
            import torch_geometric.loader
    except ModuleNotFoundError as error:
        if error.name != "torch_geometric":
            raise
        raise MissingDependencyError(
            f"pagraph.pyg needs PyG, which is not installed: {how_to_install('pyg')}"
        ) from error
    package: ModuleType = torch_geometric
    return package
