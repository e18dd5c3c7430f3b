"""Forms that graphs are read from, with detection, options and readers; and forms for export."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import FormatError
from ..options.names import EXPORT_FORMS
from ..system.atomic import check_absent
from ..system.budget import in_memory, memory_budget
from ..system.checks import StrPath
from ..system.progress import Progress, part_of
from .paths import (
    COUNTS,
    EDGE_INDEX,
    METADATA,
    PARTS,
    TEXTS,
    VertexSet,
    check_files,
    folder_form,
    is_ogb,
)
from .tables.choices import Missing, Named, check_choices
from .tables.location import is_database, location_of

if TYPE_CHECKING:
    from ..graph.graph import Graph
    from .edge_sort import InFiles


@dataclass(frozen=True)
class Form:
    """A form of folder or file.

    Attributes:
        name: Its name in errors.
        what: The same for a sentence that begins "It is ...".
        reader: Its reader, as MODULE.NAME, so that only this one is imported.
        options: Options of :func:`read_graph` that the reader takes.
        endings: Endings of file names of this form.
        is_it: Whether a folder, or a file with such an ending, has this form. Default: always.
        is_bounded: Whether the reader takes ``files``, see :class:`~.edge_sort.InFiles`, for graphs
            larger than memory.
    """

    name: str
    what: str
    reader: str
    options: tuple[str, ...] = ()
    endings: tuple[str, ...] = ()
    is_it: Callable[[Path], bool] = Path.exists
    is_bounded: bool = False

    def read(self, source: StrPath, **options: Any) -> Graph:
        """Call the reader."""
        module, name = self.reader.rsplit(".", 1)
        reader = getattr(import_module(f".{module}", __package__), name)
        graph: Graph = reader(source, **options)
        return graph

    def chosen(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The ``options`` that are set, or ValueError if this form lacks one."""
        given = {name: value for name, value in options.items() if _is_set(name, value)}
        for name in given:
            if name not in self.options:
                raise ValueError(f"{name} must not be given for a source of the form {self.name!r}")
        weight = given.get("weight", "")
        # Only edge lists may have several weights.
        if not isinstance(weight, str) and "field" not in self.options:
            if len(weight) > 1:
                names = " and ".join(map(repr, weight))
                raise ValueError(
                    f"weight must be given once for a source of the form {self.name!r}, got {names}"
                )
            given["weight"] = weight[0]
        return given


def _is_set(name: str, value: Any) -> bool:
    """Whether an option is not at its default."""
    # False is a choice only for the header; for switches it is the default.
    if value is False:
        return name == "header"
    return value not in (None, "", (), [], {})


def _members(path: Path) -> set[str]:
    """Names of the arrays in an ``.npz`` file; empty for a damaged one."""
    from .arrays import UNREADABLE, npz_members

    try:
        with open(path, "rb") as file:
            return set(npz_members(file))
    except UNREADABLE:
        return set()


_EDGES = (
    *("num_nodes", "relabel", "undirected", "weight", "field", "time", "skip_columns", "missing"),
    *("words", "header", "progress"),
)
# The first match wins, so of forms with one ending, the one without `is_it` comes last.
_FORMS = (
    Form(
        "edge list",
        "an edge list",
        "edge_list.read_edge_list",
        _EDGES,
        (*TEXTS, ".parquet"),
        is_bounded=True,
    ),
    Form(
        "matrix market",
        "a Matrix Market file",
        "matrices.read_matrix_market",
        ("undirected", "weight", "progress"),
        (".mtx", ".mtx.gz", ".mtx.xz", ".mtx.bz2"),
    ),
    Form(
        "graphml", "a GraphML file", "networkx_files.read_graphml", (), (".graphml", ".graphml.gz")
    ),
    Form("gml", "a GML file", "networkx_files.read_gml", (), (".gml", ".gml.gz")),
    Form(
        "benchmark",
        "a benchmark's graph",
        "matrices.read_benchmark",
        ("undirected", "weight"),
        (".npz",),
        lambda path: "adj_data" in _members(path),
    ),
    Form(
        "ogb",
        "arrays of an OGB data set",
        "ogb.read_ogb",
        ("undirected",),
        (".npz",),
        lambda path: {EDGE_INDEX, COUNTS} <= _members(path),
        is_bounded=True,
    ),
    Form(
        "edge index",
        "an edge_index",
        "tensors.read_edge_index",
        ("num_nodes", "undirected"),
        (".npz",),
        lambda path: EDGE_INDEX in _members(path),
    ),
    Form(
        "scipy",
        "a scipy sparse matrix",
        "matrices.read_scipy",
        ("undirected", "weight"),
        (".npz",),
    ),
    Form(
        "edge index",
        "an edge_index",
        "tensors.read_edge_index",
        ("num_nodes", "undirected"),
        (".npy",),
        is_bounded=True,
    ),
    Form("dgl", "a graph that DGL saved", "dgl_file.read_dgl", (), (".bin",)),
    Form("pyg", "a graph that torch saved", "tensors.read_pyg", (), (".pt",)),
    Form(
        "graphbolt",
        "the description of a GraphBolt data set",
        "graphbolt.read_graphbolt",
        (),
        (".yaml",),
        lambda path: path.name == METADATA,
    ),
    Form(
        "tables",
        "the description of tables",
        "tables.described.read_tables",
        ("orphans", "missing", "words", "task", "parts", "progress"),
        (".yaml", ".yml"),
    ),
)
# Any other folder is opened as a graph folder, with its errors.
_FOLDERS = (
    Form(
        "ogb",
        "an OGB data set",
        "ogb.read_ogb",
        ("split", "undirected", "progress"),
        is_it=is_ogb,
        is_bounded=True,
    ),
    Form(
        "graphbolt",
        "a GraphBolt data set",
        "graphbolt.read_graphbolt",
        is_it=lambda path: (path / METADATA).is_file(),
    ),
    Form("folder", "a graph folder", "opening.open_verified", ("split",)),
)
_DATABASE = Form(
    "database",
    "a database",
    "tables.from_database.read_database",
    (
        *("tables", "skip_tables", "skip_columns", "schema", "keys", "times"),
        *("orphans", "missing", "words", "task", "parts", "progress"),
    ),
    is_bounded=True,
)
_KONECT = Form(
    "konect", "a KONECT network", "edge_list.read_konect", ("undirected", "weight", "progress")
)


def source_form(source: StrPath) -> Form:
    """Detect the form of ``source`` by its name, and if ambiguous, by its content."""
    if is_database(source):
        location_of(source)  # refuses a wrong path before torch is imported
        return _DATABASE
    path = Path(source)
    if not path.exists():
        raise FileNotFoundError(f"source must exist, got {str(path)!r}")
    if path.is_dir():
        return next(form for form in _FOLDERS if form.is_it(path))
    if not path.is_file():  # a pipe or a device may never end
        raise FormatError(f"source must be a file or a folder, got {str(path)!r}")
    name = path.name.lower()
    for form in _FORMS:
        if name.endswith(form.endings) and form.is_it(path):
            return form
    if name.startswith("out."):
        return _KONECT
    # Once each, without those of packed texts.
    every = dict.fromkeys(ending for form in _FORMS for ending in form.endings)
    endings = [ending for ending in every if ending.count(".") == 1]
    raise FormatError(
        "source must be a graph folder, a file named out.NAME (KONECT's), or end in one of "
        f"{', '.join(endings)} (text "
        f"also with .gz, .xz or .bz2), got {str(path)!r}"
    )


def database_form(source: StrPath, options: Mapping[str, Any]) -> dict[str, Any]:
    """Check that a source is a database, and its options; returns those of its reader."""
    form = source_form(source)
    if form is not _DATABASE:
        raise ValueError(f"dry_run=True needs a database, got {form.what}")
    others = {name: value for name, value in options.items() if name not in PARTS}
    return _asked(form, others, dict(options))


def _asked(form: Form, options: Mapping[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """The options of a form's reader.

    A task takes the sets out of ``fields``, since they are shares of its rows.
    """
    given = form.chosen(options)
    if form is _DATABASE or "task" in given:
        given["parts"] = {part: fields.pop(part, None) for part in PARTS}
    if "orphans" in form.options:
        check_choices(given)
    return given


def read_graph(
    source: StrPath,
    *,
    split: str = "",
    num_nodes: int | None = None,
    relabel: bool = False,
    undirected: bool = False,
    weight: str | Sequence[str] | None = None,
    field: str | Sequence[str] | None = None,
    time: str | None = None,
    header: bool | None = None,
    tables: Sequence[str] = (),
    skip_tables: Sequence[str] = (),
    skip_columns: Sequence[str] = (),
    schema: str | None = None,
    keys: Named = (),
    times: Named = (),
    orphans: str | None = None,
    missing: Missing = None,
    words: int | None = None,
    task: str | None = None,
    features: StrPath | None = None,
    labels: StrPath | None = None,
    train: VertexSet | None = None,
    val: VertexSet | None = None,
    test: VertexSet | None = None,
    memory: int | str | None = None,
    progress: Progress | None = None,
) -> Graph:
    """Read a graph from a folder or file of any supported form; fields have DGL's names.

    Args:
        source: A graph folder; an edge list (``.txt``, ``.tsv``, ``.csv``, also compressed as
            ``.gz``, ``.xz`` or ``.bz2``, or ``.parquet``); Matrix Market (``.mtx``), GraphML, GML,
            KONECT's ``out.NAME``; an ``.npz`` of scipy, of a GNN benchmark or with an
            ``edge_index``; an ``edge_index`` in ``.npy`` or ``.pt``; a graph that DGL (``.bin``) or
            PyG (``.pt``) saved; the folder of a dataset of OGB (or its ``data.npz``) or GraphBolt;
            a YAML file that describes tables; or a database, as a file of SQLite or DuckDB, or as
            ``postgresql://USER@HOST/NAME``, ``sqlite:///PATH`` or ``adbc:DRIVER:URI``.
        split: For folders: see :func:`open_graph`; for OGB's, the name of the folder in ``split/``.
        num_nodes: For edge lists and ``edge_index``: number of vertices. Default: the largest id
            plus 1.
        relabel: For edge lists, like ``header``: see :func:`read_edge_list`.
        undirected: If each edge is listed once: store both directions.
        weight: For edge lists and matrices: name of an edge field for the weights; for edge lists
            also several.
        field: For edge lists, like ``time`` and ``header``: further columns to keep.
        time: The column of edge times.
        header: Whether the first line has names.
        tables: For databases, like the next nine: the tables and views to read. Default: all
            tables.
        skip_tables: Tables to leave out.
        skip_columns: Columns to leave out, as "table:column"; for edge lists as "column".
        schema: The schema of the tables. Default: "public".
        keys: As in ``Graph.from_tables``, or text such as "users:id" and "orders.user_id:users".
        times: Likewise: "orders:created_at", or "users:" for a table without a time.
        orphans: "error", or "drop": keys that point nowhere make no edge.
        missing: Replacement for missing integers, dates and booleans; for edge lists, for missing
            numbers.
        words: For edge lists, too: the most words of a text column. The most frequent ones are
            kept, and all others are one class. Default: a column of too many words is left out.
        task: "table:label" or "table:label:time". The table's rows are the seeds of training. They
            get the field ``label``, and masks in the order of time by the shares ``train``, ``val``
            and ``test`` (0.6, 0.2 and 0.2). Types without a column ``feat`` get one from their
            numbers and words.
        features: For graphs without such a field, like the next four: a file for the field
            ``feat``; see :func:`~pagraph.datasets.given_fields.add_fields`.
        labels: A file for the field ``label``.
        train: A file of ids or of a mask for the field ``train_mask``, or a fraction of the
            vertices.
        val: The same for ``val_mask``.
        test: The same for ``test_mask``.
        memory: Limit in bytes for the arrays in the files, as claimed and decompressed, such as
            "4GiB"; the graph itself comes on top. Default: half of free memory.
        progress: Called with the bytes read and the file's size, if known.

    Raises:
        FileNotFoundError: The path does not exist.
        FormatError: The form is unknown, or the content is corrupt or larger than ``memory``.
        MissingDependencyError: The form needs PyG, which is not installed.
        ValueError: An option does not fit the form, ids are out of range, or fields do not fit the
            graph.
    """
    form = source_form(source)
    options: dict[str, Any] = {
        "split": split,
        "num_nodes": num_nodes,
        "relabel": relabel,
        "undirected": undirected,
    }
    options |= {"weight": weight, "field": field, "time": time, "header": header}
    options |= {"tables": tables, "skip_tables": skip_tables, "skip_columns": skip_columns}
    options |= {"schema": schema, "keys": keys, "times": times, "orphans": orphans}
    fields: dict[str, Any] = {"features": features, "labels": labels}
    fields |= {"train": train, "val": val, "test": test}
    options |= {"missing": missing, "words": words, "task": task}
    given = _asked(form, options, fields)
    if "progress" in form.options:
        given["progress"] = progress
    check_files(fields.values())
    from .given_fields import add_fields

    with in_memory(memory):
        graph = form.read(source, **given)
        add_fields(graph, **fields)
    return graph


def import_graph(
    source: StrPath,
    out: StrPath,
    *,
    memory: int | str | None = None,
    store: str | None = None,
    origin: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Graph:
    """Convert a graph of any supported form to a native folder, atomically, and open it.

    Edges of edge lists, ``.npy`` files and OGB datasets are sorted in temporary files. Other
    forms are read into memory first.

    Args:
        source: See :func:`read_graph`.
        out: Must not exist yet.
        memory: Memory for edges in files, such as "4GiB", on top of Python and its libraries. For
            forms that are read into memory, see :func:`read_graph`. Default: half of free memory.
        store: See :func:`write_graph`.
        origin: Where the graph is from, for people.
        progress: Called with the work done so far and all work.
        options: Those of :func:`read_graph`.

    Raises:
        FileExistsError: ``out`` exists.
        FormatError: As in :func:`read_graph`, like other errors.
        ValueError: ``memory`` is not a number of bytes, or too small.
    """
    form = source_form(source)
    fields = {name: options.pop(name, None) for name in ("features", "labels", *PARTS)}
    given = _asked(form, options, fields)
    check_files(fields.values())
    if form.name == "folder":
        folder_form(source)
    memory_budget(memory)
    check_absent(out)
    # Only after the checks: this imports torch.
    from ..graph.graph import Graph
    from .edge_sort import write_bounded
    from .given_fields import add_fields
    from .native import write_graph

    if not form.is_bounded:
        fields |= given.get("parts", {})
        graph = read_graph(
            source, **options, **fields, memory=memory, progress=part_of(progress, 0, 0.6)
        )
        write_graph(graph, out, origin=origin, store=store, progress=part_of(progress, 0.6, 1))
        return Graph.open(out)

    def stored(files: InFiles) -> Graph:
        with in_memory(memory):
            graph = form.read(source, files=files, **given)
            add_fields(graph, **fields, scratch=files.scratch)
        return graph

    return write_bounded(stored, out, memory=memory, store=store, origin=origin, progress=progress)


def export_graph(graph: Graph, out: StrPath, *, form: str) -> None:
    """Write ``graph`` with all its fields in another library's form, atomically.

    Edge ``i`` is the one with id ``i``. In PyG's form ``feat`` and ``label`` become ``x`` and
    ``y``, unless these exist.

    Args:
        graph: The graph.
        out: What to write, which must not exist yet.
        form: "dgl" (``dgl.save_graphs``; a name that ends in ``.bin``), "pyg" (a ``Data`` or
            ``HeteroData`` by ``torch.save``; ``.pt``), or "ogb" (a folder with ``raw/`` and
            ``split/``).

    Raises:
        FileExistsError: ``out`` exists.
        MissingDependencyError: The form needs DGL or PyG, which is not installed.
        ValueError: The form cannot hold a field, a type, or the edge ids, which must be a
            permutation.
    """
    # Imported here, so that the command line refuses a wrong target without torch.
    import torch

    check_target(out, form)
    # The forms have no edge ids, so an edge's id must be its position for fields to match.
    for etype in graph.edge_types:
        csc = graph.csc_of(etype)
        csc.validate()
        ids = csc.edge_ids
        if ids is None:
            continue
        positions = torch.arange(csc.num_edges, dtype=ids.dtype, device="cpu")
        if not torch.equal(ids.sort().values, positions):
            raise ValueError(
                f"edge ids of {'/'.join(etype)} must be 0 to {csc.num_edges - 1}, each once, to be "
                "exported"
            )
    # Imported here: DGL and PyG take seconds, and only one need be installed.
    if form == "dgl":
        from ..dgl.convert import save_graph

        save_graph(graph, out)
    elif form == "pyg":
        from ..pyg.graphs import save_data

        save_data(graph, out)
    else:
        from .ogb import write_ogb

        write_ogb(graph, out)


def check_target(out: StrPath, form: str, *, name: str = "out") -> None:
    """Check the form, and that ``out`` is a new path with a matching name, before long work."""
    if form not in EXPORT_FORMS:
        raise ValueError(f"form must be one of {list(EXPORT_FORMS)}, got {form!r}")
    check_absent(out, name=name)
    if not Path(out).name.endswith(EXPORT_FORMS[form]):
        raise ValueError(
            f"{name} must end in {EXPORT_FORMS[form]} for the form {form}, got {str(out)!r}"
        )
