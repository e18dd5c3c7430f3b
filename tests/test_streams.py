"""Standard streams that are missing, closed or broken cost nothing but what would have been said."""

import ast
import io
import subprocess
import sys
from pathlib import Path

import pytest
from fresh_processes import forked_python

import pagraph
from pagraph import _compiling, _streams

ROOT = Path(pagraph.__file__).parent


class Broken(io.StringIO):
    def write(self, *text):
        raise BrokenPipeError(32, "Broken pipe")

    flush = isatty = write


def closed():
    stream = io.StringIO()
    stream.close()
    return stream


STREAMS = {"missing": lambda: None, "closed": closed, "broken": Broken, "any object": object}


@pytest.mark.parametrize("stream", STREAMS)
def test_nobody_to_tell(monkeypatch, stream):
    monkeypatch.setattr(sys, "stderr", STREAMS[stream]())
    _streams.print_notice("x")
    assert not _streams.is_terminal()
    _streams.flush()
    assert _streams.has_stderr() == (stream != "missing")


@pytest.mark.parametrize("stream", ["missing", "closed"])
def test_no_output_to_flush(monkeypatch, stream):
    monkeypatch.setattr(sys, "stdout", STREAMS[stream]())
    _streams.flush()
    _streams.discard_output()


def test_what_is_said_and_flushed(monkeypatch, capfd):
    _streams.print_notice(3)
    _streams.say_past_replacement("a\nb\ud800")
    assert capfd.readouterr().err == "3\na\nb?"
    monkeypatch.setattr(sys, "__stderr__", None)
    _streams.say_past_replacement("to a file of the script")
    assert capfd.readouterr() == ("", "")
    monkeypatch.setattr(sys, "stdout", Broken())
    with pytest.raises(BrokenPipeError):  # lost output is an error
        _streams.flush()


@pytest.mark.parametrize("stream", STREAMS)
def test_the_notice_of_compiling(monkeypatch, stream):
    monkeypatch.setattr(sys, "stderr", STREAMS[stream]())
    monkeypatch.setattr(_compiling, "_said", [])
    monkeypatch.delenv("PAGRAPH_QUIET", raising=False)
    _compiling._say_if_long(_compiling.SAID_AFTER)
    assert _compiling._said == [True]


def uses(path):
    """Lines of a file that take a stream of the process into their own hands."""
    text = path.read_text(encoding="utf-8")
    if not any(word in text for word in ("sys.std", "sys.__std", "err=", "os.write(", "print(")):
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and node.attr.strip("_") in ("stdout", "stderr"):
            if isinstance(node.value, ast.Name) and node.value.id == "sys":
                yield node.lineno
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            named = {word.arg for word in node.keywords}
            is_stderr = name == "click.echo" and "err" in named
            is_number = name == "os.write" and ast.unparse(node.args[0]) in ("1", "2")
            if is_stderr or is_number or name == "print":
                yield node.lineno


def test_the_library_uses_them_in_one_place():
    """Results are printed by click and rich, which know that there may be no standard output."""
    found = {
        f"{path.relative_to(ROOT)}:{line}"
        for folder in (ROOT, ROOT / "datasets", ROOT / "partition")  # links, in a checkout
        for path in folder.rglob("*.py")
        if path.name != "_streams.py"
        for line in uses(path)
    }
    assert found == set()
    assert list(uses(ROOT / "_streams.py"))


# As an interpreter does that was started without them.
WITHOUT = """
import os, sys
for name in sys.argv.pop(1).split():
    os.close(("stdin", "stdout", "stderr").index(name))
    setattr(sys, name, None)
    setattr(sys, f"__{name}__", None)
"""
LOADERS = """
import torch
from pagraph import Loader, NeighborSampler, _compiling
from pagraph.datasets import sbm

os.environ.pop("PAGRAPH_QUIET", None)
_compiling.SAID_AFTER = -1
graph = sbm(300)
loader = Loader(graph, torch.arange(300), NeighborSampler([5]), batch_size=100, fields=["feat"])
assert sum(1 for _ in loader) == 3
_compiling._say_if_long(0)
assert _compiling._said
"""
CLUSTERS = """
import torch
from torch_geometric.data import Data
from pagraph.pyg import ClusterData, ClusterLoader, GraphSAINTNodeSampler

edges = torch.stack([torch.arange(100), torch.arange(100).roll(1)])
data = Data(edge_index=edges, num_nodes=100)
assert len(list(ClusterLoader(ClusterData(data, num_parts=4), batch_size=2))) == 2
saint = GraphSAINTNodeSampler(data, batch_size=10, num_steps=2, sample_coverage=2)
assert len(list(saint)) == 2
"""
VERB = """
from pagraph.__main__ import program

sys.argv[0] = "pagraph"
program()
"""
EACH = ["stdin", "stdout", "stderr", "stdin stdout stderr"]


def without(streams, code, *arguments):
    """Exit code and output of a process that has not all of its streams."""
    command = [forked_python(), "-c", f"{WITHOUT}{code}", streams, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.every
@pytest.mark.parametrize("streams", EACH)
def test_first_batches(streams):
    code, _, said = without(streams, LOADERS)
    assert code == 0, said


@pytest.mark.every
@pytest.mark.parametrize("streams", EACH)
def test_clusters_and_saint(streams):
    pytest.importorskip("pagraph.pyg")
    code, _, said = without(streams, CLUSTERS)
    assert code == 0, said


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A graph folder, written without any stream."""
    path = tmp_path_factory.mktemp("graph") / "g"
    call = ["generate", "sbm", path, "--nodes", "200"]
    assert without("stdin stdout stderr", VERB, *call) == (0, "", "")
    return path


@pytest.mark.every
@pytest.mark.parametrize("streams", EACH)
def test_verbs(folder, streams):
    code, shown, said = without(streams, VERB, "info", folder)
    assert (code, said) == (0, "") and bool(shown) == ("stdout" not in streams)
    code, shown, said = without(streams, VERB, "info", folder / "nothing")
    assert (code, shown) == (2, "") and bool(said) == ("stderr" not in streams)


@pytest.mark.processes
@pytest.mark.parametrize(
    "call", ["doctor", "train GRAPH --epochs 1 --hidden 2", "warmup core --jobs 1"]
)
def test_long_verbs(folder, call):
    arguments = [str(folder) if word == "GRAPH" else word for word in call.split()]
    assert without("stdin stdout stderr", VERB, *arguments) == (0, "", "")


def test_a_file_does_not_take_the_number_of_a_missing_stream(folder, tmp_path):
    """Or it would receive what C code and child processes print."""
    script = tmp_path / "script.py"
    numbers = tmp_path / "numbers"
    script.write_text(
        f"import sys\nwith open({str(numbers)!r}, 'w') as file:\n"
        "    print(file.fileno() > 2, sys.stdin, sys.stdout, sys.stderr, file=file)\n"
    )
    assert without("stdin stdout stderr", VERB, "run", script) == (0, "", "")
    assert numbers.read_text() == "True None None None\n"


def test_a_script_that_ends_with_a_message(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import sys; sys.exit('no')")
    assert without("stderr", VERB, "run", script) == (1, "", "")


def test_an_interpreter_without_streams(tmp_path):
    """Not our imitation of one."""
    command = '"$0" -m pagraph info nothing >&- 2>&- <&-; echo $?'
    done = subprocess.run(
        ["sh", "-c", command, sys.executable], capture_output=True, text=True, cwd=tmp_path
    )
    assert (done.stdout, done.stderr) == ("2\n", "")


def test_a_disk_that_takes_no_error_changes_no_exit_code(tmp_path):
    command = '"$0" -m pagraph info nothing 2>/dev/full; echo $?'
    done = subprocess.run(
        ["sh", "-c", command, sys.executable], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.stdout == "2\n"
