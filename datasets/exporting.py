"""Writes graphs in the forms of other libraries, each of which :func:`~pagraph.datasets.read_graph`
reads."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ..options.names import EXPORT_FORMS
from ..system.atomic import check_absent

if TYPE_CHECKING:
    from ..graph.graph import Graph


def export_graph(graph: Graph, out: str | os.PathLike[str], *, form: str) -> None:
    """Write ``graph`` with all its fields as another library reads it, whole or not at all.

    Edge ``i`` is the one with the id ``i``. In PyG's form ``feat`` and ``label`` are called ``x``
    and ``y``, unless these are there.

    Args:
        graph: The graph.
        out: What to write, which must not exist yet.
        form: "dgl" (``dgl.save_graphs``; a name that ends in ``.bin``), "pyg" (a ``Data`` or
            ``HeteroData`` by ``torch.save``; ``.pt``), or "ogb" (a folder with ``raw/`` and
            ``split/``).

    Raises:
        FileExistsError: ``out`` exists.
        MissingDependencyError: The form needs DGL or PyG, which is not installed.
        ValueError: The form cannot hold a field, a type, or the edge ids, which must be all those
            below the number of edges.
    """
    # Here, like DGL and PyG below: a wrong target is refused before torch is imported.
    import torch

    check_target(out, form)
    # None of the forms has edge ids: an edge's id is its place, so that fields go by it.
    for etype in graph.edge_types:
        csc = graph.csc_of(etype)
        csc.validate()
        if csc.edge_ids is not None and not torch.equal(
            csc.edge_ids.sort().values,
            torch.arange(csc.num_edges, dtype=csc.edge_ids.dtype, device="cpu"),
        ):
            raise ValueError(
                f"edge ids of {'/'.join(etype)} must be 0 to {csc.num_edges - 1}, each once, to be "
                "exported"
            )
    # Late: DGL and PyG take seconds to import, and need not be installed for the other form.
    if form == "dgl":
        from ..dgl.convert import save_graph

        save_graph(graph, out)
    elif form == "pyg":
        from ..pyg.graphs import save_data

        save_data(graph, out)
    else:
        from .ogb import write_ogb

        write_ogb(graph, out)


def check_target(out: str | os.PathLike[str], form: str, *, name: str = "out") -> None:
    """Check the form, and that ``out`` is a new path whose name goes with it; long work calls this
    before it starts."""
    if form not in EXPORT_FORMS:
        raise ValueError(f"form must be one of {list(EXPORT_FORMS)}, got {form!r}")
    check_absent(out, name=name)
    if not Path(out).name.endswith(EXPORT_FORMS[form]):
        raise ValueError(
            f"{name} must end in {EXPORT_FORMS[form]} for the form {form}, got {str(out)!r}"
        )
