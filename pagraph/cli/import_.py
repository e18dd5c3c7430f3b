"""``pagraph import``: read a graph in another format and write it as a native folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from .._streams import print_notice
from ..datasets.forms import database_form, import_graph, read_graph
from ..datasets.manifest import Manifest
from ..datasets.tables.location import is_database, is_url, shown_source
from ..system.atomic import check_absent
from ..system.tables import Table
from .options import as_typed, memory_option, options_of, store_option
from .terminal import (
    few_collections,
    fields_line,
    print_table,
    print_text,
    progress_bar,
    summary_line,
)


class _Source(click.Path):
    """A path, or the URL of a database."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Path | str:
        # Not a `Path`, which makes one slash of several.
        if is_url(value):
            return str(value)
        return Path(os.fsdecode(super().convert(value, param, ctx)))


@click.command(name="import")
@click.argument("source", metavar="SRC", type=_Source(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path), required=False)
@options_of(
    read_graph,
    split={"metavar": "PREFIX", "help": "Folders: use another split, such as pub_."},
    num_nodes="Edge lists, edge_index: vertices.  [default: largest id + 1]",
    relabel="Edge lists: accept any numbers or words as ids; vertices are sorted by them.",
    undirected="Each edge is listed once: store both directions.",
    weight={
        "metavar": "NAME[:DTYPE]",
        "multiple": True,
        "help": "Edge lists, matrices: keep the weights as this field, in the dtype that holds "
        "all, or as float32, float64, int32 or int64. Edge lists may have several.",
    },
    field={
        "metavar": "NAME[:DTYPE]",
        "multiple": True,
        "help": "Edge lists: keep this column as a field of its name; may be repeated.  "
        "[default: all named columns that a field can hold]",
    },
    header={
        "flags": ("--header/--no-header",),
        "help": "Edge lists: the first line names the fields.  [default: detect]",
    },
    tables={
        "flags": ("--table",),
        "metavar": "NAME",
        "multiple": True,
        "help": "Databases: read this table or view; may be repeated.  [default: all tables]",
    },
    skip_tables={
        "flags": ("--skip-table",),
        "metavar": "NAME",
        "multiple": True,
        "help": "Databases: a table to leave out.",
    },
    skip_columns={
        "flags": ("--skip-column",),
        "metavar": "[TABLE:]COLUMN",
        "multiple": True,
        "help": "Databases: a column to leave out. Edge lists: COLUMN.",
    },
    schema={
        "metavar": "NAME",
        "once": True,
        "help": "Databases: the schema of the tables.  [default: public]",
    },
    keys={
        "flags": ("--key",),
        "metavar": "TABLE:COLUMN|TABLE.COLUMN:TABLE",
        "multiple": True,
        "help": "Databases: the primary key of a table, or the table that a column refers to; "
        "end in the colon for none.",
    },
    times={
        "flags": ("--time",),
        "metavar": "COLUMN|TABLE:COLUMN",
        "multiple": True,
        "help": "Edge lists: the column that becomes the field time. Databases: the column with "
        "the time of a row; end in the colon for none.",
    },
    orphans={
        "choices": ("error", "drop"),
        "help": "Databases: whether keys that point nowhere are an error or make no edge.  "
        "[default: error]",
    },
    missing={
        "metavar": "NUMBER",
        "type": float,
        "help": "Databases: value of missing integers, dates and booleans. Edge lists: also of "
        "missing fractions.",
    },
    words={
        "metavar": "NUMBER",
        "type": int,
        "help": "Keep so many words of each text column, the most frequent ones, and one class for "
        "the rest.  [default: leave out columns of too many words]",
    },
    task={
        "metavar": "TABLE:LABEL[:TIME]",
        "once": True,
        "help": "Databases: rows of a table become seeds with labels, split by time into --train, "
        "--val and --test.",
    },
    features={
        "metavar": "FILE",
        "once": True,
        "help": "A row per vertex, for the field feat: .npy, .npz, .csv, .parquet, .pt.",
    },
    labels={"metavar": "FILE", "once": True, "help": "A row per vertex, for the field label."},
    train={
        "metavar": "FILE|FRACTION",
        "once": True,
        "help": "Ids, a mask, or a share such as 60%: the field train_mask.",
    },
    val={"metavar": "FILE|FRACTION", "once": True, "help": "The same for val_mask."},
    test={"metavar": "FILE|FRACTION", "once": True, "help": "The same for test_mask."},
)
@click.option("--dry-run", is_flag=True, help="Databases: show the graph, and write nothing.")
@store_option
@memory_option
def command(
    source: Path | str,
    out: Path | None,
    memory: str | None,
    store: str | None,
    dry_run: bool,
    **settings: Any,
) -> None:
    """Read the graph SRC and write it as the folder OUT, which must not exist yet.

    SRC is an edge list (.txt, .tsv, .csv, perhaps compressed, or .parquet), Matrix Market (.mtx),
    GraphML, GML, KONECT's out.NAME, an .npz of scipy or of a GNN benchmark, an edge_index (.npz,
    .npy, .pt), a graph that DGL (.bin) or PyG (.pt) saved, a folder from PaGraph, OGB or GraphBolt,
    a YAML file that describes tables, or a database: an SQLite or DuckDB file,
    postgresql://USER@HOST/NAME, sqlite:///PATH or adbc:DRIVER:URI.
    """
    if dry_run:
        _preview(source, memory, settings)
        return
    if out is None:
        raise click.UsageError("Missing argument 'OUT'.")
    check_absent(out, name="OUT")
    if not is_database(source):
        settings["time"] = _only("--time", settings.pop("times"))
    # Without user and password: the name is printed, and stored in the folder.
    name = shown_source(source)
    with few_collections(), progress_bar(f"importing {name}") as progress:
        origin = {"source": name}
        graph = import_graph(
            source, out, **settings, memory=memory, store=store, origin=origin, progress=progress
        )
    print_text(summary_line(graph, out))
    print_text(fields_line(graph, out))
    _print_columns(out)
    # Rows in the file's order would be silently wrong.
    if settings["relabel"] and (settings["features"] or settings["labels"]):
        print_notice(
            "note: rows of --features and --labels were taken in the order of the sorted ids"
        )


def _print_columns(out: Path) -> None:
    """Print what became of each column of the tables that a folder was made of."""
    columns = Manifest.read(out).columns
    if not columns:
        return
    command_here = click.get_current_context().command
    rows = [["column", "becomes", "missing", "notes"]]
    for column in columns:
        name = ".".join(filter(None, [column.table, column.column]))
        rows.append(
            [name, column.becomes, f"{column.missing:,}", as_typed(column.notes, command_here)]
        )
    print_table(Table(rows, left=(0, 1, 3)))


def _only(option: str, values: Sequence[str]) -> str | None:
    """The value of an option that only databases may have several times."""
    if len(values) > 1:
        given = " and ".join(map(repr, values))
        raise click.UsageError(f"{option} must be given once for this source, got {given}")
    return values[0] if values else None


def _preview(source: Path | str, memory: str | None, settings: dict[str, Any]) -> None:
    """Show what a database would become."""
    given = database_form(source, settings)
    with few_collections(), progress_bar(f"reading {shown_source(source)}") as progress:
        # Late: it imports torch.
        from ..datasets.tables.from_database import database_schema

        schema = database_schema(source, memory=memory, progress=progress, **given)
    click.echo(schema.text())
