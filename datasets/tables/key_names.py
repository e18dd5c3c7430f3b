"""Naming conventions of primary and foreign keys."""

from __future__ import annotations

import re

# Generic names of keys, so that a reference must also name the table.
_GENERAL = ("id", "key", "uuid", "code", "no", "nr", "number", "pk", "name")


def words_of(name: str) -> tuple[str, ...]:
    """The words of a name, in lower case.

    >>> words_of("sellerUserId"), words_of("user_id")
    (('seller', 'user', 'id'), ('user', 'id'))
    """
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return tuple(re.findall(r"[^\W_]+", apart.lower()))


def _forms(table: str) -> list[tuple[str, ...]]:
    """The words of a table's name, unchanged, in the singular and in the plural."""
    words = words_of(table)
    if not words:
        return []
    last = words[-1]
    ends = {last, f"{last}s"}
    if last.endswith("ies"):
        ends.add(f"{last[:-3]}y")
    if last.endswith("es"):
        ends.add(last[:-2])
    if last.endswith("s"):
        ends.add(last[:-1])
    return [(*words[:-1], end) for end in sorted(ends)]


def may_be_key(column: str, table: str) -> int:
    """How well a name fits its table's key: 2 for ``id``, 1 for ``user_id`` in ``users``, or 0."""
    words = words_of(column)
    if words in (("id",), ("uuid",)):
        return 2
    return int(words in [(*form, general) for form in _forms(table) for general in ("id", "uuid")])


def may_refer(column: str, table: str, key: str) -> int:
    """Number of words in a column's name that refer to ``table`` and its ``key``, or 0.

    >>> may_refer("seller_user_id", "users", "id"), may_refer("age", "users", "id")
    (2, 0)
    """
    words = words_of(column)
    own = words_of(key)
    names = [(*form, *own) for form in _forms(table)]
    if own and own[-1] not in own[:-1] and own not in [(word,) for word in _GENERAL]:
        names.append(own)
    return max((len(name) for name in names if words[-len(name) :] == name), default=0)
