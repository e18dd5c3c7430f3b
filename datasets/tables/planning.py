"""From tables to a schema: keys, links and times, given or inferred from names and values."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ...errors import FormatError
from ...graph.graph import EdgeType
from ...system.units import printable
from ..original_ids import ORIGINAL_ID
from .choices import Filling, Missing
from .columns import TIME, Rule, family, graph_unit, look_at
from .connection import Connection, quoted
from .keys import (
    KeyColumn,
    as_key,
    broken_key,
    check_keys,
    check_whole,
    is_ascending,
    may_be_key,
    may_refer,
    missing_from,
    words_of,
)
from .schema import Column, End, ForeignKey, Link, Schema, Table, VertexTable

Keys = Mapping[str, str | Sequence[str] | None]
"""Keys by name: ``{"users": "id", "orders.user_id": "users", "orders.note_id": None}``."""
Times = Mapping[str, str | None]
"""The time column of tables; None for a table without one."""
Fields = Mapping[str, Sequence[str]]
"""The columns of tables that become fields, for tables where not all do."""


def plan(
    tables: Sequence[Table],
    connection: Connection,
    *,
    keys: Keys | None = None,
    times: Times | None = None,
    missing: Missing | Filling = None,
    words: int | None = None,
    fields: Fields | None = None,
    infer: bool = True,
) -> Schema:
    """Plan the schema of the graph that tables make; reads all rows once or twice, in place.

    The rows of a table are the vertices of a type. A foreign key is an edge type from its table to
    the referenced one, named after its column, with the reverse ``rev_...``. A table of exactly two
    foreign keys, to which no other refers, is an edge type with the table's name.

    Args:
        tables: The source's descriptions of its tables.
        connection: Has their rows.
        keys: Keys that the source does not declare: a table's name to its primary key, and
            "table.column" to the referenced table; None for no key. Columns of a composite key are
            separated by commas.
        times: A table's name to the column with the time of its rows; None for no time.
        missing: Replacements for missing integers and dates, and for fractions that it names.
        words: The most words of a text column; see :class:`~.columns.Rule`.
        fields: A table's name to the columns that become fields. Default: all.
        infer: Whether to infer keys and times that are not declared.

    Raises:
        FormatError: A key is missing or repeated, or a field cannot hold a column.
        ValueError: The tables are ambiguous, or an argument has unknown names.
    """
    filling = Filling.of(missing)
    filling.check({table.name: table.columns for table in tables})
    planning = _Planning(list(tables), connection, infer)
    planning.take_keys(keys or {})
    planning.check_links()
    if infer:
        planning.infer_keys()
    planning.check_keys()
    if infer:
        planning.infer_links()
    planning.choose_times(times or {})
    return planning.schema(filling, words, fields or {})


@dataclass
class _Draft:
    """The plan of a table so far."""

    table: Table
    key: tuple[str, ...]
    links: list[ForeignKey]
    # Columns that an argument excludes from being keys.
    plain: set[str] = field(default_factory=set)
    is_keyless: bool = False
    time: str = ""

    @property
    def name(self) -> str:
        return self.table.name

    @property
    def link_columns(self) -> set[str]:
        return {name for link in self.links for name in link.columns}

    def column(self, name: str) -> KeyColumn:
        return KeyColumn(name, self.table.columns[name])

    def own_columns(self) -> list[str]:
        """The columns that are not keys, and those of a composite primary key."""
        # `original_id` cannot keep a composite key, so its columns stay fields.
        key = self.key if len(self.key) == 1 else ()
        return [c for c in self.table.columns if c not in key and c not in self.link_columns]


class _Planning:
    """One call of :func:`plan`."""

    def __init__(self, tables: list[Table], connection: Connection, infer: bool) -> None:
        self._connection = connection
        self._infer = infer
        self._notes: list[str] = []
        if not tables:
            raise ValueError("tables must hold at least 1 table, got 0")
        self._drafts: dict[str, _Draft] = {}
        for table in tables:
            for name in (table.name, *table.columns):
                if not name or not name.isprintable():
                    raise FormatError(
                        f"names of tables and columns must be printable characters, got {name!r}"[
                            :300
                        ]
                    )
            if table.name in self._drafts:
                raise ValueError(f"tables must have different names, got {table.name!r} twice")
            self._drafts[table.name] = _Draft(table, table.primary_key, [])
        for draft in self._drafts.values():
            for link in draft.table.foreign_keys:
                self._add_declared(draft, link)

    def _add_declared(self, draft: _Draft, link: ForeignKey) -> None:
        shown = printable(f"{draft.name}.{','.join(link.columns)}")
        target = self._drafts.get(link.table)
        if target is None:
            self._notes.append(
                f"{shown} refers to the table {printable(link.table)}, which is not among those "
                "read: no edges"
            )
            return
        # SQLite's foreign keys may omit the columns, which means the primary key.
        link = replace(link, to=link.to or target.table.primary_key)
        if link not in draft.links:
            draft.links.append(link)

    # -- keys that are given -----------------------------------------------------------------------

    def take_keys(self, keys: Keys) -> None:
        """Apply the argument ``keys``."""
        if not isinstance(keys, Mapping):
            raise TypeError(f"keys must be a mapping, got {keys!r}"[:300])
        references = []
        for name, value in keys.items():
            places = self._places(name)
            if name in self._drafts:
                places.append((self._drafts[name], ()))
            if len(places) != 1:
                rule = "a table, or table.column" if not places else "one thing"
                raise ValueError(f"keys must name {rule}, got {name!r}"[:300])
            draft, columns = places[0]
            if columns:
                # Later, since they may refer to a key further down.
                references.append((draft, columns, value))
            else:
                self._give_key(draft, value)
        for draft, columns, value in references:
            self._give_link(draft, columns, value)

    def _places(self, name: str) -> list[tuple[_Draft, tuple[str, ...]]]:
        """The possible meanings of "table.column", since names may have dots."""
        found = []
        for draft in self._drafts.values():
            rest = name[len(draft.name) + 1 :]
            if not name.startswith(f"{draft.name}."):
                continue
            columns = (rest,) if rest in draft.table.columns else tuple(rest.split(","))
            columns = tuple(c if c in draft.table.columns else c.strip() for c in columns)
            if all(column in draft.table.columns for column in columns):
                found.append((draft, columns))
        return found

    def _give_key(self, draft: _Draft, value: str | Sequence[str] | None) -> None:
        if value is None:
            draft.key = ()
            draft.is_keyless = True
            return
        draft.key = (value,) if isinstance(value, str) else tuple(value)
        unknown = [name for name in draft.key if name not in draft.table.columns]
        if unknown or not draft.key:
            raise ValueError(
                f"keys must name columns of {printable(draft.name)} "
                f"({list(draft.table.columns)}), got {value!r}"[:300]
            )

    def _give_link(
        self, draft: _Draft, columns: tuple[str, ...], value: str | Sequence[str] | None
    ) -> None:
        draft.links = [link for link in draft.links if set(link.columns) != set(columns)]
        draft.plain |= set(columns)
        if value is None:
            return
        target = self._drafts.get(value) if isinstance(value, str) else None
        to = () if target is None else target.key
        if target is None and isinstance(value, str):
            places = self._places(value)
            if len(places) == 1:
                target, to = places[0]
        if target is None:
            raise ValueError(
                f"keys must name a table of {list(self._drafts)}, or None, got {value!r}"[:300]
            )
        if not to and len(columns) == 1 and self._infer:
            to = self._inferred_key(target)
            target.key = to
        if len(to) != len(columns):
            given = f"{draft.name}.{','.join(columns)}"
            has = f"whose key is {', '.join(to)}" if to else "which has no key"
            raise ValueError(
                f"keys must refer to a table by as many columns as its key has, got {given!r} for "
                f"{value!r}, {has}: pass keys={{{target.name!r}: 'COLUMN'}} to give another"[:300]
            )
        draft.links.append(ForeignKey(columns, target.name, to))

    # -- keys that are inferred --------------------------------------------------------------------

    def infer_keys(self) -> None:
        """Infer primary keys that neither source nor user named."""
        for draft in self._drafts.values():
            if not draft.key and not draft.is_keyless:
                draft.key = self._inferred_key(draft)

    def _inferred_key(self, draft: _Draft) -> tuple[str, ...]:
        ranked = defaultdict(list)
        for name in draft.table.columns:
            rank = may_be_key(name, draft.name)
            # A foreign key is not a primary key, unless declared.
            usable = name not in draft.plain | draft.link_columns
            if rank and usable and draft.column(name).family in ("integer", "text"):
                ranked[rank].append(name)
        for rank in sorted(ranked, reverse=True):
            found = []
            for name in ranked[rank]:
                wrong = check_keys(self._connection, draft.table.relation, [draft.column(name)])
                if not wrong:
                    found.append(name)
                    continue
                shown = printable(f"{draft.name}.{name}")
                self._notes.append(f"{shown} is no key of {printable(draft.name)}: {wrong}")
            if len(found) > 1:
                raise ValueError(
                    f"keys: both {found[0]!r} and {found[1]!r} could be the key of "
                    f"{printable(draft.name)}; pass keys={{{draft.name!r}: {found[0]!r}}} to choose"
                )
            if found:
                self._notes.append(
                    f"inferred: {printable(f'{draft.name}.{found[0]}')} is the key of "
                    f"{printable(draft.name)}"
                )
                return (found[0],)
        return ()

    def check_links(self) -> None:
        """Raise FormatError if a referenced column does not exist."""
        for draft in self._drafts.values():
            for link in draft.links:
                target = self._drafts[link.table].table
                there = [name for name in link.to if name in target.columns]
                if link.to and len(there) == len(link.columns):
                    continue
                name = f"{draft.name}.{','.join(link.columns)}"
                got = ", ".join(link.to) or "a table without a primary key"
                raise FormatError(
                    f"{printable(name)} must refer to columns of {printable(link.table)} that are "
                    f"read, got {printable(got)}; pass keys={{{name!r}: None}} to leave it out"
                )

    def check_keys(self) -> None:
        """Raise FormatError if a key is missing or repeated."""
        for draft in self._drafts.values():
            # Sorted first, so that equal keys are neighbours.
            draft.table = self._in_order(draft, draft.key)
            self._check(draft, draft.key)
        for draft in self._drafts.values():
            for link in draft.links:
                for name in link.columns:
                    check_whole(self._connection, draft.table, draft.column(name))
                target = self._drafts[link.table]
                if link.to != target.key:
                    self._check(target, link.to)

    def _check(self, draft: _Draft, names: tuple[str, ...]) -> None:
        if not names:
            return
        columns = [draft.column(name) for name in names]
        for column in columns:
            check_whole(self._connection, draft.table, column)
        wrong = check_keys(self._connection, draft.table.relation, columns)
        if wrong:
            raise FormatError(f"{printable(draft.name)}: {wrong}")

    def infer_links(self) -> None:
        """Infer foreign keys: columns whose names and values match another table's key."""
        for draft in self._drafts.values():
            # A simple primary key does not refer; a column of a composite one may.
            taken = draft.link_columns | draft.plain
            if len(draft.key) == 1:
                taken = taken | set(draft.key)
            for name in draft.table.columns:
                if name not in taken:
                    self._infer_link(draft, name)

    def _infer_link(self, draft: _Draft, name: str) -> None:
        column = draft.column(name)
        best = 0
        named: list[_Draft] = []
        for target in self._drafts.values():
            if len(target.key) != 1:
                continue
            rank = may_refer(name, target.name, target.key[0])
            # In `users`, `user_id` names the row itself, but `parent_user_id` another row.
            if target is draft and rank == len(words_of(name)):
                continue
            if not rank or rank < best or not column.may_join(target.column(target.key[0])):
                continue
            named = [*(named if rank == best else []), target]
            best = rank
        # A column of fractions is never a key.
        if not named or broken_key(self._connection, draft.table.relation, column):
            return
        fitting = []
        for target in named:
            key = target.column(target.key[0])
            lost, example = missing_from(
                self._connection, draft.table.relation, [column], target.table.relation, [key]
            )
            shown = printable(f"{draft.name}.{name}")
            if not lost:
                fitting.append(target)
                continue
            self._notes.append(
                f"{shown} is no key of {printable(target.name)}: {lost:,} of its values, such as "
                f"{printable(example)}, are missing there; "
                f"pass keys={{{f'{draft.name}.{name}'!r}: {target.name!r}}} to make it one"
            )
        if len(fitting) > 1:
            one, other = fitting[0].name, fitting[1].name
            raise ValueError(
                f"keys: {printable(f'{draft.name}.{name}')} could refer to {one!r} and to "
                f"{other!r}; pass keys={{{f'{draft.name}.{name}'!r}: {one!r}}} to choose"
            )
        for target in fitting:
            draft.links.append(ForeignKey((name,), target.name, target.key))
            self._notes.append(
                f"inferred: {printable(f'{draft.name}.{name}')} refers to "
                f"{printable(f'{target.name}.{target.key[0]}')}"
            )

    # -- times -------------------------------------------------------------------------------------

    def choose_times(self, times: Times) -> None:
        """Choose the column with the time of each table's rows."""
        for name, column in times.items():
            known = self._drafts[name].table.columns if name in self._drafts else {}
            if name not in self._drafts or (column is not None and column not in known):
                what = f"a column of {name!r} ({list(known)})" if known else "a table"
                raise ValueError(f"times must name {what}, got {column if known else name!r}"[:300])
        unclear = []
        for draft in self._drafts.values():
            if draft.name in times:
                draft.time = times[draft.name] or ""
                continue
            declared = draft.table.time_columns
            found = list(declared)
            if not found and self._infer:
                columns = draft.table.columns
                found = [c for c in draft.own_columns() if family(columns[c]) == "time"]
            if len(found) > 1:
                unclear.append(
                    f"both {found[0]!r} and {found[1]!r} could be the time of "
                    f"{printable(draft.name)}; pass times={{{draft.name!r}: {found[0]!r}}} to "
                    f"choose, times={{{draft.name!r}: None}} to take neither"
                )
            elif found:
                draft.time = found[0]
                if not declared:
                    self._notes.append(
                        f"inferred: {printable(f'{draft.name}.{found[0]}')} is the time of "
                        f"{printable(draft.name)}"
                    )
        if unclear:
            raise ValueError(f"times: {'. '.join(unclear)}")

    # -- the schema --------------------------------------------------------------------------------

    def schema(self, missing: Filling, words: int | None, fields: Fields) -> Schema:
        """The vertex types with their fields, and the edge types."""
        for name in fields:
            if name not in self._drafts:
                raise ValueError(f"fields must name tables of {list(self._drafts)}, got {name!r}")
        pairs = [draft for draft in self._drafts.values() if self._is_pairs(draft)]
        vertices = [draft for draft in self._drafts.values() if draft not in pairs]
        for draft in pairs:
            if not draft.key:
                draft.table = self._in_order(draft, tuple(draft.table.columns))
        looks = {}
        rows = {}
        for draft in vertices:
            wanted = self._wanted(draft, fields)
            rows[draft.name], looks[draft.name] = look_at(self._connection, draft.table, wanted)
        unit = graph_unit([look for of_table in looks.values() for look in of_table])
        rule = Rule(self._connection, unit, missing, words=words)
        found = []
        for draft in vertices:
            made = [rule.column(k, is_time=k.name == draft.time) for k in looks[draft.name]]
            columns = _named_apart(made, has_key=len(draft.key) == 1)
            found.append(
                VertexTable(
                    draft.name,
                    draft.table.relation,
                    rows[draft.name],
                    draft.key,
                    draft.time,
                    columns,
                )
            )
        return Schema(tuple(found), tuple(self._links(pairs)), notes=tuple(self._notes))

    def _wanted(self, draft: _Draft, fields: Fields) -> list[str]:
        own = draft.own_columns()
        if draft.time and draft.time not in own:
            own.append(draft.time)
        if draft.name not in fields:
            return own
        unknown = [name for name in fields[draft.name] if name not in draft.table.columns]
        if unknown:
            raise ValueError(
                f"fields must name columns of {printable(draft.name)} "
                f"({list(draft.table.columns)}), got {unknown[0]!r}"[:300]
            )
        wanted = {*fields[draft.name], draft.time}
        return [name for name in draft.table.columns if name in wanted]

    def _is_pairs(self, draft: _Draft) -> bool:
        """Whether a table has exactly two foreign keys, and no table refers to it."""
        is_named = any(
            link.table == draft.name for other in self._drafts.values() for link in other.links
        )
        # Other columns, such as a key, make the row an entity rather than a pair.
        rest = set(draft.table.columns) - draft.link_columns
        return len(draft.links) == 2 and not rest and not is_named and not draft.time

    def _in_order(self, draft: _Draft, names: tuple[str, ...]) -> Table:
        """The table with its rows in vertex order: those of databases are sorted by key."""
        table = draft.table
        if table.is_ordered or not names:
            return table
        columns = [draft.column(name) for name in names]
        if is_ascending(self._connection, table.relation, columns, strictly=False):
            return table
        relation = f"pagraph sorted {table.relation}"
        order = ", ".join(map(quoted, names))
        self._connection.run(
            f"create table {quoted(relation)} as select * from {quoted(table.relation)} "
            f"order by {order}"
        )
        return replace(table, relation=relation)

    def _links(self, pairs: list[_Draft]) -> Iterable[Link]:
        used: set[EdgeType] = set()
        for draft in self._drafts.values():
            if draft in pairs:
                source, target = (End(k.table, k.columns, k.to) for k in draft.links)
                yield self._link(draft, draft.name, source, target, used)
                continue
            for link in draft.links:
                target = End(link.table, link.columns, link.to)
                yield self._link(draft, "_".join(link.columns), End(draft.name), target, used)

    def _link(
        self, draft: _Draft, name: str, source: End, target: End, used: set[EdgeType]
    ) -> Link:
        # Two keys may get the same name, such as `a_b`, and `a` with `b`.
        number = 1
        stem = name
        while True:
            edge_type = (source.table, name, target.table)
            reverse = (target.table, f"rev_{name}", source.table)
            if not {edge_type, reverse} & used:
                break
            number += 1
            name = f"{stem}_{number}"
        used |= {edge_type, reverse}
        present = [
            f"{as_key(draft.column(c))} is not null" for c in (*source.columns, *target.columns)
        ]
        ((count,),) = self._connection.run(
            f"select count(*) from {quoted(draft.table.relation)} where {' and '.join(present)}"
        )
        return Link(edge_type, reverse, draft.name, draft.table.relation, source, target, count)


def _named_apart(columns: Sequence[Column], *, has_key: bool) -> tuple[Column, ...]:
    """The columns, renaming fields that clash with the time or the key."""
    is_timed = any(c.field == TIME and c.name != TIME for c in columns)
    names = {c.name for c in columns}
    found = []
    for column in columns:
        is_taken = (column.field == column.name == TIME and is_timed) or (
            column.field == ORIGINAL_ID and has_key
        )
        while is_taken and column.field in names | {TIME, ORIGINAL_ID}:
            column = replace(column, field=f"{column.field}_")
        found.append(column)
    return tuple(found)
