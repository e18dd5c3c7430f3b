"""YAML files that describe data, bounded in size and expansion."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from ..errors import FormatError
from ..system.files import named_path, read_small
from ..system.units import one_line

# Descriptions are written by hand; parsing YAML takes many times its size in memory.
_SIZE_LIMIT = 2**20
_MOST_ENTRIES = 100_000  # each takes over a kilobyte while a description is read


def load_yaml(path: Path) -> dict[str, Any]:
    """Load the mapping in a YAML file; FormatError if it is not one, or too large when expanded.

    Merge keys (``<<``), which can expand without bound, and numbers of base 60 (``1:30``) are
    refused.
    """
    import yaml

    content = read_small(path, _SIZE_LIMIT)
    try:
        value = _loader(yaml)(content).get_single_data()
        size = _entries(value, {})
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise FormatError(f"{path} must be YAML: {one_line(error)}") from error
    if size > _MOST_ENTRIES:  # a few lines of *names can expand exponentially
        raise FormatError(
            f"{path} must have at most {_MOST_ENTRIES} entries, with those that it repeats by *name"
        )
    if not isinstance(value, dict):
        raise FormatError(f"{path} must hold a mapping, got {type(value).__name__}")
    return value


def _loader(yaml: Any) -> Any:
    """PyYAML's safe loader, without constructs that expand or take quadratic time."""

    class Loader(yaml.SafeLoader):
        """Counts entries before any is built."""

        entries = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            self.entries += 1
            if self.entries > _MOST_ENTRIES:
                raise yaml.composer.ComposerError(
                    None, None, f"it must have at most {_MOST_ENTRIES} entries"
                )
            return super().compose_node(parent, index)

        def flatten_mapping(self, node: Any) -> None:
            if any(key.tag == "tag:yaml.org,2002:merge" for key, _ in node.value):
                raise yaml.constructor.ConstructorError(
                    None, None, "merge keys (<<) are not read", node.start_mark
                )
            super().flatten_mapping(node)

        def construct_number(self, node: Any) -> Any:
            """A number of at most 64 bits."""
            text = self.construct_scalar(node)
            if ":" in text:  # base 60, parsed in quadratic time
                raise yaml.constructor.ConstructorError(
                    None, None, 'text with ":" must be quoted', node.start_mark
                )
            is_whole = node.tag.endswith(":int")
            value = self.construct_yaml_int(node) if is_whole else self.construct_yaml_float(node)
            if is_whole and not -(2**63) <= value < 2**63:
                raise yaml.constructor.ConstructorError(
                    None, None, "integers must fit into 64 bits", node.start_mark
                )
            return value

    for kind in ("int", "float"):
        Loader.add_constructor(f"tag:yaml.org,2002:{kind}", Loader.construct_number)
    return Loader


def _entries(value: Any, known: dict[int, float]) -> float:
    """Number of entries of a value, counting repeats; infinite if it contains itself."""
    if not isinstance(value, dict | list):
        return 1
    # Memoised, as *names of *names would take exponential time.
    if id(value) not in known:
        known[id(value)] = math.inf
        parts = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_entries(part, known) for part in parts)
    return known[id(value)]


def named_file(folder: Path, name: Any, where: str) -> Path:
    """The path of a file named in a description; FormatError unless it is inside ``folder``."""
    if not isinstance(name, str) or not name.isprintable():
        raise FormatError(f"{where} must name a file, got {name!r}"[:300])
    return named_path(folder, name, where)
