"""``pagraph completion``: print the script that lets a shell complete verbs, options and paths."""

from __future__ import annotations

from typing import Any

import click
from click.shell_completion import get_completion_class

COMPLETE = "_PAGRAPH_COMPLETE"
"""The variable by which the script asks for completions."""


@click.command(name="completion")
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print the script with which SHELL completes pagraph's commands, options and paths.

    For this session: eval "$(pagraph completion bash)". For every session, add that line to
    ~/.bashrc, or ~/.zshrc with zsh. With fish, write the script to
    ~/.config/fish/completions/pagraph.fish.
    """
    complete: Any = get_completion_class(shell)
    click.echo(complete(context.find_root().command, {}, "pagraph", COMPLETE).source())
