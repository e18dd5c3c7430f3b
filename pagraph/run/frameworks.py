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

_PYG_LIB = "WITH_PYG_LIB"
_SPARSE = "WITH_TORCH_SPARSE"
_WEIGHTED = "WITH_WEIGHTED_NEIGHBOR_SAMPLE"
_METIS = "WITH_METIS"
_CLUSTER = "WITH_TORCH_CLUSTER"
_PACKAGES = {
    _PYG_LIB: "pyg-lib",
    _SPARSE: "torch-sparse",
    _WEIGHTED: "pyg-lib",
    _METIS: "pyg-lib",
    _CLUSTER: "torch-cluster",
}
"""Flag of ``torch_geometric.typing`` to the package that sets it."""
_PYGS_LOADERS: dict[str, tuple[str, ...]] = {
    "NeighborLoader": (_PYG_LIB, _SPARSE),
    "LinkNeighborLoader": (_PYG_LIB, _SPARSE),
    "HGTLoader": (_SPARSE,),
    "ShaDowKHopSampler": (_SPARSE,),
    "ClusterData": (_METIS, _SPARSE),
    "ClusterLoader": (),
    "GraphSAINTSampler": (_SPARSE,),
    "GraphSAINTNodeSampler": (_SPARSE,),
    "GraphSAINTEdgeSampler": (_SPARSE,),
    "GraphSAINTRandomWalkSampler": (_SPARSE,),
}
"""Classes of ``torch_geometric.loader`` that ``pagraph.pyg`` has under the same name, and the flags
of which theirs needs one."""
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
    for name, needs in _PYGS_LOADERS.items():
        lacks = partial(_lacks, needs)
        if _PYG_LIB in needs:
            lacks = partial(_lacks_to_sample, "neighbor_sampler")
        # ClusterLoader reads the clusters that ClusterData makes.
        is_loader = name != "ClusterData"
        offer = Offer(partial(_ours, "pyg", name), None, lacks, _pyg_note, is_loader)
        replacer.offer(getattr(module, name), offer)
    for name, ours in {"NodeLoader": "NeighborLoader", "LinkLoader": "LinkNeighborLoader"}.items():
        theirs = getattr(module, name)
        with_sampler = partial(_with_sampler, theirs)
        lacks = partial(
            _lacks_to_sample, "node_sampler" if name == "NodeLoader" else "link_sampler"
        )
        offer = Offer(partial(_ours, "pyg", ours), with_sampler, lacks, _pyg_note)
        replacer.offer(theirs, offer)


def _lacks(needs: Sequence[str], *args: Any, **kwargs: Any) -> str:
    """Packages of which PyG's class needs one and has none, or "".

    Args:
        needs: Flags of ``torch_geometric.typing``, of which this PyG may not have all.
        args, kwargs: Arguments of the class, which do not matter.
    """
    flags = sys.modules["torch_geometric.typing"]
    if not needs or any(getattr(flags, need, False) for need in needs):
        return ""
    return " or ".join(dict.fromkeys(_PACKAGES[need] for need in needs))


def _lacks_to_sample(name: str, loader: Any, *args: Any, **kwargs: Any) -> str:
    """Packages that PyG's neighbour sampler lacks for a loader's arguments, or "".

    Args:
        name: Argument that may be a sampler; the second one if the loader always takes one.
        loader, args, kwargs: The loader and its arguments.
    """
    sampler = kwargs.get(name, *args[1:2] if name != "neighbor_sampler" else ())
    if sampler is not None:
        given = _given_to(sampler)
        return "" if given is None else _lacks_to_sample(name, loader, **given)
    if kwargs.get("weight_attr") is not None:
        return _lacks([_WEIGHTED])
    if kwargs.get("disjoint") or kwargs.get("time_attr") is not None:
        return _lacks([_PYG_LIB])
    subgraph = kwargs.get("subgraph_type")
    if getattr(subgraph, "value", subgraph) == "induced" or not kwargs.get("directed", True):
        return _lacks([_SPARSE])
    return _lacks([_PYG_LIB, _SPARSE])


def _given_to(sampler: Any) -> dict[str, Any] | None:
    """Arguments of PyG's neighbour sampler; None for a sampler of the script's own."""
    given: dict[str, Any] | None = getattr(sampler, "__dict__", {}).get(_GIVEN)
    return given if type(sampler).__name__ == "NeighborSampler" else None


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
    for name, needs in {"Node2Vec": (_PYG_LIB, _CLUSTER), "MetaPath2Vec": ()}.items():
        lacks = partial(_lacks, needs)
        offer = Offer(partial(_ours, "pyg", name), lacks=lacks, is_loader=False)
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
    given = _given_to(sampler)
    if given is None:
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
