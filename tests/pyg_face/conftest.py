"""The PyG face is tested where PyG is installed; our import of it comes first, which hushes what it
warns of."""

import importlib.util

if importlib.util.find_spec("torch_geometric") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    import pagraph.pyg  # noqa: F401
