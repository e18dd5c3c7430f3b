"""Numbering of vertices that edges name by words, in byte order and bounded memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from ...errors import FormatError
from ...system.arrays import Array
from ...system.checks import StrPath
from ...system.units import bytes_text
from .connection import Connection


class NumberedWords:
    """Rows of two words each, as edges between numbers.

    The rows are the connection's table ``rows`` with the words ``s`` and ``t``. DuckDB keeps their
    order, and spills them to disk if needed.

    Attributes:
        count: Number of rows.
        num_ids: Number of distinct words.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.count = self._one("SELECT count(*) FROM rows")
        # Texts are compared by bytes, which in UTF-8 is the order of code points.
        connection.run(
            "CREATE TABLE ids AS SELECT id, row_number() OVER (ORDER BY id) - 1 AS n FROM "
            "(SELECT s AS id FROM rows UNION SELECT t FROM rows)"
        )
        self.num_ids = self._one("SELECT count(*) FROM ids")

    def numbers(self, end: str) -> Iterator[list[Array]]:
        """Yield rows and the numbers of their words ``s`` or ``t``, in any order."""
        # One end at a time, so that one table of words must fit into memory rather than two.
        return self._connection.batches(f"SELECT rows.rowid, n FROM rows JOIN ids ON id = {end}")

    def first_comes_again(self) -> bool:
        """Whether an id of the first row is also in another row."""
        first = "(SELECT unnest([s, t]) FROM rows WHERE rowid = 0)"
        found = self._one(
            f"SELECT count(*) FROM (SELECT 1 FROM rows WHERE rowid > 0 AND "
            f"(s IN {first} OR t IN {first}) LIMIT 1)"
        )
        return found > 0

    def words(self, path: StrPath, room: int) -> Tensor:
        """The words in order, as zero-padded rows of bytes, shape ``(num_ids, longest)``.

        Raises:
            FormatError: Padded to the longest, the words exceed ``room``.
        """
        longest = max(self._one("SELECT coalesce(max(strlen(id)), 0) FROM ids"), 1)
        if self.num_ids * longest > room:
            raise FormatError(
                f"{path} must have ids that take at most {bytes_text(room)}, "
                f"{self.num_ids:,} of {longest:,} bytes take more"
            )
        query = "SELECT id FROM ids ORDER BY n"
        return padded_words(self._connection, query, self.num_ids, longest)

    def _one(self, query: str) -> int:
        return int(self._connection.run(query)[0][0])


def padded_words(connection: Connection, query: str, count: int, longest: int) -> Tensor:
    """The words of a query as zero-padded rows of bytes, shape ``(count, longest)``."""
    rows = np.zeros((count, longest), dtype=np.uint8)
    begin = 0
    for block in connection.padded(query, longest):
        rows[begin : begin + len(block)] = block
        begin += len(block)
    return torch.from_numpy(rows)
