"""From the schema of tables to a graph with the fields, sets and features that users wish."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ...graph.graph import Graph
from ...system.progress import Progress
from ..column_files import Scratch
from ..paths import VertexSet
from .builder import Gaps, build
from .choices import Filling, Missing, Task, check_task, check_words
from .connection import Connection
from .schema import Schema
from .task import Asked, set_task, with_label

_log = logging.getLogger("pagraph.datasets")


@dataclass(frozen=True)
class Wishes:
    """What users say about the columns of tables, from whatever source.

    Attributes:
        missing: Replacements for missing values.
        words: The most words of a text column; see :class:`~.columns.Rule`.
        task: "table:label" or "table:label:time"; None: no task.
        parts: Shares of the task's rows by set.
    """

    missing: Missing = None
    words: int | None = None
    task: str | None = None
    parts: Mapping[str, VertexSet | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_words(self.words)
        check_task(self.task, self.parts)

    def found_in(self, columns: Mapping[str, Sequence[str]]) -> Found:
        """The wishes, with the names of ``columns`` by table."""
        filling = Filling.of(self.missing)
        if self.task is None:
            return Found(filling, self.words)
        task = Task.parse(self.task, self.parts)
        table, label, time = task.names(columns)
        # A missing label: the answer is not known yet.
        filling = filling.with_number(table, label, -1)
        return Found(filling, self.words, Asked(table, label, task.shares), time)


@dataclass(frozen=True)
class Found:
    """:class:`Wishes` whose names are found in the tables.

    Attributes:
        missing: Replacements for missing values.
        words: The most words of a text column.
        asked: The task, or None.
        time: The column of its time, if the task names one.
    """

    missing: Filling
    words: int | None = None
    asked: Asked | None = None
    time: str = ""

    def times(self, given: Mapping[str, str | None]) -> dict[str, str | None]:
        """The times by table, with the task's.

        Raises:
            ValueError: ``given`` names another for its table.
        """
        if self.asked is None or not self.time:
            return dict(given)
        table = self.asked.table
        if given.get(table, self.time) != self.time:
            raise ValueError(
                f"task must have the time that times names for {table}, {given[table]!r}, got "
                f"{self.time!r}"
            )
        return {**given, table: self.time}

    def with_label(self, connection: Connection, schema: Schema) -> Schema:
        """The schema with the label of the task, if there is one."""
        return schema if self.asked is None else with_label(connection, schema, self.asked)

    def graph(
        self,
        connection: Connection,
        schema: Schema,
        scratch: Scratch | None,
        room: int,
        *,
        orphans: str,
        progress: Progress | None = None,
    ) -> tuple[Graph, Gaps]:
        """Build the graph, for :meth:`finish`; logs what the schema notes."""
        for note in schema.notes:
            _log.warning("%s", note)
        gaps: Gaps | None = None if self.asked is None else {}
        graph = build(
            connection, schema, scratch, room, orphans=orphans, gaps=gaps, progress=progress
        )
        return graph, gaps or {}

    def finish(self, graph: Graph, gaps: Gaps, scratch: Scratch | None) -> None:
        """Add the sets and features of the task; the connection need not be open any more."""
        if self.asked is not None:
            set_task(graph, self.asked, scratch, gaps, every_word=self.words is not None)
