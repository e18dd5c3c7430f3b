"""Forms that a graph can be read from, each with how it is recognised, its options and its reader;
and those of other libraries that it can be written in."""

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
        reader: Its reader, as MODULE.NAME: those of other forms are not imported.
        options: Those of :func:`read_graph` that the reader takes.
        endings: What names of files of this form end in.
        is_it: Whether a folder, or a file with such an ending, has this form. Default: every one.
        is_bounded: Whether the reader takes ``files``, see :class:`~.edge_sort.InFiles`, for what
            need not fit into memory.
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
        """Those of the ``options`` that are set, or ValueError where one is not of this form."""
        # False is an answer only for the header; for switches it is the default.
        given = {
            n: v
            for n, v in options.items()
            if v not in (None, "", (), [], {}) and (v is not False or n == "header")
        }
        for name in given:
            if name not in self.options:
                raise ValueError(f"{name} must not be given for a source of the form {self.name!r}")
        weight = given.get("weight", "")
        # Of the forms with weights, edge lists alone may have several.
        if not isinstance(weight, str) and "field" not in self.options:
            if len(weight) > 1:
                names = " and ".join(map(repr, weight))
                raise ValueError(
                    f"weight must be given once for a source of the form {self.name!r}, got {names}"
                )
            given["weight"] = weight[0]
        return given


def _members(path: Path) -> set[str]:
    """Names of the arrays in an ``.npz`` file; none in a damaged one."""
    from .arrays import UNREADABLE, npz_members

    try:
        with open(path, "rb") as file:
            return set(npz_members(file))
    except UNREADABLE:
        return set()


_EDGES = (
    *("num_nodes", "relabel", "undirected", "weight", "field", "time", "skip_columns", "missing"),
    *("header", "progress"),
)
# The first that fits is taken: of the forms that end alike, the one without `is_it` comes last.
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
        "arrays of a data set of OGB's",
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
        "a sparse matrix of scipy",
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
        "the description of a data set of GraphBolt's",
        "graphbolt.read_graphbolt",
        (),
        (".yaml",),
        lambda path: path.name == METADATA,
    ),
    Form(
        "tables", "the description of tables", "tables.described.read_tables", (), (".yaml", ".yml")
    ),
)
# Any other folder is opened as a graph folder, whose errors say what is wrong with it.
_FOLDERS = (
    Form(
        "ogb",
        "a data set of OGB's",
        "ogb.read_ogb",
        ("split", "undirected", "progress"),
        is_it=is_ogb,
        is_bounded=True,
    ),
    Form(
        "graphbolt",
        "a data set of GraphBolt's",
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
        *("orphans", "missing", "task", "parts", "progress"),
    ),
    is_bounded=True,
)
_KONECT = Form(
    "konect", "a network of KONECT's", "edge_list.read_konect", ("undirected", "weight", "progress")
)


def source_form(source: StrPath) -> Form:
    """Detect the form of ``source`` by its name, and where several have that, by a look inside."""
    if is_database(source):
        location_of(source)  # a path that is none is said before torch is imported
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
    endings = dict.fromkeys(
        ending for form in _FORMS for ending in form.endings if ending.count(".") == 1
    )
    raise FormatError(
        "source must be a graph folder, a file named out.NAME (KONECT's), or end in one of "
        f"{', '.join(endings)} (text "
        f"also with .gz, .xz or .bz2), got {str(path)!r}"
    )


def database_form(source: StrPath, options: Mapping[str, Any]) -> dict[str, Any]:
    """Check that a source is a database, and its options; those of its reader."""
    form = source_form(source)
    if form is not _DATABASE:
        raise ValueError(f"dry_run=True must come with a database, got {form.what}")
    others = {name: value for name, value in options.items() if name not in PARTS}
    return _asked(form, others, dict(options))


def _asked(form: Form, options: Mapping[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """The options of a form's reader. A database's takes the sets out of ``fields``: they are of
    the task's rows, and set with these."""
    given = form.chosen(options)
    if form is _DATABASE:
        given["parts"] = {part: fields.pop(part, None) for part in PARTS}
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
    task: str | None = None,
    features: StrPath | None = None,
    labels: StrPath | None = None,
    train: VertexSet | None = None,
    val: VertexSet | None = None,
    test: VertexSet | None = None,
    memory: int | str | None = None,
    progress: Progress | None = None,
) -> Graph:
    """Read a graph from a folder or file of any supported form; fields keep the names they have in
    DGL.

    Args:
        source: A graph folder; an edge list (``.txt``, ``.tsv``, ``.csv``, also packed as ``.gz``,
            ``.xz`` or ``.bz2``, or ``.parquet``); Matrix Market (``.mtx``), GraphML, GML, KONECT's
            ``out.NAME``; an ``.npz`` of scipy, of a GNN benchmark or with an ``edge_index``; an
            ``edge_index`` in ``.npy`` or ``.pt``; a graph that DGL (``.bin``) or PyG (``.pt``)
            saved; the folder of a data set of OGB's (or its ``data.npz``) or GraphBolt's; or a YAML
            file that describes tables; a database, as a file of SQLite's or DuckDB's, or as
            ``postgresql://USER@HOST/NAME``, ``sqlite:///PATH`` or ``adbc:DRIVER:URI``.
        split: For folders: see :func:`open_graph`; for OGB's, the name of the folder in ``split/``.
        num_nodes: For edge lists and ``edge_index``: number of vertices. Default: the largest id
            plus 1.
        relabel: For edge lists, like ``header``: see :func:`read_edge_list`.
        undirected: Where each edge is named once: store both directions.
        weight: For edge lists and matrices: name of an edge field for the weights; for edge lists
            also several.
        field: For edge lists, like ``time`` and ``header``.
        time: The column of the times of edges.
        header: Whether the first line has names.
        tables: For databases, like the next eight: the tables to read, views among them. Default:
            all tables.
        skip_tables: Tables that are not read.
        skip_columns: Columns that are not read, as "table:column"; for edge lists as "column".
        schema: The schema of the tables. Default: "public".
        keys: As of ``Graph.from_tables``, or texts such as "users:id" and "orders.user_id:users".
        times: Likewise: "orders:created_at", or "users:" for a table without a time.
        orphans: "error", or "drop": keys that point nowhere make no edge.
        missing: What stands for missing integers, dates and booleans; for edge lists the number
            that stands for missing ones.
        task: "table:label" or "table:label:time". The rows of the table are what a model is asked:
            they get the field ``label``, and in the order of time the masks of ``train``, ``val``
            and ``test``, which are then shares (0.6, 0.2 and 0.2). Types without a column ``feat``
            get one of their numbers and words.
        features: For graphs without such a field, like the next four: a file for the field
            ``feat``; see :func:`~pagraph.datasets.given_fields.add_fields`.
        labels: A file for the field ``label``.
        train: A file of ids or of a mask for the field ``train_mask``, or a fraction of the
            vertices.
        val: The same for ``val_mask``.
        test: The same for ``test_mask``.
        memory: Bytes that the arrays may take which the files hold, announce or unpack to, such as
            "4GiB"; the graph that is made of them comes on top. Default: half of what is free.
        progress: Called with the bytes read and the file's size, where that can be told.

    Raises:
        FileNotFoundError: There is nothing at that path.
        FormatError: The form is not known, or the content is corrupt, or more than ``memory`` has
            room for.
        MissingDependencyError: The form needs PyG, which is not installed.
        ValueError: An option does not go with the form, ids are out of range, or fields do not fit
            the graph.
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
    given = _asked(form, options | {"missing": missing, "task": task}, fields)
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
    """Write a graph from elsewhere as a native folder, whole or not at all; opens it.

    The edges of edge lists, ``.npy`` files and OGB's data sets are sorted in files beside those of
    the folder; other forms are read into memory first.

    Args:
        source: What :func:`read_graph` takes.
        out: Must not exist yet.
        memory: Bytes that edges in files may take, such as "4GiB", beside what Python and its
            libraries hold. Of forms that are read into memory, what their files may announce or
            unpack to; the graph that is made of it comes on top. Default: half of what is free.
        store: See :func:`write_graph`.
        origin: Where the graph is from, for people.
        progress: Called with the work done so far and all of it.
        options: Those of :func:`read_graph`.

    Raises:
        FileExistsError: ``out`` exists.
        FormatError: As :func:`read_graph`, like others.
        ValueError: ``memory`` is no number of bytes, or less than the work needs.
    """
    form = source_form(source)
    fields = {name: options.pop(name, None) for name in ("features", "labels", *PARTS)}
    given = _asked(form, options, fields)
    check_files(fields.values())
    if form.name == "folder":
        folder_form(source)
    memory_budget(memory)
    check_absent(out)
    # Not before all of this is right: it imports torch.
    from ..graph.graph import Graph
    from .edge_sort import write_bounded
    from .given_fields import add_fields
    from .native import write_graph

    if not form.is_bounded:
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


def check_target(out: StrPath, form: str, *, name: str = "out") -> None:
    """Check the form, and that ``out`` is a new path whose name goes with it; long work calls this
    before it starts."""
    if form not in EXPORT_FORMS:
        raise ValueError(f"form must be one of {list(EXPORT_FORMS)}, got {form!r}")
    check_absent(out, name=name)
    if not Path(out).name.endswith(EXPORT_FORMS[form]):
        raise ValueError(
            f"{name} must end in {EXPORT_FORMS[form]} for the form {form}, got {str(out)!r}"
        )
