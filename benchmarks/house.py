"""How hard the library's code is to read: tokens a line, comments, long lines, circles of imports.

Run: ``python benchmarks/house.py`` (a second; needs nothing but Python); ``make lint`` does so too.
``--files N`` lists the N files with the most tokens a line. ``tests/test_house.py`` holds the
figures reached: they may fall, never rise. Work that adds an idea may raise the tokens and files
that are held, and says so in its commit. Both are counted for the loader and for what is around it.

A line of code is one with a token that is neither a comment nor of a docstring. A circle is one
however its modules import each other: at the top, in a function, or for types alone.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("pagraph", "partition", "datasets")
AROUND = ("train", "cli", "run", "profile", "report", "partition", "datasets")
"""Rooms around the loader; all others are the loader."""
LONG_LINE = 100
_LAYOUT = {
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


@dataclass
class FileFigures:
    """What is counted in one file."""

    path: Path
    tokens: int = 0
    lines: int = 0
    comments: int = 0
    long_lines: int = 0
    longest_line: int = 0
    ternaries: int = 0
    nested_ternaries: int = 0
    tuple_assignments: int = 0
    imports: set[str] = field(default_factory=set)


def source_files() -> list[Path]:
    """The library's files; the links of the checkout are not followed."""
    found = [path for room in ROOMS for path in _files_below(ROOT / room)]
    return sorted(found)


def _files_below(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.is_symlink():
            continue
        if path.is_dir():
            yield from _files_below(path)
        elif path.suffix == ".py":
            yield path


def measure(path: Path) -> FileFigures:
    """Count one file."""
    text = path.read_text()
    tree = ast.parse(text)
    figures = FileFigures(path)
    _count_tokens(text, _docstring_lines(tree), figures)
    _count_syntax(tree, figures)
    lengths = [len(line) for line in text.splitlines()]
    figures.longest_line = max(lengths, default=0)
    figures.long_lines = sum(length > LONG_LINE for length in lengths)
    return figures


def _docstring_lines(tree: ast.AST) -> set[int]:
    """Numbers of the lines of docstrings, also of those behind an attribute."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for statement in body:
            if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Constant):
                continue
            if isinstance(statement.value.value, str):
                lines.update(range(statement.lineno, (statement.end_lineno or 0) + 1))
    return lines


def _count_tokens(text: str, docstrings: set[int], figures: FileFigures) -> None:
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            # Marks for tools explain nothing.
            figures.comments += "type: ignore" not in token.string and "noqa" not in token.string
        elif token.type not in _LAYOUT and token.start[0] not in docstrings:
            figures.tokens += 1
            lines.update(range(token.start[0], token.end[0] + 1))
    figures.lines = len(lines)


def _count_syntax(tree: ast.AST, figures: FileFigures) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.IfExp):
            figures.ternaries += 1
            inner = (child for child in ast.walk(node) if child is not node)
            figures.nested_ternaries += any(isinstance(child, ast.IfExp) for child in inner)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
            figures.tuple_assignments += len(node.value.elts) > 1
        elif isinstance(node, ast.ImportFrom):
            figures.imports.update(_imported(figures.path, node))


def module_name(path: Path) -> str:
    """The name that a file is imported by."""
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    if parts[0] != "pagraph":
        parts.insert(0, "pagraph")
    if parts[-1] == "__init__":
        parts.pop()
    return ".".join(parts)


def _imported(path: Path, node: ast.ImportFrom) -> Iterator[str]:
    """Modules that a relative import may name, where a name may be a module's or what it
    defines."""
    if not node.level:
        return
    package = module_name(path).split(".")
    if path.name != "__init__.py":
        package.pop()
    package = package[: len(package) - node.level + 1]
    base = ".".join([*package, *filter(None, [node.module])])
    for alias in node.names:
        yield f"{base}.{alias.name}"
    if node.module:
        yield base


def circles(files: list[FileFigures]) -> list[list[str]]:
    """Groups of modules that import each other, whether on import, in a function, or for types
    alone."""
    known = {module_name(figures.path): figures for figures in files}
    arrows = {name: _targets(figures, known) - {name} for name, figures in known.items()}
    reached = {name: _reachable(name, arrows) for name in arrows}
    groups = []
    left = set(arrows)
    while left:
        name = min(left)
        group = {name} | {other for other in reached[name] if name in reached[other]}
        left -= group
        if len(group) > 1:
            groups.append(sorted(group))
    return groups


def _targets(figures: FileFigures, known: dict[str, FileFigures]) -> set[str]:
    """Modules that a file imports; a package only where nothing deeper was meant."""
    found = {name for name in figures.imports if name in known}
    return {name for name in found if known[name].path.name != "__init__.py"}


def _reachable(name: str, arrows: dict[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    waiting = [name]
    while waiting:
        for target in arrows[waiting.pop()] - seen:
            seen.add(target)
            waiting.append(target)
    return seen


def _is_around(path: Path) -> bool:
    return path.relative_to(ROOT).parts[path.is_relative_to(ROOT / "pagraph")] in AROUND


def summary(files: list[FileFigures]) -> dict[str, float]:
    """The figures of all files together."""
    around = [figures for figures in files if _is_around(figures.path)]
    tokens = sum(figures.tokens for figures in files)
    tokens_around = sum(figures.tokens for figures in around)
    lines = sum(figures.lines for figures in files)

    def per_thousand(name: str) -> float:
        return round(1000 * sum(getattr(figures, name) for figures in files) / lines, 1)

    return {
        "files": len(files),
        "files of the loader": len(files) - len(around),
        "files around it": len(around),
        "tokens": tokens,
        "tokens of the loader": tokens - tokens_around,
        "tokens around it": tokens_around,
        "lines": lines,
        "tokens a line": round(tokens / lines, 2),
        "comments a thousand lines": per_thousand("comments"),
        "ternaries a thousand lines": per_thousand("ternaries"),
        "tuple assignments a thousand lines": per_thousand("tuple_assignments"),
        "nested ternaries": sum(figures.nested_ternaries for figures in files),
        f"lines above {LONG_LINE}": sum(figures.long_lines for figures in files),
        "longest line": max(figures.longest_line for figures in files),
        "circles": len(circles(files)),
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--files", type=int, default=0, metavar="N", help="list the N densest files"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    files = [measure(path) for path in source_files()]
    figures = summary(files)
    if options.json:
        print(json.dumps(figures, indent=1))
        return
    for name, value in figures.items():
        print(f"{name:36} {value:>10,}")
    for group in circles(files):
        print("circle:", ", ".join(group))
    dense = sorted((f for f in files if f.lines > 60), key=lambda f: f.lines / f.tokens)
    for figures_of in dense[: options.files]:
        path = figures_of.path.relative_to(ROOT)
        print(
            f"{figures_of.tokens / figures_of.lines:5.1f} a line, {figures_of.tokens:6,} tokens  "
            f"{path}"
        )


if __name__ == "__main__":
    main()
