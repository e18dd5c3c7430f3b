"""MkDocs hook: appends every verb of the command line, as click knows it, to reference/cli.md."""

import html
import inspect
from collections.abc import Iterator
from typing import Any

import click
from mkdocs.structure.pages import Page

from pagraph.cli import main


def on_page_markdown(markdown: str, page: Page, **kwargs: Any) -> str:
    """Append the reference to its page."""
    if page.file.src_uri != "reference/cli.md":
        return markdown
    return "\n\n".join([markdown, *describe(main, click.Context(main, info_name="pagraph"))])


def describe(command: click.Command, context: click.Context) -> Iterator[str]:
    """Heading, usage, text, arguments and options of a command, then those of its sub-commands."""
    if context.parent:
        yield f"{'#' * (len(context.command_path.split()))} {context.command_path}"
    yield f"```text\n{context.command_path} {' '.join(command.collect_usage_pieces(context))}\n```"
    yield inspect.cleandoc(command.help or "").replace("\b\n", "")
    options = [
        parameter
        for parameter in command.params
        if isinstance(parameter, click.Option) and not parameter.hidden
    ]
    if options:
        records = [option.get_help_record(context) for option in options]
        rows = [f"| `{cell(names)}` | {cell(text)} |" for names, text in records]
        yield "\n".join(["| option | |", "|---|---|", *rows])
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            verb = command.get_command(context, name)
            yield from describe(verb, click.Context(verb, info_name=name, parent=context))


def cell(text: str) -> str:
    """The text as one cell of a table."""
    return html.escape(text, quote=False).replace("|", r"\|")
