"""``pagraph run`` runs a script as ``python`` does: what it finds, how it ends, and the table."""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time

import pytest
from fresh_processes import HANGING, bare_python, forked_python, torchrun_environment
from watching import DATA, alone, run

pytestmark = pytest.mark.processes


needs_pyg = pytest.mark.skipif(
    importlib.util.find_spec("torch_geometric") is None, reason="needs PyG"
)
READS = f"{DATA}\nfrom torch_geometric.loader import NeighborLoader\nlist(NeighborLoader(data, [3], batch_size=25))\n"
LACKS = """
import torch_geometric.typing as flags
flags.WITH_PYG_LIB = flags.WITH_TORCH_SPARSE = False
list("""

WORLD = """
import json, os, pickle, sys

class Pickled:
    pass

main = sys.modules["__main__"]
print(json.dumps({
    "argv": sys.argv,
    "name": __name__,
    "file": __file__,
    "spec": repr(__spec__),
    "package": __package__,
    "doc": __doc__,
    "path": sys.path[0],
    "main": vars(main) is globals(),
    "pickled": type(pickle.loads(pickle.dumps(Pickled()))).__module__,
    "names": sorted(name for name in globals() if name.startswith("__")),
    "torch": "torch" in sys.modules,
}))
"""


def test_the_world_of_a_script_is_that_of_python(tmp_path):
    (tmp_path / "script.py").write_text(WORLD)
    arguments = ["script.py", "-x", "--theirs", "a b", "-h"]
    told = run(tmp_path, *arguments)
    assert json.loads(told.stdout) == json.loads(alone(tmp_path, *arguments).stdout)
    assert told.returncode == 0
    assert "imported neither DGL nor PyG" in told.stderr
    assert told.numbers["lines"] == []


def test_control_characters_of_a_scripts_name_are_escaped(tmp_path):
    name = "bad\x1b[31m.py"
    shown = "bad\\x1b[31m.py"
    told = run(tmp_path, name)
    assert told.stderr == f"Error: SCRIPT must be a file, {shown} does not exist\n"
    (tmp_path / name).write_text("raise SystemExit('\\x1b[2J')")
    told = run(tmp_path, name)
    assert told.stderr.startswith("\x1b[2J\n")  # what the script itself prints
    title = f"pagraph run: {shown} ended with exit code 1: \\x1b[2J\n"
    assert title in told.stderr


def test_the_world_of_a_module_is_that_of_python(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "part.py").write_text(WORLD)
    told = run(tmp_path, "-m", "package.part", "--theirs", "x")
    by_python = alone(tmp_path, "-m", "package.part", "--theirs", "x")
    worlds = [re.sub(r" at 0x\w+", "", done.stdout) for done in (told, by_python)]
    assert json.loads(worlds[0]) == json.loads(worlds[1])
    assert "pagraph run: -m package.part," in told.stderr


def test_a_folder_and_a_link(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "beside.py").write_text("VALUE = 7\n")
    (folder / "__main__.py").write_text("import beside\nprint(beside.VALUE, __name__)\n")
    assert run(tmp_path, "folder").stdout == alone(tmp_path, "folder").stdout == "7 __main__\n"
    (tmp_path / "link.py").symlink_to(folder / "__main__.py")
    assert run(tmp_path, "link.py").stdout == "7 __main__\n"


ENDS = """
import atexit, os, signal, sys, time
atexit.register(lambda: print("at exit", flush=True))

def inner():
    raise KeyError("x")

def end(how):
    if how == "raises":
        inner()
    if how == "chained":
        try:
            inner()
        except KeyError as error:
            raise ValueError("y") from error
    if how == "code":
        sys.exit(5)
    if how == "text":
        sys.exit("said")
    if how == "_exit":
        os._exit(7)
    if how.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, how))
        time.sleep(20)
    if how == "stderr":
        sys.stderr.flush()
        sys.stderr = None
    if how == "closed":
        os.close(1)
        os.close(2)

end(sys.argv[1])
"""


UNKNOWN = "was killed or crashed"
"""Before Linux 6.15 nobody but its parent may learn which signal ended a process."""


@pytest.mark.every
@pytest.mark.parametrize(
    ("how", "ended"),
    [
        ("raises", ["ended with exit code 1: KeyError: 'x'"]),
        ("chained", ["ended with exit code 1: ValueError: y"]),
        ("code", ["ended with exit code 5"]),
        ("text", ["ended with exit code 1: said"]),
        ("_exit", ["ended with exit code 7"]),
        ("SIGTERM", ["was ended by SIGTERM", UNKNOWN]),
        ("SIGKILL", ["was ended by SIGKILL", UNKNOWN]),
        ("SIGABRT", ["was ended by SIGABRT", UNKNOWN]),
        ("SIGSEGV", ["was ended by SIGSEGV", UNKNOWN]),
        ("SIGINT", ["was ended by SIGINT: KeyboardInterrupt"]),
    ],
)
def test_a_failure_ends_as_alone_and_is_told_without_advice(how, ended, tmp_path):
    told = run(tmp_path, "script.py", how, text=ENDS)
    by_python = alone(tmp_path, "script.py", how)
    assert told.returncode == by_python.returncode
    assert told.stdout == by_python.stdout
    said, mark, line = told.stderr.partition("\npagraph run: script.py ")
    assert mark and said == by_python.stderr
    assert line in [f"{each}\n" for each in ended]


@pytest.mark.parametrize("how", ["stderr", "nothing"])
def test_ends_as_alone_and_the_table_comes(how, tmp_path):
    told = run(tmp_path, "script.py", how, text=ENDS)
    by_python = alone(tmp_path, "script.py", how)
    assert told.returncode == by_python.returncode == 0
    assert told.stdout == by_python.stdout
    said, mark, table = told.stderr.partition("\npagraph run: script.py")
    assert mark and "imported neither" in table
    assert said == by_python.stderr


CODES = {"nothing": 0, "_exit": 7, "SIGKILL": -signal.SIGKILL}


@pytest.mark.parametrize("how", list(CODES))
@pytest.mark.parametrize("refusal", ["pidfd_open", "fork"])
def test_a_system_that_refuses_what_the_witness_needs(how, refusal, tmp_path):
    """Without a second process nobody can print the table of a script that is killed."""
    refuse = f"import os\ndef refuse(*arguments): raise PermissionError\nos.{refusal} = refuse\n"
    (tmp_path / "sitecustomize.py").write_text(refuse)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    told = run(tmp_path, "script.py", how, text=ENDS, PYTHONPATH=path)
    assert told.returncode == CODES[how]
    assert told.stderr.count("pagraph run:") == (refusal != "fork" or how == "nothing")
    assert "Error" not in told.stderr


def test_the_table_of_a_killed_script_waits_for_none_of_its_processes(tmp_path):
    text = """
    import os, signal, time
    if os.fork() == 0:
        while not os.path.exists("numbers.json"):
            time.sleep(0.05)
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)
    """
    told = run(tmp_path, "script.py", text=textwrap.dedent(text))
    assert told.returncode == -signal.SIGKILL and told.stderr.count("pagraph run:") == 1


@pytest.mark.parametrize("how", ["nothing", "_exit"])
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_stream_that_is_closed_from_the_beginning(closed, how, tmp_path):
    """Its number is a file's then, which must have what the script writes alone."""
    opens = "import os\nfiles = [os.open(f'{n}.txt', os.O_CREAT | os.O_RDWR) for n in range(3)]\n"
    writes = "for file in files:\n    os.write(file, b'mine')\n"
    (tmp_path / "script.py").write_text(f"{opens}{writes}{ENDS}")
    command = f"exec {sys.executable} -m pagraph run script.py {how} {closed}"
    numbers = tmp_path / "numbers.json"
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=tmp_path,
        env=os.environ | {"PAGRAPH_RUN_NUMBERS": str(numbers)},
        capture_output=True,
        text=True,
        timeout=HANGING,
    )
    assert done.returncode == CODES[how]
    assert done.stderr.count("pagraph run:") == (0 if "2" in closed else 1)
    while not numbers.exists():  # the witness may write them after the end
        time.sleep(0.05)
    assert json.loads(numbers.read_text())["exit_code"] == done.returncode
    files = [(tmp_path / f"{number}.txt").read_text() for number in range(3)]
    assert [text.removesuffix("at exit\n") for text in files] == ["mine"] * 3


ON_DISK = """
import dgl, numpy, torch
numpy.save("x.npy", numpy.ones((100, 64), "float32"))
graph = dgl.rand_graph(100, 600)
graph.ndata["feat"] = torch.from_numpy(numpy.load("x.npy", mmap_mode="r+"))
sampler = dgl.dataloading.NeighborSampler([3], prefetch_node_feats=["feat"])
for batch in dgl.dataloading.DataLoader(graph, torch.arange(100), sampler, batch_size=25):
    pass
"""


@pytest.mark.parametrize(
    ("arguments", "environment", "why"),
    [
        ([], {"NUMBA_DISABLE_JIT": "1"}, "PaGraphError: NUMBA_DISABLE_JIT must be 0"),
        (["--memory", "1KiB"], {}, "memory must be at least"),
    ],
)
def test_what_stops_only_us_stops_no_script(tmp_path, arguments, environment, why):
    pytest.importorskip("pagraph.dgl")
    told = run(tmp_path, *arguments, "script.py", text=ON_DISK, **environment)
    assert told.returncode == 0, told.stderr
    assert f"keeps its own loader: {why}" in told.stderr
    (line,) = told.numbers["lines"]
    assert (line["ran"], line["batches"]) == ("their own", 4)


def test_a_script_whose_parent_ignores_the_ends_of_children(tmp_path):
    (tmp_path / "script.py").write_text("")
    command = f"trap '' CHLD; exec {sys.executable} -m pagraph run script.py"
    done = subprocess.run(
        ["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=HANGING
    )
    assert done.returncode == 0 and done.stderr.count("pagraph run:") == 1


def test_a_script_that_takes_the_descriptors_it_did_not_open(tmp_path):
    text = "import os\nos.closerange(3, 100)\nfiles = [open(f'{n}.txt', 'w') for n in range(9)]\n"
    told = run(tmp_path, "script.py", text=f"{text}for file in files: file.write('mine')\n")
    assert told.returncode == 0 and told.stderr.count("pagraph run:") == 1
    assert {path.read_text() for path in tmp_path.glob("?.txt")} == {"mine"}


def test_a_script_that_closes_its_streams(tmp_path):
    told = run(tmp_path, "script.py", "closed", text=ENDS)
    assert told.returncode == alone(tmp_path, "script.py", "closed").returncode
    assert told.stderr == ""


def test_a_mistake_in_the_script(tmp_path):
    (tmp_path / "script.py").write_text("x = (\n")
    told = run(tmp_path, "script.py")
    by_python = alone(tmp_path, "script.py")
    assert told.returncode == by_python.returncode == 1
    assert told.stderr.startswith(by_python.stderr)


@pytest.mark.every
@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["missing.py"], "SCRIPT must be a file, missing.py does not exist"),
        ([], "Missing argument 'SCRIPT'"),
        (["--cache", "plenty", "script.py"], "cache must be"),
        (["--memory", "2", "script.py"], "memory must"),
        (["--num-workers", "-1", "script.py"], "-1 is not in the range"),
        (["--compare", "0", "script.py"], "0 is not in the range"),
        (["--theirs", "--cache", "1GiB", "script.py"], "--cache must not be given with --theirs"),
        (["--theirs", "--num-workers", "1", "script.py"], "--num-workers must not be given with"),
        (["--theirs", "--timeline", "t.json", "script.py"], "--timeline must not be given with"),
        (["--theirs", "--compare", "2", "script.py"], "--theirs must not be given with --compare"),
        (
            ["--compare", "2", "--timeline", "t.json", "script.py"],
            "--timeline must not be given with --compare",
        ),
        (["--report", "no/page.html", "script.py"], "--report"),
        (["--timeline", "no/t.json", "script.py"], "--timeline"),
        (["--wrong", "script.py"], "No such option"),
    ],
)
def test_a_mistake_is_one_line_before_the_script_runs(arguments, error, tmp_path):
    told = run(tmp_path, *arguments, text="print('ran')\n")
    assert told.returncode in (1, 2)
    assert told.stdout == ""
    assert error in told.stderr.splitlines()[-1]


def test_help_imports_nothing_slow(tmp_path):
    """Neither the help nor the beginning of a run imports torch: only the script does."""
    told = run(tmp_path, "--help", python=["-X", "importtime"])
    assert "--theirs" in told.stdout
    imported = {line.rpartition("|")[2].strip() for line in told.stderr.splitlines()}
    assert imported.isdisjoint({"torch", "numba", "pandas", "pyarrow", "dgl", "torch_geometric"})
    told = run(tmp_path, "script.py", text="import sys\nprint('torch' in sys.modules)\n")
    assert told.stdout == "False\n"


def test_a_framework_that_is_not_there(tmp_path):
    text = "import sys\nsys.modules['torch_geometric'] = None\nimport torch_geometric\n"
    told = run(tmp_path, "script.py", text=text)
    assert told.returncode == 1
    error = "ModuleNotFoundError: import of torch_geometric halted; None in sys.modules"
    assert told.stderr.splitlines()[-1].endswith(f"ended with exit code 1: {error}")


class TestBothWays:
    """``--compare`` says which run failed, and how."""

    def test_an_exit_code(self, tmp_path):
        told = run(tmp_path, "--compare", "2", "script.py", text="import sys\nsys.exit(3)\n")
        assert told.returncode == 3
        assert told.stderr.count("pagraph run: script.py") == 1
        last = "pagraph run --compare: run 1 of 2 with its own loaders ended with exit code 3"
        assert told.stderr.splitlines()[-1] == last

    def test_an_error(self, tmp_path):
        text = (
            "open('n', 'a').write('x')\nif len(open('n').read()) == 4: raise ValueError('four')\n"
        )
        told = run(tmp_path, "--compare", "2", "script.py", text=text)
        assert told.returncode == 1
        last = told.stderr.splitlines()[-1]
        assert last.startswith("pagraph run --compare: run 2 of 2 with pagraph's loaders in place")
        assert last.endswith("ended with exit code 1: ValueError: four")

    def test_a_signal(self, tmp_path):
        text = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n"
        told = run(tmp_path, "--compare", "1", "script.py", text=text)
        assert told.returncode == 128 + signal.SIGKILL
        assert told.stderr.count("pagraph run: script.py") == 1
        assert told.stderr.splitlines()[-1].endswith("its own loaders was ended by SIGKILL")

    def test_an_end_that_only_another_process_can_tell_of(self, tmp_path):
        told = run(tmp_path, "--compare", "1", "script.py", text="import os\nos._exit(0)\n")
        assert told.returncode == 0
        assert told.stderr.count("pagraph run: script.py") == 2
        assert told.stderr.splitlines()[-1].startswith("No loader was read")


@needs_pyg
@pytest.mark.processes
class TestLoaders:
    """Most in forked processes, where PyG is imported already. In the first one the hook is there
    before it, and the last one is about the end of an interpreter."""

    def test_whichever_way_they_are_imported_made_and_left(self, tmp_path):
        """Names bound before, by a library and in a function; a loader made in a thread, in a
        forked process, never read, broken off, a thousand; pagraph imported by the script too; the
        same name replaced by the script."""
        (tmp_path / "library.py").write_text(
            "from torch_geometric.loader import NeighborLoader as Renamed\n"
        )
        text = DATA + textwrap.dedent(
            """
            import os, sys, threading
            import library
            import torch_geometric
            from torch_geometric.loader import NeighborLoader

            def read(kind):
                assert len(list(kind(data, [3], batch_size=25))) == 4

            read(library.Renamed)
            read(torch_geometric.loader.NeighborLoader)
            assert library.Renamed is NeighborLoader is torch_geometric.loader.NeighborLoader
            thread = threading.Thread(target=read, args=(NeighborLoader,))
            thread.start()
            thread.join()
            child = os.fork()
            if not child:
                read(NeighborLoader)
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            never = NeighborLoader(data, [3])
            for batch in NeighborLoader(data, [3], batch_size=25):
                break
            for _ in range(1000):
                NeighborLoader(data, [3], batch_size=100)
            import pagraph.pyg
            read(pagraph.pyg.NeighborLoader)

            class Mine(NeighborLoader):
                pass

            torch_geometric.loader.NeighborLoader = Mine
            read(torch_geometric.loader.NeighborLoader)
            from torch_geometric.nn import GraphSAGE
            model = GraphSAGE(4, 8, num_layers=1).eval()
            loader = NeighborLoader(data, [-1], batch_size=50)
            # It asserts that it was given one of PyG's.
            assert model.inference(loader).shape == (100, 8)
            sys.stderr = open(os.devnull, "w")
            """
        )
        told = run(tmp_path, "script.py", text=text)
        assert told.returncode == 0, told.stderr
        assert "with 1 more process" in told.stderr
        lines = told.numbers["lines"]
        assert {line["ran"] for line in lines} == {"pagraph"}
        assert {line["kind"] for line in lines} == {"NeighborLoader", "Mine"}
        counts = [(line["loaders"], line["epochs"], line["batches"]) for line in lines]
        assert (1, 0, 0) in counts and (1000, 0, 0) in counts and (1, 1, 1) in counts
        assert all(line["place"].startswith("script.py:") for line in lines)
        assert "imported from pagraph" in [line["why"] for line in lines]

    def test_outputs(self, tmp_path):
        told = run(
            tmp_path,
            *("--report", "page.html", "--timeline", "t.json", "script.py"),
            text=READS,
            program=forked_python(),
        )
        assert told.returncode == 0, told.stderr
        page = (tmp_path / "page.html").read_text()
        assert "NeighborLoader" in page and "script.py:" in page and "http" not in page
        trace = json.loads((tmp_path / "t.json").read_text())
        names = {event["name"] for event in trace["traceEvents"]}
        assert {"sampling", "waiting", "epoch 0"} <= names

    def test_both_ways(self, tmp_path):
        text = f"{DATA}\nfrom torch_geometric.loader import RandomNodeLoader\nlist(RandomNodeLoader(data, 4))\n"
        options = ("--compare", "1", "--report", "page.html")
        told = run(tmp_path, *options, "script.py", text=text, program=forked_python())
        assert told.returncode == 0, told.stderr
        assert told.stderr.count("pagraph run: script.py") == 2
        assert "medians of 1 runs each way" in told.stderr
        assert "Both ways" in (tmp_path / "page.html").read_text()

    def test_both_ways_where_theirs_cannot_run(self, tmp_path):
        text = f"{READS.replace('list(', LACKS)}\n"
        told = run(tmp_path, "--theirs", "script.py", text=text, program=forked_python())
        assert told.returncode == 0, told.stderr
        (line,) = told.numbers["lines"]
        assert (line["ran"], line["batches"]) == ("pagraph", 4)
        lacks = "its own cannot run here without pyg-lib or torch-sparse"
        assert lacks in told.stderr and "loaders where its own cannot run here" in told.stderr
        options = ("--compare", "2", "--report", "page.html")
        told = run(tmp_path, *options, "script.py", program=forked_python())
        assert told.returncode == 0, told.stderr
        # One that finds out, two of ours, and the median of these.
        assert told.stderr.count("pagraph run: script.py") == 4
        assert "the median of 2 runs with pagraph's loaders" in told.stderr
        assert lacks in told.stderr and "times as long" not in told.stderr
        assert lacks in (tmp_path / "page.html").read_text()

    @pytest.mark.every
    @pytest.mark.parametrize(
        ("how", "ended"),
        [
            ("os._exit(9)", ["ended with exit code 9"]),
            ("libc._exit(9)", ["ended with exit code 9", UNKNOWN]),
            ("libc.abort()", ["was ended by SIGABRT", UNKNOWN]),
            ("ctypes.string_at(0)", ["was ended by SIGSEGV", UNKNOWN]),
            ("os.kill(os.getpid(), 9)", ["was ended by SIGKILL", UNKNOWN]),
        ],
    )
    def test_what_was_measured_until_its_death_is_told_without_advice(self, how, ended, tmp_path):
        """To the last batch, although nothing was written for the last second; also of a loader
        that ends the process in its first batch, and of one that was never read."""
        text = f"""
        import ctypes, os
        libc = ctypes.CDLL(None)

        class Deadly:
            __len__ = lambda self: 5

            def __getitem__(self, index):
                {how}

        loaders = [NeighborLoader(data, [3], batch_size=10) for _ in range(2)]
        never = NeighborLoader(data, [3])
        for step, _ in enumerate(loaders[0]):
            if step == 6:
                list(torch.utils.data.DataLoader(Deadly()))
        """
        told = run(
            tmp_path, "script.py", text=READS + textwrap.dedent(text), program=forked_python()
        )
        assert told.returncode != 0
        counts = {
            line["place"].rpartition(":")[2]: (line["loaders"], line["epochs"], line["batches"])
            for line in told.numbers["lines"]
        }
        first = READS.count("\n")
        lines = [first, first + 11, first + 12, first + 15]
        expected = [(1, 1, 4), (2, 1, 7), (1, 0, 0), (1, 1, 0)]
        assert counts == dict(zip(map(str, lines), expected, strict=True))
        table = told.stderr[told.stderr.index("\npagraph run: ") :].splitlines()[1:]
        assert table[0] in [f"pagraph run: script.py {each}" for each in ended]
        assert table[1] == "until then, pagraph's loaders in place of theirs"
        assert told.numbers["advice"] == "" and "The loop waited" not in told.stderr
        assert 0 < told.numbers["waited"] <= told.numbers["seconds"]

    def test_spawned_processes_count(self, tmp_path):
        text = textwrap.dedent(
            f"""
            import multiprocessing

            def work():
                {textwrap.indent(READS, " " * 16).strip()}

            if __name__ == "__main__":
                for method in ("spawn", "forkserver", "fork"):
                    process = multiprocessing.get_context(method).Process(target=work)
                    process.start()
                    process.join()
                    assert process.exitcode == 0
            """
        )
        told = run(tmp_path, "script.py", text=text, program=forked_python())
        assert told.returncode == 0, told.stderr
        (line,) = told.numbers["lines"]
        assert (line["ran"], line["epochs"], line["batches"]) == ("pagraph", 3, 12)
        assert told.stderr.count("pagraph run:") == 1

    def test_torchrun(self, tmp_path):
        text = READS + textwrap.dedent(
            """
            import os, torch.distributed
            torch.distributed.init_process_group("gloo")
            assert torch.distributed.get_world_size() == 2
            torch.distributed.destroy_process_group()
            """
        )
        (tmp_path / "script.py").write_text(text)
        command = [forked_python(), "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc_per_node=2", "-m", "pagraph", "run", "script.py"]
        options = {"cwd": tmp_path, "env": torchrun_environment(), "timeout": HANGING}
        done = subprocess.run(command, capture_output=True, text=True, **options)
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("pagraph run: script.py") == 1
        assert "This is rank 0 of 2" in done.stderr

    def test_accelerate(self, tmp_path):
        if importlib.util.find_spec("accelerate") is None:
            pytest.skip("needs accelerate")
        (tmp_path / "script.py").write_text(READS)
        command = [sys.executable, "-m", "accelerate.commands.launch", "--cpu"]
        command += ["--num_processes=1", "-m", "pagraph", "run", "script.py"]
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=HANGING
        )
        assert done.returncode == 0, done.stderr
        assert "NeighborLoader" in done.stderr.partition("pagraph run: script.py")[2]

    def test_ctrl_c_in_the_loop(self, tmp_path):
        text = f"{READS}\nimport time\nprint('ready', flush=True)\ntime.sleep(60)\n"
        (tmp_path / "script.py").write_text(text)
        command = [sys.executable, "-m", "pagraph", "run", "script.py"]
        with subprocess.Popen(
            command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=HANGING)
        assert process.returncode == -signal.SIGINT
        assert "KeyboardInterrupt" in said and "NeighborLoader" in said.partition("pagraph run:")[2]


@pytest.mark.processes
def test_dgl_imports_where_its_graphbolt_does_not_fit(tmp_path):
    if importlib.util.find_spec("dgl") is None:
        pytest.skip("needs DGL")
    text = textwrap.dedent(
        """
        import dgl, torch
        from dgl.dataloading import DataLoader, NeighborSampler
        graph = dgl.rand_graph(100, 600)
        loader = DataLoader(graph, torch.arange(100), NeighborSampler([3]), batch_size=25)
        assert len(list(loader)) == 4
        """
    )
    for options, ran in (([], "pagraph"), (["--theirs"], "their own")):
        told = run(tmp_path, *options, "script.py", text=text, program=bare_python())
        assert told.returncode == 0, told.stderr
        (line,) = told.numbers["lines"]
        assert (line["kind"], line["ran"], line["batches"]) == ("DataLoader", ran, 4)
