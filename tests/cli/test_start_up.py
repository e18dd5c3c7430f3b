"""What the command line imports: no framework for help, mistakes and completion, little for small
work."""

import json
import shlex
import shutil
import subprocess
import sys

import click
import pytest
from fresh_processes import HANGING, answer

from pagraph.cli import VERBS, main
from pagraph.cli.partition import verify
from pagraph.options import names

HEAVY = ["torch", "numpy", "numba", "scipy", "pandas", "pyarrow", "networkx", "matplotlib", "dgl"]
CALLS = """
import contextlib, io, json, os, sys
from pagraph.cli import main

results = []
for arguments in json.loads(sys.argv[1]):
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            main(arguments, prog_name="pagraph")
    except SystemExit as end:
        loaded = [name for name in json.loads(sys.argv[2]) if name in sys.modules]
        results.append([end.code, said.getvalue(), loaded])
json.dump(results, open(os.environ["PAGRAPH_TEST_ANSWER"], "w"))
"""


def commands():
    """Every command with the words that lead to it, groups and ``partition verify`` included."""
    found = [([], main), (["partition", "verify"], verify)]
    for verb in VERBS:
        command = main.get_command(click.Context(main), verb)
        found.append(([verb], command))
        if isinstance(command, click.Group):
            found += [([verb, name], command.commands[name]) for name in sorted(command.commands)]
    return found


def called(calls, folder):
    """Exit code, text and heavy modules after each call of the command line, all in one process."""
    words = [[str(word) for word in call] for call in calls]
    code = [sys.executable, "-c", CALLS, json.dumps(words), json.dumps(HEAVY)]
    return answer(code, cwd=folder)


def test_help_imports_no_framework(tmp_path):
    calls = [[*words, "--help"] for words, _ in commands()]
    for call, (code, text, loaded) in zip(calls, called(calls, tmp_path), strict=True):
        assert (code, loaded) == (0, []), call
        assert text.startswith(f"Usage: pagraph{' ' if call[:-1] else ''}{' '.join(call[:-1])}")


def mistakes(words, command):
    """Calls of a command with one mistake each, which its options alone show."""
    yield [*words, "--no-such-option"]
    arguments = [p for p in command.params if isinstance(p, click.Argument)]
    if any(argument.required for argument in arguments):
        yield words
    given = [argument.name for argument in arguments]
    for option in command.params:
        if isinstance(option, click.Option) and isinstance(
            option.type, click.Choice | click.types.IntParamType | click.types.FloatParamType
        ):
            yield [*words, *given, option.opts[-1], "no-such-value"]


def test_mistakes_that_options_show_import_no_framework(tmp_path):
    calls = [call for words, command in commands() for call in mistakes(words, command)]
    assert len(calls) > 100
    for call, (code, text, loaded) in zip(calls, called(calls, tmp_path), strict=True):
        assert (code, loaded) == (2, []), call
        assert text.startswith("Error: ") and text.count("\n") == 1, text


# Those of the library's own checks. G is an empty folder, E an edge list, OUT nothing.
MISTAKES = {
    "profile G --policies degree,foo": "--policies must be among ['adaptive', ",
    "profile G --policies ideal:0": "--policies must be 'ideal:N' with N at least 1, got 'ideal:0'",
    "profile G --budgets 10%,few": "--budgets must be rows (1000), shares in [0, 1]",
    "train G --fanout x": "fanout must be integers with commas between, got 'x'",
    "train G --fanout 0": "--fanout must have at least 1 entry, each -1 or at least 1, got [0]",
    "train G --cache -1": "--cache must be",
    "train G --memory 3XB": "--memory must be",
    "train G --device gpu": "--device must be auto, cpu or cuda[:N], got 'gpu'",
    "train G --cache-policy best": "--cache-policy must be one of",
    "train G --cache-policy presample:0": "needs a whole number of epochs K of at least 1",
    "train G --cache-dtype int4": "--cache-dtype must be None, torch.float16",
    "train G --lookahead many": "--lookahead must be",
    "train G --num-workers -1": "--num-workers must be at least 0, got -1",
    "train G --lr nan": "--lr must be positive and finite, got nan",
    "train G --timeout 0": "--timeout must be positive and finite, got 0.0",
    "train G --json nowhere/x.json": "--json must be in a folder that exists",
    "train G --compare dgl --baseline dgl": "must not be given together",
    "train G --trace nowhere/x.json": "--trace must be",
    "train nowhere": "folder must exist, got 'nowhere'",
    "train G": "folder must hold manifest.json",
    "train E": "`pagraph import E OUT` converts it to a graph folder",
    "info nowhere": "folder must exist, got 'nowhere'",
    "info G --memory 10%": "--memory must be bytes",
    "export nowhere x.bin --form dgl": "folder must exist, got 'nowhere'",
    "export G x --form dgl": "OUT must end in .bin for the form dgl, got 'x'",
    "import nowhere OUT": "source must exist, got 'nowhere'",
    "import G OUT": "folder must hold manifest.json",
    "import E G": "OUT must not exist yet, got 'G'",
    "import E OUT --memory 0": "--memory must be",
    "import E OUT --split pub_": "--split must not be given for a source of the form 'edge list'",
    "import E OUT --train nowhere.txt": "file must exist, got 'nowhere.txt'",
    "import E OUT --time a --time b": "--time must be given once for this source, got 'a' and",
    "generate rmat OUT --scale 41": "--scale must be in [0, 40], got 41",
    "generate rmat OUT --probabilities 1,1,0,0": "--probabilities must be at least 0 and add up to",
    "generate rmat OUT --noise 2": "--noise must be in [0, ",
    "generate sbm OUT --fractions 0.9,0.9,0": "--fractions must add up to at most 1",
    "generate citation OUT --homophily 2": "--homophily must be in [0, 1], got 2.0",
    "generate shop OUT --persistence 0": "--persistence must be in [0.5, 1], got 0.0",
    "generate sbm G": "OUT must not exist yet, got 'G'",
    "partition G OUT -k 0": "--parts must be at least 1, got 0",
    "partition G OUT -k 2 --hops 999": "--hops must be from 1 to 253, got 999",
    "partition G OUT -k 2 --method best": "method must be one of auto, halo",
    "partition G OUT -k 2 --cache-policy best": "cache_policy must be one of",
    "partition G OUT -k 2 --fanout 0": "fanouts must be positive or -1",
    "partition G OUT -k 2 --batch-size 0": "--batch-size must be an integer of at least 1, got 0",
    "partition G OUT -k 2 --plot x.doc": "--plot must end in .png or .svg or .pdf, got 'x.doc'",
    "partition G G -k 2": "OUT must not exist yet, got 'G'",
    "partition nowhere OUT -k 2": "folder must exist, got 'nowhere'",
    "partition verify nowhere": "folder must exist, got 'nowhere'",
    "preaggregate nowhere OUT": "folder must exist, got 'nowhere'",
    "profile nowhere": "folder must exist, got 'nowhere'",
    "profile G --train-fraction 2": "--train-fraction must be in (0, 1], got 2.0",
    "profile G --trace x.json": "--trace needs --measure",
    "profile G --plot x.pdf": "--plot must end in .png or .svg, got 'x.pdf'",
    "reorder nowhere OUT": "folder must exist, got 'nowhere'",
    "reorder G OUT --memory 1": "--memory must",
    "doctor --disk nowhere": "Directory 'nowhere' does not exist",
    "inof": "did you mean 'info'?",
}


def test_mistakes_that_the_library_finds_import_no_framework(tmp_path):
    (tmp_path / "G").mkdir()
    (tmp_path / "E.txt").write_text("0 1\n")
    calls = [shlex.split(call.replace(" E", " E.txt")) for call in MISTAKES]
    results = called(calls, tmp_path)
    for call, wanted, (code, text, loaded) in zip(calls, MISTAKES.values(), results, strict=True):
        assert (code, loaded) == (2, []), (call, text)
        assert wanted.replace(" E ", " E.txt ") in text
        assert text.startswith("Error: ") and text.count("\n") == 1, text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["E.txt", "G"]


@pytest.mark.many
def test_little_work_imports_little(tmp_path):
    (tmp_path / "edges.txt").write_text("# two\n0 1\n1 2\n")
    calls = [["import", "edges.txt", "graph"], ["info", "graph"], ["--version"]]
    (code, text, loaded), info, version = called(calls, tmp_path)
    assert (code, loaded) == (0, ["torch", "numpy"])
    assert "3 vertices, 2 edges" in text
    assert info[0] == version[0] == 0
    (code, text, loaded), version = called(calls[1:], tmp_path)
    assert (code, loaded) == (0, ["numpy"]) and "max degree" in text
    assert version[2] == loaded


# What ends with the process is in a cycle, as much of torch's is.
ENDING = """
import importlib, sys
from pagraph.__main__ import program

class Cycle:
    def __init__(self):
        self.itself = self

    def __del__(self):
        print("finalized", flush=True)

cycle = Cycle()
try:
    if sys.argv[1] == "triton":
        importlib.import_module(sys.argv.pop(1))
    program()
except SystemExit:
    del cycle
"""


@pytest.mark.every
@pytest.mark.parametrize(
    ("call", "is_finalized"),
    [
        ("import edges.txt graph", False),
        ("triton import edges.txt graph", True),
        ("info edges.txt", True),
        ("run script.py", True),
    ],
)
def test_an_import_ends_without_a_look_for_garbage(call, is_finalized, tmp_path):
    if call.startswith("triton"):
        pytest.importorskip("triton")
    (tmp_path / "edges.txt").write_text("0 1\n")
    (tmp_path / "script.py").write_text("")
    done = subprocess.run(
        [sys.executable, "-c", ENDING, *call.split()],
        capture_output=True,
        text=True,
        timeout=HANGING,
        cwd=tmp_path,
    )
    assert ("finalized" in done.stdout) == is_finalized, done.stderr
    assert "leaked" not in done.stderr


def test_names_are_those_of_the_rooms_that_have_them():
    from pagraph.graph.row_form import FORMS
    from pagraph.partition import METHODS
    from pagraph.ranking import POLICIES

    assert tuple(sorted(POLICIES)) == names.POLICY_NAMES
    assert tuple(METHODS) == names.METHOD_NAMES
    assert tuple(FORMS) == names.FORM_NAMES


class TestCompletion:
    def complete(self, line, tmp_path):
        """What click offers for the last word of a line; it must import no framework."""
        words = line.split(" ")
        code = (
            "import sys\nfrom pagraph.cli import main\n"
            "try: main(prog_name='pagraph')\n"
            f"finally: assert not {{*sys.modules}} & {{*{HEAVY}}}"
        )
        environment = {
            "_PAGRAPH_COMPLETE": "bash_complete",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(words) - 1),
            "PYTHONPATH": ":".join(filter(None, sys.path)),
        }
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=HANGING,
        )
        assert done.stderr == ""
        return done.stdout.splitlines()

    @pytest.mark.many
    def test_verbs(self, tmp_path):
        offered = self.complete("pagraph ", tmp_path)
        assert offered == [f"plain,{verb}" for verb in VERBS]
        assert self.complete("pagraph pre", tmp_path) == ["plain,preaggregate"]
        assert self.complete("pagraph inof ", tmp_path) == offered  # and no error

    @pytest.mark.every
    @pytest.mark.parametrize(
        ("line", "offered"),
        [
            ("pagraph generate ", ["plain,citation", "plain,rmat", "plain,sbm", "plain,shop"]),
            ("pagraph train G --cache-d", ["plain,--cache-dtype"]),
            ("pagraph train G --model g", ["plain,gcn", "plain,gat"]),
            ("pagraph generate rmat G --edge-", ["plain,--edge-factor"]),
            ("pagraph partition ver", ["dir,ver", "plain,verify"]),
            ("pagraph partition ", ["dir,"]),
            ("pagraph partition verify --so", ["plain,--source"]),
            ("pagraph completion f", ["plain,fish"]),
        ],
    )
    def test_everything_else(self, line, offered, tmp_path):
        assert self.complete(line, tmp_path) == offered

    @pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
    def test_the_script(self, shell, tmp_path):
        if shell == "bash" and shutil.which("bash") is None:
            pytest.skip("click asks bash for its version")
        ((code, text, loaded),) = called([["completion", shell]], tmp_path)
        assert (code, loaded) == (0, [])
        assert f"_PAGRAPH_COMPLETE={shell}_complete" in text
        if shutil.which(shell) is not None:
            subprocess.run([shell, "-n"], input=text, text=True, check=True, timeout=HANGING)

    @pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
    def test_bash_completes(self, tmp_path):
        """The script as it is sourced, with the function that bash calls at a TAB."""
        command = tmp_path / "pagraph"
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -m pagraph "$@"\n')
        command.chmod(0o755)
        script = (
            'eval "$(./pagraph completion bash)"\n'
            "COMP_WORDS=(./pagraph train G --cache-p)\nCOMP_CWORD=3\n"
            '_pagraph_completion ./pagraph\necho "${COMPREPLY[@]}"\n'
        )
        done = subprocess.run(
            ["bash", "-c", script], capture_output=True, text=True, timeout=HANGING, cwd=tmp_path
        )
        assert done.stdout.split() == ["--cache-policy"], done.stderr
