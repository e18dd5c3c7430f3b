"""What is counted, and what follows from it."""

import gc
import json
import os
import re
import signal
import threading
import time
import weakref
from collections import Counter

import pytest
import torch
from torch.utils.data import DataLoader
from watching import watched

from pagraph import _compiling
from pagraph._kernel_folder import KernelFolder
from pagraph.run import summary as summary_module
from pagraph.run.frameworks import ImportHook
from pagraph.run.ledger import OURS, THEIRS, Key, Ledger, Line, made_at, read_numbers
from pagraph.run.summary import Summary, compared, page_text
from pagraph.system.processors import OtherPrograms


class Slow(torch.utils.data.Dataset):
    """Items that take a known time."""

    def __len__(self):
        return 5

    def __getitem__(self, index):
        time.sleep(0.02)
        return index


def only(seen):
    ((_, line),) = seen().lines.items()
    return line


def test_the_wait_is_the_readers_and_not_the_loops():
    with watched() as seen:
        for _ in DataLoader(Slow(), batch_size=None):
            time.sleep(0.03)
    line = only(seen)
    assert (line.epochs, line.batches) == (1, 5)
    # At least what the items took; not what the loop did.
    assert line.waited >= 0.1
    assert seen().seconds >= line.waited + 5 * 0.03 - 0.03
    assert 0 < seen().share < 1


def test_a_pass_that_is_broken_off_counts():
    with watched() as seen:
        loader = DataLoader(torch.arange(10), batch_size=2)
        for _ in loader:
            break
        next(iter(loader))
    assert (only(seen).epochs, only(seen).batches) == (2, 2)


def test_a_running_pass_is_seen():
    with watched() as seen:
        batches = iter(DataLoader(torch.arange(10), batch_size=2))
        next(batches)
        assert (only(seen).epochs, only(seen).batches) == (1, 1)
        assert len(list(batches)) == 4
        assert next(batches, None) is None  # as often as it is asked
    assert (only(seen).epochs, only(seen).batches) == (1, 5)


def test_an_iterator_is_what_it_was():
    with watched():
        batches = iter(DataLoader(torch.arange(10), batch_size=2))
        assert iter(batches) is batches and len(batches) == 5
        assert batches._num_workers == 0  # an attribute of torch's


def test_a_loader_that_reads_a_loader_waits_once():
    class Outer(DataLoader):
        def __iter__(self):
            yield from DataLoader(Slow(), batch_size=None)

    with watched() as seen:
        assert len(list(Outer(torch.arange(2)))) == 5
    assert seen().waited <= seen().seconds * 1.01


def test_kernels_that_are_loaded_are_no_waiting(monkeypatch):
    spans = []
    monkeypatch.setattr(_compiling, "spans", spans)
    ledger = Ledger()
    passed = ledger.begin(DataLoader(Slow()))
    for seconds in (0, 5):
        ledger.waits()
        begin = time.perf_counter_ns() - seconds * 10**9
        spans.append((begin, begin + seconds * 10**9, threading.get_ident() + 1))
        passed.answered(begin, delivered=True)
    passed.end()
    part = ledger.snapshot()
    assert part["kernels"] == 5 and part["waited"] < 1 and part["seconds"] < 1
    assert part["lines"][0]["kernels"] == 5 and part["lines"][0]["waited"] < 1
    found = Summary.of([part, part], theirs=False, name="script.py")
    assert found.kernels == 5  # processes load at the same time
    assert Summary.from_json(found.to_json()).kernels == 5
    head, line = (row.split("  ") for row in str(found.table).splitlines()[1:3])
    assert "kernels s" in map(str.strip, head) and "10.000" in map(str.strip, line)
    note = "kernels: loaded, or compiled, once in a process; no other time includes it, and "
    assert f"{note}`pagraph warmup` compiles ahead" in str(found)
    nowhere = KernelFolder("", ("a group may write to it",))
    monkeypatch.setattr(summary_module, "kernel_folder", lambda: nowhere)
    assert f"{note}they are not kept: a group may write to it" in str(found)


@pytest.mark.many
def test_a_thousand_loaders_are_one_line_and_none_is_kept():
    with watched() as seen:
        kept = []
        for _ in range(1000):
            loader = DataLoader(torch.arange(2), batch_size=2)
            list(loader)
            kept.append(weakref.ref(loader))
        del loader
        gc.collect()
        assert sum(ref() is not None for ref in kept) == 0
    line = only(seen)
    assert (line.loaders, line.epochs, line.batches) == (1000, 1000, 1000)


def test_threads_count_together():
    with watched() as seen:

        def read():
            for _ in range(20):
                list(DataLoader(torch.arange(10), batch_size=2))

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert (only(seen).epochs, only(seen).batches) == (80, 400)


def test_a_forked_process_begins_anew():
    with watched() as seen:
        loader = DataLoader(torch.arange(4), batch_size=2)
        list(loader)
        child = os.fork()
        if not child:
            list(loader)
            line = only(seen)
            os._exit(0 if (line.epochs, line.batches) == (1, 2) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert only(seen).epochs == 1


PROCESS = ("seconds", "waited", "kernels")


def numbers_of(folder, pid=None):
    """What another process finds of this one, or of its child."""
    return read_numbers(folder / f"{pid or os.getpid()}.json")


def test_the_files_have_what_the_ledger_has_after_every_batch(tmp_path):
    """Whenever the process is killed: passes that overlap, are broken off, moved, in threads."""
    ledger = Ledger(tmp_path)
    known = [DataLoader(torch.arange(9)) for _ in range(3)]
    for place, loader in enumerate(known):
        ledger.made(loader, Key("Loader", f"line {min(place, 1)}", OURS))
        assert sum(line["loaders"] for line in numbers_of(tmp_path)["lines"]) >= min(place + 1, 2)

    def answer(passed):
        ledger.waits()
        passed.answered(time.perf_counter_ns() - 1000, delivered=True)

    def check():
        own, found = ledger.snapshot(looks=False), numbers_of(tmp_path)
        for part in own, found:
            part["lines"] = {line["place"] + line["ran"]: line for line in part["lines"]}
            for line in part["lines"].values():
                line.pop("loaders")  # of loaders alone a new line is written
        for place, line in own.pop("lines").items():
            assert found["lines"].pop(place) == pytest.approx(line)
        assert not found.pop("lines")
        assert [found[name] for name in PROCESS] == pytest.approx([own[name] for name in PROCESS])

    open_passes = []
    for step in range(60):
        passed = ledger.begin(known[step % 3])
        for _ in range(step % 4):
            answer(passed)
            check()
        open_passes.append(passed)
        if step % 5 == 0:
            ledger.moved(open_passes[-1], Key("Loader", "line 1", THEIRS, "not done"))
        if step % 3:
            open_passes.pop(step % len(open_passes)).end()
        check()
    assert 3 < len(ledger._running.keys) < 40  # records are lent again


def test_a_forked_process_leaves_its_parents_numbers_alone(tmp_path):
    ledger = Ledger(tmp_path)
    passed = ledger.begin(known := DataLoader(torch.arange(9)))
    passed.answered(time.perf_counter_ns(), delivered=True)
    child = os.fork()
    if not child:
        for _ in range(3):
            passed.answered(time.perf_counter_ns(), delivered=True)
        ledger.begin(known).answered(time.perf_counter_ns(), delivered=True)
        os._exit(0)
    os.waitpid(child, 0)
    counts = [numbers_of(tmp_path, pid)["lines"][0]["batches"] for pid in (None, child)]
    assert counts == [1, 1]


def test_more_passes_than_records(tmp_path, monkeypatch):
    monkeypatch.setattr("pagraph.run.running._MOST", 2)
    ledger = Ledger(tmp_path)
    known = [DataLoader(torch.arange(2)) for _ in range(4)]
    passes = [ledger.begin(loader) for loader in known]
    for passed in passes:
        passed.answered(time.perf_counter_ns(), delivered=True)
    assert sum(line["batches"] for line in numbers_of(tmp_path)["lines"]) == 2  # not written yet
    ledger.flush()
    for passed in passes:
        assert of_all(tmp_path) == of_all(tmp_path, ledger) == (4, 4)
        passed.end()
    ledger.flush()
    assert of_all(tmp_path) == of_all(tmp_path, ledger) == (4, 4)
    ledger.begin(known[0]).answered(time.perf_counter_ns(), delivered=True)
    assert of_all(tmp_path) == of_all(tmp_path, ledger) == (5, 5)  # in a record that is free again
    assert numbers_of(tmp_path)["waited"] == pytest.approx(ledger.snapshot()["waited"])


def of_all(folder, ledger=None):
    """Epochs and batches of all lines: by the ledger, or as another process finds them."""
    part = ledger.snapshot() if ledger else numbers_of(folder)
    return tuple(sum(line[name] for line in part["lines"]) for name in ("epochs", "batches"))


def test_without_room_for_records_numbers_are_written_now_and_then(tmp_path, monkeypatch):
    def refuse(*arguments):
        raise OSError("no space left")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    ledger = Ledger(tmp_path)
    ledger.begin(DataLoader(torch.arange(2))).answered(time.perf_counter_ns(), delivered=True)
    ledger.flush()
    assert [line["batches"] for line in numbers_of(tmp_path)["lines"]] == [1]


def test_the_place_is_relative():
    name, _, line = made_at().rpartition(":")
    assert name.endswith("test_run_ledger.py") and line.isdigit()


def test_a_hook_calls_when_the_code_has_run_and_changes_nothing_else(tmp_path, monkeypatch):
    (tmp_path / "awaited.py").write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    found = []
    hook = ImportHook({"awaited": found.append}, {"awaited": found.append})
    hook.install()
    try:
        import awaited

        spec, module = found
        assert module is awaited and module.VALUE == 1
        assert spec.name == "awaited"
        assert "exec_module" not in vars(awaited.__spec__.loader)
        again = ImportHook({}, {"awaited": found.append})
        again.install()  # it is there already
        again.remove()
        assert found[2] is awaited
    finally:
        hook.remove()


def summary(*lines, seconds=10.0, seen=("PyG",), **more):
    found = dict(lines)
    waited = sum(line.waited for line in found.values())
    return Summary(found, seconds, waited, seen=seen, **more)


OUR_KEY = Key("NeighborLoader", "a.py:3", OURS)
THEIR_KEY_ENDS = (THEIRS, "torch's loader, no graph's")
THEIR_KEY = Key("DataLoader", "a.py:5", *THEIR_KEY_ENDS)


@pytest.mark.parametrize(
    ("told", "advice"),
    [
        (summary(seen=()), "imported neither DGL nor PyG"),
        (summary(), "imported PyG, and made no loader"),
        (summary((OUR_KEY, Line(loaders=1))), "No loader was read"),
        (summary((OUR_KEY, Line(1, 3, 9, 0.5, 0.1))), "5.0%): loading keeps up"),
        (summary((OUR_KEY, Line(1, 3, 9, 0.3, 0.1)), seconds=0.4), "75.0%): too short to tell"),
        (summary((OUR_KEY, Line(1, 3, 9, 7.0, 6.0))), "6.00 s of it in first epochs"),
        (summary((OUR_KEY, Line(1, 3, 9, 7.0, 2.0))), "try --num-workers"),
        (summary((OUR_KEY, Line(1, 3, 9, 7.0, 2.0, 100, 20))), "serves 20.0% of the rows"),
        (
            summary((OUR_KEY, Line(1, 3, 9, 1.0, 0.1)), (THEIR_KEY, Line(1, 1, 1, 6.0, 6.0))),
            "most of it for DataLoader at a.py:5, which keeps its own loader (torch's loader",
        ),
        (
            summary((THEIR_KEY, Line(1, 2, 9, 7.0, 2.0)), theirs=True),
            "without --theirs pagraph's loaders replace these",
        ),
        (
            summary(
                (Key("DataLoader", "a.py:3", OURS, "the sampler X runs its own code"), Line(1, 2, 9, 7.0, 2.0))
            ),
            "--num-workers 1 runs it ahead",
        ),
    ],
)  # fmt: skip
def test_advice_follows_from_the_numbers(told, advice):
    assert advice in told.advice
    assert "\n" not in told.advice
    assert told.advice in str(told)


KEEPS_UP = (OUR_KEY, Line(1, 3, 9, 0.5, 0.1))


def test_a_busy_machine_is_told_and_is_not_the_models_fault():
    quiet = summary(KEEPS_UP, others=0.05)
    assert "other programs" not in str(quiet) and "keeps up" in quiet.advice
    noticed = summary(KEEPS_UP, others=0.2)
    assert "other programs had 20.0% of the processors" in str(noticed)
    assert "keeps up" in noticed.advice
    busy = summary(KEEPS_UP, others=0.5)
    assert "50.0%" in str(busy.table) and "on a busy machine" in busy.advice
    assert "model" not in busy.advice
    assert "50.0%" in str(compared([quiet], [busy])) and "50.0%" in page_text(busy)
    assert "50.0%" in busy._repr_html_()


@pytest.mark.parametrize("policy", [None, "active"])
def test_on_a_busy_machine_threads_that_wait_may_rest(monkeypatch, policy):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    if policy is not None:
        monkeypatch.setenv("OMP_WAIT_POLICY", policy)
    assert ("OMP_WAIT_POLICY=passive" in str(summary(KEEPS_UP, others=0.2))) == (policy is None)
    assert "OMP_WAIT_POLICY" not in str(summary(KEEPS_UP, others=0.05))


@pytest.mark.parametrize(
    ("code", "ended"),
    [
        (3, "ended with exit code 3: E: x"),
        (-11, "was ended by SIGSEGV: E: x"),
        (-40, "was ended by signal 40: E: x"),
        (None, "was killed or crashed: E: x"),
    ],
)
def test_a_failure_is_the_first_line_and_nothing_is_advised(code, ended):
    told = summary(KEEPS_UP, exit_code=code, error="E: x")
    first, second, *_ = str(told).splitlines()
    assert first == f"pagraph run: the script {ended}"
    assert second == "until then, pagraph's loaders in place of theirs"
    assert told.advice == "" and "loop waited" not in str(told)
    assert str(summary(exit_code=code, error="E: x")) == first
    assert f"It {ended}." in page_text(told).replace("&#39;", "'")


def test_numbers_that_were_enough_to_interrupt_the_script_have_an_advice():
    assert "keeps up" in summary(KEEPS_UP, exit_code=-signal.SIGINT).advice
    assert summary(KEEPS_UP, exit_code=-signal.SIGINT, seconds=0.9).advice == ""


def test_all_numbers_come_back_from_a_file():
    told = summary(KEEPS_UP, others=0.3, exit_code=-9, error="E", theirs=True, processes=2)
    saved = json.loads(json.dumps(told.to_json()))
    assert saved["others"] == 0.3 and saved["exit_code"] == -9
    assert Summary.from_json(saved).to_json() == told.to_json()


def test_other_programs_are_measured_while_loaders_are_read(monkeypatch):
    looks = []
    monkeypatch.setattr(OtherPrograms, "see", lambda self, at_once=False: looks.append(at_once))
    monkeypatch.setattr(OtherPrograms, "share", 0.4)
    ledger = Ledger()
    assert looks == []
    passed = ledger.begin(DataLoader(Slow()))
    assert looks == [False]
    passed.answered(time.perf_counter_ns(), delivered=True)
    assert looks == [False, False]
    part = ledger.snapshot()  # nothing was seen of the time
    assert looks == [False, False, True] and part["others"] == 0.4
    assert Summary.of([part], theirs=False, name="script.py").others == 0.4


def test_a_long_place_is_shortened_in_the_table_alone():
    place = "project/source/loading/neighbours.py:123"
    told = summary((Key("DataLoader", place, THEIRS, "why"), Line(1, 1, 1, 1.0, 1.0)))
    row, note, *_ = str(told).splitlines()[2:]
    assert row.split()[1] == ".../loading/neighbours.py:123" and place in note


def test_the_table_has_a_line_each_and_all_of_them():
    told = summary(
        (OUR_KEY, Line(2, 3, 9, 4.0, 1.0, 100, 20)), (THEIR_KEY, Line(1, 1, 1, 1.0, 1.0))
    )
    text = str(told.table).splitlines()
    assert text[1].split("  ")[0] == "loader"
    assert "NeighborLoader x 2" in text[2] and "40.0%" in text[2] and "20.0%" in text[2]
    assert text[4].startswith("all") and "50.0%" in text[4]
    assert text[5] == "DataLoader at a.py:5 keeps its own loader: torch's loader, no graph's"
    assert "<table>" in told._repr_html_()


@pytest.mark.parametrize("columns", [80, 100])
def test_a_narrow_terminal_has_all_of_it(columns):
    place = "examples/of/a/project/with/many/folders/train.py:123"
    ours, theirs = Line(2, 3, 1009, 4.0, 1.0, 100, 20, 1.25), Line(1, 1, 1, 1.0, 1.0)
    keys = [Key("LinkNeighborLoader", place, OURS), Key("DataLoader", place, *THEIR_KEY_ENDS)]
    told = summary((keys[0], ours), (keys[1], theirs), kernels=1.25)
    for whole, narrow in (
        (told.text(), told.text(columns)),
        (compared([told], [told]).text(), compared([told], [told]).text(columns)),
    ):
        assert max(map(len, whole.splitlines())) > columns
        assert max(map(len, narrow.splitlines())) <= columns
        assert not Counter("".join(whole.split())) - Counter("".join(narrow.split()))
        numbers = Counter(re.findall(r"(?<= )[\d.,]+%?(?=[ \n])", whole))
        assert not numbers - Counter(re.findall(r"(?<= )[\d.,]+%?(?=[ \n])", narrow))


def test_two_ways_side_by_side():
    def ran(who, seconds):
        kernels = 0.25 if who == OURS else 0.0
        line = Line(1, 1, 5, seconds, 0.0, kernels=kernels)
        return summary((Key("NeighborLoader", "a.py:3", who), line), kernels=kernels)

    theirs = [ran(THEIRS, seconds) for seconds in (4.0, 6.0, 5.0)]
    ours = [ran(OURS, seconds) for seconds in (1.0, 0.5, 3.0)]
    text = str(compared(theirs, ours))
    assert "medians of 3 runs each way" in text
    lines = [line.split() for line in text.splitlines()]
    assert ["NeighborLoader", "a.py:3", "5.000", "1.000", "0.250", "yes"] in lines
    assert ["all", "5.000", "1.000", "0.250"] in lines
    assert "waits 5.0x less" in text and "loading kernels takes 0.25 s besides" in text
