"""The command as a whole: help, one line for every error, exit codes, pipes and Ctrl-C."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import click
import pytest
from click.testing import CliRunner
from fresh_processes import HANGING, forked_python

import pagraph
from pagraph import FormatError, MissingDependencyError, PipelineError
from pagraph.cli import VERBS, main

COMMAND = [sys.executable, "-m", "pagraph"]


def run(*args, **options):
    return subprocess.run(
        [*COMMAND, *map(str, args)], capture_output=True, text=True, timeout=HANGING, **options
    )


@pytest.fixture
def failing(monkeypatch):
    """A verb that raises what the test puts in."""

    def install(error):
        @click.command()
        def command():
            raise error

        monkeypatch.setitem(VERBS, "fail", ("fail", "Fails."))
        module = type(sys)("pagraph.cli.fail")
        module.command = command
        monkeypatch.setitem(sys.modules, "pagraph.cli.fail", module)
        return CliRunner().invoke(main, ["fail"])

    return install


class TestHelp:
    def test_lists_every_verb(self):
        done = run("--help")
        assert done.returncode == 0
        for verb, (_, text) in VERBS.items():
            assert f"  {verb} " in done.stdout
            assert text in done.stdout

    def test_is_quick_because_no_verb_is_loaded(self):
        code = (
            "import sys\nfrom pagraph.cli import main\n"
            "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
            "print([m for m in ('torch', 'numpy', 'rich', 'numba', 'dgl') if m in sys.modules], "
            "file=sys.stderr)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=HANGING
        )
        assert done.stderr.strip() == "[]"

    @pytest.mark.parametrize("verb", VERBS)
    def test_of_every_verb(self, verb):
        done = CliRunner().invoke(main, [verb, "--help"])
        assert done.exit_code == 0
        assert done.stdout.startswith(f"Usage: main {verb}")

    def test_version(self):
        assert run("--version").stdout == f"pagraph, version {pagraph.__version__}\n"

    def test_nothing_at_all(self):
        done = run()
        assert "Usage: pagraph" in done.stdout + done.stderr
        assert "Error" not in done.stderr


class TestBadInput:
    @pytest.mark.every
    @pytest.mark.parametrize(
        ("args", "message"),
        [
            (["nope"], "No such command 'nope'"),
            (["inof"], "No such command 'inof'; did you mean 'info'?"),
            (["--nope"], "No such option"),
            (["info"], "Missing argument 'DIR'"),
            (["generate", "rmat", "x", "--scale", "big"], "'big' is not a valid integer"),
            (["info", "/nowhere"], "folder must exist, got '/nowhere'"),
        ],
    )
    def test_one_line_and_exit_2(self, args, message):
        done = run(*args)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("Error: ")
        assert message in done.stderr
        assert done.stderr.count("\n") == 1

    @pytest.mark.parametrize(
        ("error", "code"),
        [
            (ValueError("x must be 1, got 2"), 2),
            (TypeError("x must be 1, got 2"), 2),
            (IndexError("x must be 1, got 2"), 2),
            (FormatError("x must be 1, got 2"), 2),
            (FileExistsError("x must be 1, got 2"), 2),
            (FileNotFoundError("x must be 1, got 2"), 2),
            (IsADirectoryError("x must be 1, got 2"), 2),
            (NotADirectoryError("x must be 1, got 2"), 2),
            (click.ClickException("x must be 1, got 2"), 2),
            (click.UsageError("x must be 1, got 2"), 2),
            (PipelineError("x must be 1, got 2"), 1),
            (MissingDependencyError("x must be 1, got 2"), 1),
            (PermissionError("x must be 1, got 2"), 1),
            (OSError("x must be 1, got 2"), 1),
        ],
    )
    def test_exit_codes(self, failing, error, code):
        done = failing(error)
        assert (done.exit_code, done.stderr) == (code, "Error: x must be 1, got 2\n")
        assert done.stdout == ""

    @pytest.mark.parametrize(
        "error", [RuntimeError("boom"), KeyError("boom"), ZeroDivisionError("boom")]
    )
    def test_bugs_are_named_and_say_how_to_see_more(self, failing, error):
        done = failing(error)
        assert done.exit_code == 1
        assert done.stderr.startswith(f"Error: {type(error).__name__}: ")
        assert "PAGRAPH_TRACEBACK=1" in done.stderr
        assert done.stderr.count("\n") == 1

    def test_long_messages_become_one_line(self, failing):
        assert failing(ValueError("a\n  b\n\nc")).stderr == "Error: a b c\n"

    def test_control_characters_are_escaped(self, failing):
        """A name of a file may hold some, and drive the terminal."""
        result = failing(FormatError("b\x1b[31m\x9b\udcff\u202eé.npy must\nbe whole"))
        assert result.stderr == "Error: b\\x1b[31m\\x9b\\udcff\\u202eé.npy must be whole\n"

    def test_messages_that_are_empty(self, failing):
        assert failing(ValueError()).stderr == "Error: ValueError\n"

    def test_traceback_on_request(self, failing, monkeypatch):
        monkeypatch.setenv("PAGRAPH_TRACEBACK", "1")
        done = failing(ValueError("x must be 1, got 2"))
        assert done.exit_code == 2
        assert "Traceback (most recent call last)" in done.stderr
        assert done.stderr.endswith("Error: x must be 1, got 2\n")


@pytest.mark.attack
def test_ctrl_c_says_so_and_leaves_nothing(tmp_path):
    code = """
        import sys
        from pagraph.cli import generate, main
        import pagraph.datasets.random_graphs

        def begin(*args, **kwargs):
            print("begun", flush=True)  # all is imported
            return check_absent(*args, **kwargs)

        check_absent, generate.check_absent = generate.check_absent, begin
        main(sys.argv[1:], prog_name="pagraph")
    """
    arguments = ["generate", "rmat", str(tmp_path / "g"), "--scale", "20", "--edges", "2000000000"]
    command = [forked_python(), "-c", textwrap.dedent(code), *arguments]
    limits = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=limits, **pipes) as process:
        assert process.stdout.readline() == "begun\n"
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=HANGING)
    assert process.returncode == 130
    assert errors.strip() == "Error: interrupted"
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_while_imported_code_is_executed_from_text(tmp_path):
    """As dataclasses and namedtuple do; CPython remembers it as unhandled (run_eval_code_obj)."""
    (tmp_path / "verb.py").write_text(
        "from pagraph.cli import main, generate\n"
        "def begin(*args, **kwargs):\n"
        "    exec('raise KeyboardInterrupt')\n"
        "generate.check_absent = begin\n"
        "main(['generate', 'rmat', 'g', '--scale', '4'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "verb"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=HANGING,
    )
    assert done.stderr.strip() == "Error: interrupted"
    assert done.returncode == 130


@pytest.mark.attack
def test_a_reader_that_goes_away_is_no_error(tmp_path):
    assert run("generate", "rmat", tmp_path / "g", "--scale", "4").returncode == 0
    command = " ".join(COMMAND)
    done = subprocess.run(
        f"{command} info {tmp_path / 'g'} | head -c 1",
        shell=True,
        capture_output=True,
        text=True,
        timeout=HANGING,
    )
    assert done.stderr == ""


def test_modules_of_all_verbs_have_a_command():
    for verb in VERBS:
        command = main.get_command(click.Context(main), verb)
        assert isinstance(command, click.Command)
        assert command.name == verb
        assert command.help
