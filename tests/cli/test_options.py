"""Options of commands derived from dataclasses and functions."""

from dataclasses import dataclass, field
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from pagraph.cli.options import as_typed, build, options_of


@dataclass(frozen=True)
class Settings:
    num_parts: int = field(metadata={"help": "Number of parts.", "flags": ("-k", "--parts")})
    fanout: tuple[int, ...] = field(default=(10, 5), metadata={"help": "Neighbours."})
    lr: float | None = field(default=None, metadata={"help": "Rate."})
    seed: int = field(default=0, metadata={"help": "Seed."})
    mode: str = field(default="a", metadata={"help": "Mode.", "choices": ("a", "b")})
    simple: bool = field(default=False, metadata={"help": "Simple."})
    fields: tuple[str, ...] | None = field(default=None, metadata={"help": "Names."})
    file: Path | None = field(default=None, metadata={"help": "File."})
    batch_size: int = 7

    def __post_init__(self):
        if self.num_parts < 1:
            raise ValueError(f"num_parts must be at least 1, got {self.num_parts}")
        if self.seed < 0:
            raise TypeError(f"seed must be at least 0, got {self.seed}")
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {self.batch_size}")


def generate(
    scale: int, shares: tuple[float, float] = (0.5, 0.5), *, width: int = 0, progress: object = None
) -> None:
    pass


@click.command()
@options_of(Settings)
@options_of(
    generate,
    scale={"help": "Scale.", "default": 16},
    shares="Shares.",
    width={"help": "W.", "metavar": "N"},
)
def command(**settings):
    click.echo(build(Settings, settings))
    click.echo([settings[name] for name in ("scale", "shares", "width")])


def run(*arguments):
    return CliRunner().invoke(command, list(map(str, arguments)))


def test_types_defaults_and_choices():
    lines = [" ".join(line.split()) for line in run("--help").stdout.splitlines()]
    assert lines[lines.index("Options:") + 1 :] == [
        "-k, --parts INTEGER Number of parts. [required]",
        "--fanout TEXT Neighbours. [default: 10,5]",
        "--lr FLOAT Rate.",
        "--seed INTEGER Seed. [default: 0]",
        "--mode [a|b] Mode. [default: a]",
        "--simple Simple.",
        "--fields TEXT Names.",
        "--file PATH File.",
        "--scale INTEGER Scale. [default: 16]",
        "--shares TEXT Shares. [default: 0.5,0.5]",
        "--width N W. [default: 0]",
        "--help Show this message and exit.",
    ]


def test_only_some_and_another_help():
    @click.command()
    @options_of(Settings, ("mode", "seed"), mode="Another help.")
    def chosen(**settings):
        click.echo(settings)

    lines = [
        " ".join(line.split())
        for line in CliRunner().invoke(chosen, ["--help"]).stdout.splitlines()
    ]
    assert lines[lines.index("Options:") + 1 : -1] == [
        "--seed INTEGER Seed. [default: 0]",
        "--mode [a|b] Another help. [default: a]",
    ]


def test_defaults_are_those_of_the_dataclass():
    assert run("-k", 2).stdout == f"{Settings(2)}\n[16, (0.5, 0.5), 0]\n"


def test_values_have_the_fields_types():
    given = [
        "--fanout",
        "3,-1",
        "--lr",
        1,
        "--seed",
        4,
        "--mode",
        "b",
        "--simple",
        "--fields",
        "x, y,",
        "--file",
        "f",
    ]
    want = Settings(1, (3, -1), 1.0, 4, "b", True, ("x", "y"), Path("f"))
    assert run("--parts", 1, *given, "--shares", "1,0").stdout == f"{want}\n[16, (1.0, 0.0), 0]\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Missing option '-k'"),
        (["-k", 1, "--fanout", "ten"], "fanout must be integers with commas between, got 'ten'"),
        (["-k", 1, "--fanout", ""], "fanout must be integers with commas between, got ''"),
        (["-k", 1, "--shares", "1"], "shares must be 2 numbers with commas between, got '1'"),
        (["-k", 1, "--mode", "c"], "'c' is not one of 'a', 'b'"),
    ],
)
def test_refused_by_the_command(arguments, message):
    assert message in run(*arguments).stderr


@click.command()
@options_of(Settings, simple={"help": "Simple.", "flags": ("--simple/--no-simple",)})
def typed(**settings):
    pass


@pytest.mark.parametrize(
    ("message", "want"),
    [
        ("num_parts must be at least 1, got 0", "--parts must be at least 1, got 0"),
        # No option.
        ("batch_size must be at least 1, got 0", "batch_size must be at least 1, got 0"),
        (
            "ids must be below seed=3, got 4; simple=True says so",
            "ids must be below --seed 3, got 4; --simple says so",
        ),
        ("simple=True or simple=False says which", "--simple or --no-simple says which"),
        ("a seed must be sown", "a seed must be sown"),
        ("fileseed=3", "fileseed=3"),
    ],
)
def test_messages_of_the_library_in_the_words_of_the_command_line(message, want):
    assert as_typed(message, typed) == want
