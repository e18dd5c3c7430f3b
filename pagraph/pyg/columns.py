"""Vertex fields as columns of PyTorch Frame's ``TensorFrame``, with their statistics.

PyTorch Frame makes frames from DataFrames. A graph has parsed its columns already, and they may lie
in mapped files.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import MissingDependencyError
from ..graph.fields import FieldNote, Fields, FrameColumn, materialized
from ..system.arrays import Array
from ..system.moments import Moments
from .frames import Y, dense_parts, part_name

# Kept out of the frame: no inputs, or inputs that PyG's models read directly.
_BESIDE = ("feat", "label", "original_id", "x", "y")
# Kept in both: samplers read the raw times, models the calendar's numbers.
_BOTH = ("time",)

_MISSING_TIME = torch.iinfo(torch.int64).min
"""NumPy's NaT."""
_UNITS = {"seconds": "M8[s]", "microseconds": "M8[us]", "nanoseconds": "M8[ns]"}
_CONSTANT = "__const__"
"""RelBench's name of the constant column of a table without columns."""


def import_frame() -> ModuleType:
    """The package ``torch_frame``.

    Raises:
        MissingDependencyError: It is not installed.
    """
    try:
        import torch_frame
        import torch_frame.data.stats
    except ModuleNotFoundError as error:
        if error.name != "torch_frame":
            raise
        raise MissingDependencyError(
            "frames=True needs PyTorch Frame, which is not installed: pip install pytorch-frame"
        ) from error
    package: ModuleType = torch_frame
    return package


@dataclass(eq=False)
class FrameColumns:
    """The fields of one vertex type that become columns.

    Attributes:
        count: Number of rows.
        parts: Rows by name of the semantic type and of the column.
        stats: Statistics of each column, under PyTorch Frame's names.
        moved: Fields that are only in the frame.
    """

    count: int
    parts: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    stats: dict[str, dict[str, Any]] = field(default_factory=dict)
    moved: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, fields: Fields, count: int) -> FrameColumns:
        """The columns among the fields of ``count`` vertices, or else one constant column.

        Raises:
            ValueError: A field of codes has one without a word.
        """
        columns = cls(count)
        # Sorted, as PyTorch Frame sorts the columns of a part by name.
        for name in sorted(fields):
            note = fields.notes.get(name, FieldNote())
            if name not in _BESIDE and not name.endswith("_mask") and not note.frame:
                columns._add(name, fields[name], note)
        if not columns.parts:
            columns._put_numbers(_CONSTANT, torch.ones(count, device="cpu"))
        return columns

    def frame(self) -> tuple[Any, dict[str, dict[Any, Any]]]:
        """The ``TensorFrame``, and the statistics of each column by ``StatType``."""
        package = import_frame()
        features: dict[Any, Any] = {}
        names: dict[Any, list[str]] = {}
        for part, columns in self.parts.items():
            kind = package.stype(part)
            names[kind] = list(columns)
            features[kind] = self._together(package, part, list(columns.values()))
        kinds = package.data.stats.StatType
        stats = {}
        for name, found in self.stats.items():
            stats[name] = {kinds(kind): value for kind, value in found.items()}
        return package.TensorFrame(features, names), stats

    def _together(self, package: ModuleType, part: str, columns: list[Tensor]) -> Any:
        """The columns of a part, stacked; a single column is not copied."""
        first, *others = columns
        if part != "embedding":
            return torch.stack(columns, dim=1) if others else first.unsqueeze(1)
        rows = torch.cat(columns, dim=1) if others else first
        return _embeddings(package, rows, [column.shape[1] for column in columns])

    def _add(self, name: str, values: Any, note: FieldNote) -> None:
        """Add a field as a column, if PyTorch Frame has a semantic type for it."""
        is_real = not values.dtype.is_complex
        is_number = values.dim() == 1 and is_real
        if values.dim() == 2 and values.shape[1] and is_real:
            self._put_embedding(name, materialized(values))
        elif is_number and note.unit:
            self._put_times(name, materialized(values), note.unit)
        elif not is_number or name in _BOTH:
            return
        elif note.words:
            self._put_codes(name, materialized(values), note.words)
        elif values.dtype == torch.bool:
            self._put_codes(name, materialized(values).long(), (False, True))
        else:
            self._put_numbers(name, materialized(values))
        if name not in _BOTH:
            self.moved.add(name)

    def _put(self, part: str, name: str, rows: Tensor, stats: dict[str, Any]) -> None:
        self.parts.setdefault(part, {})[name] = rows
        self.stats[name] = stats

    def _put_embedding(self, name: str, values: Tensor) -> None:
        rows = values.to(torch.float32)
        self._put("embedding", name, rows, {"EMB_DIM": rows.shape[1]})

    def _put_numbers(self, name: str, values: Tensor) -> None:
        exact = values.to(torch.float64).numpy()
        known = exact[np.isfinite(exact)]
        mean = deviation = float("nan")
        quantiles = [float("nan")] * 5
        if len(known):
            # From the integers themselves: floats may round away what they differ by.
            rows = exact if values.is_floating_point() else values.numpy()
            moments = Moments.of(lambda: [rows.reshape(-1, 1)])
            mean = float(moments.mean[0])
            deviation = float(moments.deviation[0])
            quantiles = np.quantile(known, [0, 0.25, 0.5, 0.75, 1]).tolist()
        stats = {"MEAN": mean, "STD": deviation, "QUANTILES": quantiles}
        self._put("numerical", name, values.to(torch.float32), stats)

    def _put_codes(self, name: str, codes: Tensor, words: tuple[Any, ...]) -> None:
        """Add codes ordered by frequency, on which PyTorch Frame's encoders rely (0: most)."""
        known = codes[codes >= 0]
        largest = int(known.max()) if len(known) else -1
        if largest >= len(words):
            raise ValueError(
                f"field {name!r} must hold codes of its {len(words)} words, got {largest}"
            )
        counts = torch.bincount(known, minlength=len(words))
        order = counts.argsort(descending=True, stable=True)
        # Code -1 (a missing word, there too) indexes the last place.
        places = torch.full((len(words) + 1,), -1, device="cpu")
        places[order] = torch.arange(len(words), device="cpu")
        rows = places[codes.clamp(min=-1)]
        listed = [words[code] for code in order.tolist()]
        stats = {"COUNT": (listed, counts[order].tolist())}
        self._put("categorical", name, rows, stats)

    def _put_times(self, name: str, times: Tensor, unit: str) -> None:
        self._put("timestamp", name, calendar(times, unit), _stats_of_times(times, unit))


def calendar(times: Tensor, unit: str) -> Tensor:
    """The calendar of times: year, month, day, weekday, hour, minute and second.

    All but the year count from 0.

    Args:
        times: Since 1970, int64. NumPy's NaT is a missing time and becomes -1 throughout.
        unit: "seconds", "microseconds" or "nanoseconds".

    Returns:
        Shape ``(count, 7)``, int64.

    >>> calendar(torch.tensor([86_399]), "seconds").tolist()
    [[1970, 0, 0, 3, 23, 59, 59]]
    """
    numbers = times.to(torch.int64).numpy()
    moments = numbers.view(_UNITS[unit])
    days = moments.astype("M8[D]")
    months = moments.astype("M8[M]")
    seconds = _of_day(moments, days)
    columns = [
        moments.astype("M8[Y]").astype(np.int64) + 1970,
        months.astype(np.int64) % 12,
        (days - months.astype("M8[D]")).astype(np.int64),
        # 1970 began on a Thursday.
        (days.astype(np.int64) + 3) % 7,
        seconds // 3600,
        seconds // 60 % 60,
        seconds % 60,
    ]
    rows = np.stack(columns, axis=1)
    rows[numbers == _MISSING_TIME] = -1
    return torch.from_numpy(rows)


def _of_day(moments: Array, days: Array) -> Array:
    """Whole seconds since midnight."""
    seconds: Array = (moments.astype("M8[s]") - days.astype("M8[s]")).astype(np.int64)
    return seconds


def _stats_of_times(times: Tensor, unit: str) -> dict[str, Any]:
    """The range of years, and the calendar of the first, last and median time."""
    known = times[times != _MISSING_TIME].to(torch.int64).sort().values
    # First, median and last; -1 without any.
    picked = torch.full((3, 7), -1, device="cpu")
    if len(known):
        picked = calendar(known[[0, len(known) // 2, -1]], unit)
    return {
        "YEAR_RANGE": [int(picked[0, 0]), int(picked[2, 0])],
        "NEWEST_TIME": picked[2],
        "OLDEST_TIME": picked[0],
        "MEDIAN_TIME": picked[1],
    }


def parts_of(frame: Any, stats: Any) -> tuple[dict[str, tuple[Tensor, FieldNote]], list[str]]:
    """The dense parts of a frame as fields, by semantic type, and the names of all other parts.

    Args:
        frame: A ``TensorFrame``.
        stats: Statistics of its columns by ``StatType``, if known.
    """
    known = stats if isinstance(stats, dict) else {}
    parts = {}
    for part, rows in dense_parts(frame):
        names = [Y]
        offset = None
        if part != Y:
            names = frame.col_names_dict[part]
            offset = getattr(frame.feat_dict[part], "offset", None)
        # Only embeddings have columns of several widths.
        widths = [1] * len(names) if offset is None else offset.diff().tolist()
        columns = []
        for name, width in zip(names, widths, strict=True):
            columns.append(FrameColumn(name, width, _as_json(known.get(name, {}))))
        parts[part_name(part)] = rows, FieldNote(frame=tuple(columns))
    left = [part_name(part) for part in frame.feat_dict if part_name(part) not in parts]
    return parts, left


def frames_of(fields: Fields) -> dict[str, tuple[Any, dict[str, dict[Any, Any]]]]:
    """The frames that are stored in vertices' fields, with statistics, by attribute.

    Empty if PyTorch Frame is not installed.

    Raises:
        ValueError: A part's columns do not match its rows, or PyTorch Frame lacks the semantic
            type.
    """
    found: dict[str, dict[str, str]] = {}
    for field_name in fields:
        attribute, _, part = field_name.rpartition(".")
        if part and fields.notes.get(field_name, FieldNote()).frame:
            found.setdefault(attribute, {})[part] = field_name
    if not found:
        return {}
    try:
        package = import_frame()
    except MissingDependencyError:
        return {}
    made = {}
    for attribute, parts in found.items():
        made[attribute] = _frame_of_parts(package, fields, parts)
    return made


def _frame_of_parts(
    package: ModuleType, fields: Fields, parts: dict[str, str]
) -> tuple[Any, dict[str, dict[Any, Any]]]:
    """A frame over the fields that are its parts, without a copy, and its statistics."""
    features: dict[Any, Any] = {}
    names: dict[Any, list[str]] = {}
    stats = {}
    target = None
    for part, field_name in parts.items():
        rows = materialized(fields[field_name])
        columns = fields.notes[field_name].frame
        widths = [column.width for column in columns]
        if part == Y:
            target = rows
            continue
        # The field may have been replaced while its note was kept.
        if rows.dim() < 2 or sum(widths) != rows.shape[1]:
            rule = f"{sum(widths)} columns, as its frame has"
            raise ValueError(f"field {field_name!r} must have {rule}, got {list(rows.shape)}")
        kind = package.stype(part)
        names[kind] = [column.name for column in columns]
        features[kind] = rows
        if part == "embedding":
            features[kind] = _embeddings(package, rows, widths)
        for column in columns:
            stats[column.name] = _from_json(package, column.stats)
    return package.TensorFrame(features, names, target), stats


def _embeddings(package: ModuleType, rows: Tensor, widths: list[int]) -> Any:
    """Columns of embeddings, which follow one another in ``rows``."""
    offset = torch.from_numpy(np.cumsum([0, *widths]))
    return package.data.MultiEmbeddingTensor(len(rows), len(widths), rows, offset)


def _as_json(stats: Any) -> dict[str, Any]:
    """Statistics of a column by name, in JSON's types."""
    return {getattr(kind, "value", str(kind)): _plain(value) for kind, value in stats.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor | np.ndarray):
        value = value.tolist()
    if isinstance(value, np.generic):
        value = value.item()
    # Categories may have any type; types that JSON lacks become text.
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not np.isfinite(value):
        return None
    is_json = value is None or isinstance(value, bool | int | float | str)
    return value if is_json else str(value)


def _from_json(package: ModuleType, stats: Any) -> dict[Any, Any]:
    """Statistics by ``StatType``, without those that the installed PyTorch Frame lacks."""
    kinds = {kind.value: kind for kind in package.data.stats.StatType}
    found = {}
    for name, value in stats.items():
        if name not in kinds:
            continue
        if name.endswith("_TIME"):
            value = torch.tensor(value, device="cpu")
        elif name.endswith("COUNT"):
            value = tuple(value)
        elif name in ("MEAN", "STD", "QUANTILES"):
            value = _with_nan(value)
        found[kinds[name]] = value
    return found


def _with_nan(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_nan(each) for each in value]
    return float("nan") if value is None else value
