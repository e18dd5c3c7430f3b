"""``pagraph completion``: the script by which a shell completes verbs, options and paths."""

from __future__ import annotations

from typing import Any

import click
from click.shell_completion import get_completion_class

COMPLETE = "_PAGRAPH_COMPLETE"
"""The variable by which the script asks for what may follow."""


@click.command(name="completion")
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print the script that lets SHELL complete verbs, options and paths of pagraph.

    To complete in this session: eval "$(pagraph completion bash)". To do so in each, add that line
    to ~/.bashrc, or ~/.zshrc with zsh; with fish, write the script to
    ~/.config/fish/completions/pagraph.fish.
    """
    complete: Any = get_completion_class(shell)
    click.echo(complete(context.find_root().command, {}, "pagraph", COMPLETE).source())
