"""DGL's and PyG's loaders, ours that replace them, and the import hook that notices theirs."""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from .._graphbolt import before_dgl
from .ledger import Ledger, watched
from .replacing import NotOurs, Offer, Replacer, is_of_pagraph

_PYGS_LOADERS = (
    "NeighborLoader",
    "LinkNeighborLoader",
    "HGTLoader",
    "ShaDowKHopSampler",
    "ClusterLoader",
    "GraphSAINTSampler",
    "GraphSAINTNodeSampler",
    "GraphSAINTEdgeSampler",
    "GraphSAINTRandomWalkSampler",
)
"""Classes of ``torch_geometric.loader`` that ``pagraph.pyg`` has under the same name."""
_READERS = {
    "torch.utils.data.dataloader": "DataLoader",
    "dgl.dataloading.dataloader": "DataLoader",
    "pagraph.loader": "Loader",
    "pagraph.dgl.loader": "DataLoader",
    "pagraph.pyg.pipelined": "Pipelined",
}
"""Module to its class whose iterators are timed. PyG's loaders inherit torch's."""
_GIVEN = "_pagraph_given"

_Found = Callable[[ModuleSpec], object]
_Executed = Callable[[ModuleType], object]


def hook(replacer: Replacer, ledger: Ledger) -> ImportHook:
    """The import hook that times all loaders, and replaces those of the frameworks by ours."""
    after: dict[str, Callable[[ModuleType], None]] = {
        module: partial(_watch, name, replacer, ledger) for module, name in _READERS.items()
    }
    dgl_too = after["dgl.dataloading.dataloader"]

    def dgls(module: ModuleType) -> None:
        dgl_too(module)
        ledger.seen["dgl"] = "DGL"
        replacer.offer(module.DataLoader, Offer(partial(_ours, "dgl"), note=_dgl_note))

    after["dgl.dataloading.dataloader"] = dgls
    after["torch_geometric.loader"] = partial(_pygs, replacer, ledger)
    after["torch_geometric.sampler"] = partial(_pyg_samplers, replacer)
    after["torch_geometric.nn"] = partial(_pyg_walkers, replacer)
    # DGL 2.1 cannot be imported with a torch that its GraphBolt was not built for.
    return ImportHook(before={"dgl": before_dgl}, after=after)


def _ours(face: str, name: str = "DataLoader") -> type:
    found: type = getattr(import_module(f"pagraph.{face}"), name)
    return found


def _watch(name: str, replacer: Replacer, ledger: Ledger, module: ModuleType) -> None:
    kind = getattr(module, name)
    replacer.cover(kind, "__iter__", watched(kind.__iter__, ledger))


def _pygs(replacer: Replacer, ledger: Ledger, module: ModuleType) -> None:
    ledger.seen["torch_geometric"] = "PyG"
    for name in _PYGS_LOADERS:
        replacer.offer(getattr(module, name), Offer(partial(_ours, "pyg", name), note=_pyg_note))
    # Not a loader: ClusterLoader reads the clusters that this makes.
    replacer.offer(module.ClusterData, Offer(partial(_ours, "pyg", "ClusterData"), is_loader=False))
    for name, ours in {"NodeLoader": "NeighborLoader", "LinkLoader": "LinkNeighborLoader"}.items():
        with_sampler = partial(_with_sampler, getattr(module, name))
        offer = Offer(partial(_ours, "pyg", ours), with_sampler, _pyg_note)
        replacer.offer(getattr(module, name), offer)


def _pyg_samplers(replacer: Replacer, module: ModuleType) -> None:
    """Have PyG's neighbour sampler remember its arguments, for our sampler that replaces it."""
    kind = module.NeighborSampler
    original = kind.__init__
    signature = inspect.signature(original)

    def __init__(sampler: Any, *args: Any, **kwargs: Any) -> None:
        original(sampler, *args, **kwargs)
        if not is_of_pagraph(type(sampler)):
            _, *values = signature.bind(sampler, *args, **kwargs).arguments.items()
            vars(sampler)[_GIVEN] = dict(values)

    __init__.__signature__ = signature  # type: ignore[attr-defined]
    replacer.cover(kind, "__init__", __init__)


def _pyg_walkers(replacer: Replacer, module: ModuleType) -> None:
    """Replace models that sample walks themselves, as PyG's need pyg-lib or torch-cluster."""
    for name in ("Node2Vec", "MetaPath2Vec"):
        offer = Offer(partial(_ours, "pyg", name), is_loader=False)
        replacer.offer(getattr(module, name), offer)


# Attributes that may be set after construction, as Lightning's data modules do on a copy.
_SETTABLE = ("num_neighbors", "replace", "subgraph_type", "disjoint", "temporal_strategy")


def _with_sampler(
    theirs: type, loader: Any, *args: Any, **kwargs: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of our loader for those of PyG's base class, which takes a sampler.

    Raises:
        NotOurs: The sampler is not PyG's neighbour sampler, or the class is a subclass of the base.
    """
    if type(loader) is not theirs:
        raise NotOurs(f"{type(loader).__name__} is the script's own {theirs.__name__}")
    original = inspect.unwrap(theirs.__init__)
    call = inspect.signature(original).bind(loader, *args, **kwargs)
    _, (_, data), (_, sampler), *rest = call.arguments.items()
    given = vars(sampler).get(_GIVEN) if hasattr(sampler, "__dict__") else None
    if given is None or type(sampler).__name__ != "NeighborSampler":
        raise NotOurs(f"{type(sampler).__name__} is the script's own sampler")
    settings = given | {name: getattr(sampler, name) for name in _SETTABLE}
    if settings.pop("sample_direction", "forward") != "forward":
        raise NotOurs("sample_direction is backward")
    settings.pop("share_memory", None)
    of_data = settings.pop("data")
    ours = _ours("pyg", "NeighborSampler")(of_data, **settings)
    others = dict(rest)
    others |= others.pop("kwargs", {})
    return (data, settings["num_neighbors"]), others | {"neighbor_sampler": ours}


def _pyg_note(loader: Any) -> str:
    """What a replaced PyG loader still runs itself, or ""."""
    own = [
        name
        for name in ("filter_fn", "collate_fn", "_sample_nodes")
        if not _is_known(getattr(type(loader), name, None))
    ]
    if own:
        return f"its own {own[0]} is called by torch"
    sampler = getattr(loader, "node_sampler", None) or getattr(loader, "link_sampler", None)
    if sampler is not None and not is_of_pagraph(type(sampler)):
        return f"the sampler {type(sampler).__name__} runs its own code"
    return ""


def _is_known(method: Any) -> bool:
    home = str(getattr(method, "__module__", "pagraph")).partition(".")[0]
    return home in ("pagraph", "torch_geometric", "torch")


def _dgl_note(loader: Any) -> str:
    """What a replaced DGL loader still runs itself, or ""."""
    workload = import_module("pagraph.dgl.workload")
    sampler = loader.graph_sampler
    if workload.native_sampler(loader.graph, sampler) is None:
        if "Edge" in type(sampler).__name__:
            sampler = getattr(sampler, "sampler", sampler)
        return f"the sampler {type(sampler).__name__} runs its own code"
    if workload.runs_users_code(sampler):
        return "its negatives or exclusions are the script's own code"
    return ""


class ImportHook(MetaPathFinder):
    """A finder that asks the other finders, and calls functions around a module's execution.

    Args:
        before: Module to a function to call when its code is found and has not run.
        after: Module to a function to call when its code has run; at once if it has already.
    """

    def __init__(self, before: Mapping[str, _Found], after: Mapping[str, _Executed]) -> None:
        self._before = before
        self._after = dict(after)
        # Names that this thread is looking for. Other finders may import modules themselves, and so
        # come back here.
        self._looking = threading.local()

    def wait_for(self, name: str, call: _Executed) -> None:
        """Add a function to ``after``; only before :meth:`install`."""
        self._after[name] = call

    def install(self) -> None:
        """Become the first finder; modules that are already imported count as imported now."""
        sys.meta_path.insert(0, self)
        for name, call in self._after.items():
            module = sys.modules.get(name)
            # Not one that is still being imported, whose classes may be missing.
            spec = getattr(module, "__spec__", None)
            if module is not None and not getattr(spec, "_initializing", False):
                call(module)

    def remove(self) -> None:
        """Stop calling functions at imports."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a module that has a function, with a loader that calls it."""
        if fullname not in self._after and fullname not in self._before:
            return None
        looking = vars(self._looking).setdefault("names", set())
        if fullname in looking:
            return None
        looking.add(fullname)
        try:
            spec = self._of_others(fullname, path, target)
        finally:
            looking.discard(fullname)
        if spec is None:
            return None
        if fullname in self._before:
            self._before[fullname](spec)
        if fullname in self._after:
            _call_after(spec, self._after[fullname])
        return spec

    def _of_others(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        for finder in list(sys.meta_path):
            if finder is not self:
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    return spec
        return None


def _call_after(spec: ModuleSpec, call: _Executed) -> None:
    """Have the spec's loader make a call when the module's code has run.

    Only the loader's method is replaced, so that code that asks the loader for sources or resources
    still finds its type.
    """
    loader: Any = spec.loader
    execute = getattr(loader, "exec_module", None)
    if execute is None:
        return

    def exec_module(module: ModuleType) -> None:
        # Restored first, as a loader may serve several modules, or this one again at a reload.
        del loader.exec_module
        execute(module)
        call(module)

    try:
        loader.exec_module = exec_module
    except AttributeError:  # a loader without attributes: its module is not changed
        return
