"""Where compiled kernels are kept: numba unpickles them, so nobody else may put any there."""

import errno
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from fresh_processes import bare_python

import pagraph
from pagraph import _compiling, _jit, _kernel_folder, warmup
from pagraph._kernel_files import KernelFiles, new_private_file
from pagraph.errors import PaGraphError

as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root has folders of other users")
OTHER = 12345


@pytest.fixture(autouse=True)
def folders(monkeypatch, tmp_path):
    """A home that others may enter, a folder that users share, and nothing else given."""
    monkeypatch.setattr(_kernel_folder, "_SHARED", (str(tmp_path / "shared"),))
    for name in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for folder in (tmp_path, tmp_path / "home", tmp_path / "given", tmp_path / "shared"):
        folder.mkdir(exist_ok=True)
        folder.chmod(0o755)
    (tmp_path / "shared").chmod(0o1777)


@pytest.fixture
def entered(tmp_path_factory):
    """All above the test's folder may be entered, as a home's parents may be."""
    closed = [
        (part, part.stat().st_mode & 0o7777) for part in tmp_path_factory.getbasetemp().parents
    ]
    closed.append(
        (tmp_path_factory.getbasetemp(), tmp_path_factory.getbasetemp().stat().st_mode & 0o7777)
    )
    changed = [
        (part, mode) for part, mode in closed if mode & 0o011 != 0o011 and os.access(part, os.W_OK)
    ]
    for part, mode in changed:
        part.chmod(mode | 0o011)
    yield
    for part, mode in changed:
        part.chmod(mode)


@pytest.fixture
def loose_umask():
    before = os.umask(0)
    yield
    os.umask(before)


def add_two(array):
    return array + 2


def is_below(folder, root):
    return Path(folder).is_relative_to(root / "pagraph")


def chosen():
    """The folder, whose choice gives no warning."""
    found = _kernel_folder._choose()
    assert found.warning == "" and bool(found.path) == (found.why_not_kept() == "")
    return found.path


def is_shared(folder, tmp_path):
    """Whether it is this user's in the folder that all share, and nobody else's."""
    own = tmp_path / "shared" / f"pagraph-{os.getuid()}"
    modes = {part.stat().st_mode & 0o7777 for part in (own, Path(folder))}
    return Path(folder).parent == own and modes == {0o700}


def test_the_users_own(monkeypatch, tmp_path, loose_umask):
    assert is_below(chosen(), tmp_path / "home" / ".cache")
    for name in ("XDG_CACHE_HOME", "NUMBA_CACHE_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name / "new"))
        folder = chosen()
        assert is_below(folder, tmp_path / name / "new")
        for part in (Path(folder), *Path(folder).parents[:3]):
            assert part.stat().st_mode & 0o7777 == 0o700


def test_relative_ones_are_none(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path / "given")
    for name in ("HOME", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR"):
        monkeypatch.setenv(name, "some/folder")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # no HOME, and no entry in passwd
    assert is_shared(chosen(), tmp_path) and not list((tmp_path / "given").iterdir())


@pytest.mark.parametrize("mode", [0o775, 0o2775, 0o777])
def test_where_others_may_write_to_the_home(tmp_path, entered, loose_umask, mode):
    """As its group may where each user has one, or in containers: there is no reason to warn."""
    (tmp_path / "home").chmod(mode)
    folder = chosen()
    assert is_shared(folder, tmp_path) and chosen() == folder
    assert list((tmp_path / "home").iterdir()) == []


def test_a_home_that_is_not_there_is_not_made(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "nonexistent"))
    assert is_shared(chosen(), tmp_path) and not (tmp_path / "nonexistent").exists()


def test_a_home_that_cannot_be_written_to(monkeypatch, tmp_path):
    def readonly(folder, how):
        return how != os.W_OK or not folder.startswith(str(tmp_path / "home"))

    monkeypatch.setattr(os, "access", readonly)
    assert is_shared(chosen(), tmp_path)
    (tmp_path / "home" / ".cache" / "pagraph").rename(tmp_path / "away")
    (tmp_path / "home" / ".cache" / "pagraph").touch()  # nor made in
    assert is_shared(chosen(), tmp_path)


def unusable(tmp_path):
    """Why the folder that all share is not taken; there is no other."""
    (tmp_path / "home").chmod(0o777)
    found = _kernel_folder._choose()
    assert found.path == "" and found.count() == 0
    home, shared = found.refused
    assert home == f"others may write to {tmp_path / 'home'}" and home in found.warning
    return shared


def test_a_shared_folder_that_is_not_sticky(tmp_path, entered):
    (tmp_path / "shared").chmod(0o777)
    assert unusable(tmp_path) == f"others may write to {tmp_path / 'shared'}"


def test_one_of_another_user_in_the_shared_folder(tmp_path, entered):
    """Whoever comes first can keep us out, and have us trust nothing."""
    own = tmp_path / "shared" / f"pagraph-{os.getuid()}"
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    own.symlink_to(tmp_path / "elsewhere")
    assert unusable(tmp_path) == f"not a folder: {own}"
    own.unlink()
    own.touch()
    assert unusable(tmp_path) == f"not a folder: {own}"
    own.unlink()
    own.mkdir()
    own.chmod(0o770)
    assert unusable(tmp_path) == f"others may write to {own}"
    if os.getuid() == 0:
        own.chmod(0o700)
        os.chown(own, OTHER, OTHER)
        assert unusable(tmp_path) == f"{own} belongs to the user {OTHER}"
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_link_to_the_shared_folder_is_the_systems(monkeypatch, tmp_path, entered):
    """As /var/tmp is on a Mac."""
    (tmp_path / "link").symlink_to(tmp_path / "shared")
    monkeypatch.setattr(_kernel_folder, "_SHARED", (str(tmp_path / "link"),))
    (tmp_path / "home").chmod(0o777)
    assert is_shared(chosen(), tmp_path)


REFUSED = "compiled kernels must be in a folder that nobody else may write to or rename, "


def refused(monkeypatch, folder, why):
    """Whether a folder is not taken, with a warning that says why."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(folder))
    found = _kernel_folder._choose()
    assert found.warning == f"{REFUSED}{why}: they are in {found.path} instead"
    return is_below(found.path, Path(os.environ["HOME"]) / ".cache")


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o757])
@pytest.mark.parametrize("place", ["given", "given/between", "given/between/last"])
def test_one_that_others_may_write_to_is_not_read(monkeypatch, tmp_path, entered, mode, place):
    """Nor one whose folder they may rename, at any height."""
    last = tmp_path / "given" / "between" / "last"
    last.mkdir(parents=True)
    for part in (last, last.parent):
        part.chmod(0o755)
    (tmp_path / place).chmod(mode)
    assert refused(monkeypatch, last, f"others may write to {tmp_path / place}")
    (tmp_path / place).chmod(mode | 0o1000)  # sticky: nobody renames what is not theirs
    assert is_below(chosen(), last)


@as_root
@pytest.mark.parametrize("place", ["given", "given/between", "given/between/pagraph"])
def test_one_that_belongs_to_another_user(monkeypatch, tmp_path, entered, place):
    last = tmp_path / "given" / "between"
    (last / "pagraph").mkdir(parents=True, mode=0o755)
    (tmp_path / "given").chmod(0o1777)
    os.chown(tmp_path / place, OTHER, OTHER)
    assert refused(monkeypatch, last, f"{tmp_path / place} belongs to the user {OTHER}")


def test_below_one_that_others_cannot_enter_they_reach_nothing(monkeypatch, tmp_path):
    (tmp_path / "given").chmod(0o700)
    (tmp_path / "given" / "loose").mkdir()
    (tmp_path / "given" / "loose").chmod(0o777)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "given" / "loose"))
    assert is_below(chosen(), tmp_path / "given" / "loose")


def test_links_are_followed_first(monkeypatch, tmp_path, entered):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path / "open")
    assert refused(monkeypatch, tmp_path / "link", f"others may write to {tmp_path / 'open'}")
    (tmp_path / "open" / "back").symlink_to(tmp_path / "given")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "open" / "back"))
    # Not by way of the link, which others may replace.
    assert is_below(chosen(), tmp_path / "given")


def test_one_that_was_opened_later(monkeypatch, tmp_path, entered):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "given"))
    folder = Path(chosen())
    folder.chmod(0o755)
    folder.parent.chmod(0o755)
    assert refused(monkeypatch, tmp_path / "given", f"others may enter {folder}")


@pytest.fixture
def kept_nowhere(monkeypatch, tmp_path, entered):
    (tmp_path / "home").chmod(0o777)
    (tmp_path / "shared").rmdir()
    found = _kernel_folder._choose()
    monkeypatch.setattr(_jit, "_CACHE_DIR", found.path)
    for module in (_kernel_folder, _compiling):
        monkeypatch.setattr(module, "kernel_folder", lambda: found)
    return found


def test_where_no_folder_is_private(tmp_path, kept_nowhere):
    """Kernels are compiled all the same, and kept nowhere."""
    why = f"others may write to {tmp_path / 'home'}"
    advice = "set XDG_CACHE_HOME to a folder that only you may write to"
    assert kept_nowhere.warning == f"{REFUSED}{why}: each process compiles them anew; {advice}"
    assert kept_nowhere.path == "" and kept_nowhere.count() == 0
    assert kept_nowhere.why_not_kept() == f"{why}; {advice}"
    assert not (tmp_path / "shared").exists()
    assert _jit.allocating_kernel(add_two)(np.zeros(2)).tolist() == [2, 2]


def test_nothing_is_said_to_be_kept_where_it_is_not(kept_nowhere):
    assert kept_nowhere.why_not_kept() in _compiling.compiling_words()
    assert "one-time" not in _compiling.compiling_words()
    assert "warmup" not in _compiling.compiling_words()
    with pytest.raises(PaGraphError) as refused:
        warmup.warm_up(["core"])
    assert kept_nowhere.why_not_kept() in str(refused.value)


def test_without_any_folder_there_is_nothing_to_warn_of(monkeypatch, tmp_path):
    """Such as in a container that can be written to nowhere."""
    monkeypatch.setenv("HOME", str(tmp_path / "nonexistent"))
    (tmp_path / "shared").rmdir()
    found = _kernel_folder._choose()
    assert (found.path, found.warning) == ("", "")
    assert found.why_not_kept().startswith("there is no home folder; set XDG_CACHE_HOME to ")


def test_a_full_disk_keeps_nothing(monkeypatch):
    found = _kernel_folder._choose()
    assert found.why_not_kept() == ""

    def full(**_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    assert found.why_not_kept().startswith(f"No space left on device in {found.path}; set XDG")


def test_without_its_compiler_numba_runs_no_kernel(monkeypatch):
    monkeypatch.setattr(_jit.numba.config, "DISABLE_JIT", 1)
    with pytest.raises(PaGraphError, match="NUMBA_DISABLE_JIT must be 0"):
        _jit.kernel(add_two)
    with pytest.raises(PaGraphError, match="NUMBA_DISABLE_JIT must be 0"):
        warmup.warm_up(["core"])


def test_a_folder_that_numba_chooses_is_not_used(monkeypatch, tmp_path):
    """As where it cannot write to ours."""
    monkeypatch.setattr(_jit, "_CACHE_DIR", str(tmp_path / "a file"))
    (tmp_path / "a file").touch()
    compiled = _jit.allocating_kernel(add_two)
    assert isinstance(compiled._cache, _jit.NullCache) and compiled(np.zeros(1)).tolist() == [2]


SCRIPT = """
import os, sys
os.umask(0)
import torch
from pagraph import Graph, _kernel_folder
_kernel_folder._SHARED = (sys.argv[1],)
from pagraph import _jit
many = torch.zeros(100_000, dtype=torch.int64)  # a few edges need no kernel
assert Graph.from_coo(many, many).csc.indices.tolist() == many.tolist()
print(_jit._CACHE_DIR)
"""
ATTACK = """
import os, sys
os.setgroups([])
os.setgid(12345)
os.setuid(12345)
for root in (sys.argv[1], sys.argv[2]):
    for folder, names, files in os.walk(root):
        assert not os.access(folder, os.W_OK), folder
        assert not any(os.access(os.path.join(folder, name), os.W_OK) for name in names + files), folder
try:
    os.listdir(sys.argv[2])
except PermissionError:
    print("kept out")
"""


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o077])
def test_whatever_the_umask_others_may_write_to_nothing(monkeypatch, tmp_path, umask):
    monkeypatch.setattr(_jit, "_CACHE_DIR", str(tmp_path / "given"))
    before = os.umask(umask)
    try:
        assert _jit.allocating_kernel(add_two)(np.zeros(1)).tolist() == [2]
    finally:
        os.umask(before)
    made = list((tmp_path / "given").glob("**/*"))
    assert {path.suffix for path in made} == {"", ".nbc"}
    modes = {path.suffix: path.stat().st_mode & 0o7777 for path in made}
    assert modes == {"": 0o700, ".nbc": 0o600}
    compiled = _jit.allocating_kernel(add_two)  # which finds them again
    assert compiled(np.zeros(1)).tolist() == [2]
    assert sum(compiled.stats.cache_hits.values()) == 1


def test_a_write_that_fails_leaves_nothing(tmp_path):
    with pytest.raises(OSError, match="full"), new_private_file(str(tmp_path / "a")) as file:
        file.write(b"x")
        raise OSError("full")
    assert [path for path in tmp_path.iterdir() if path.is_file()] == []


def flip(content, at):
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


DAMAGES = {
    "emptied": lambda content: b"",
    "cut in the digest": lambda content: content[:20],
    "cut in the middle": lambda content: content[: len(content) // 2],
    "cut by a byte": lambda content: content[:-1],
    "longer": lambda content: content + b"\0",
    "digest flipped": lambda content: flip(content, 3),
    "origin flipped": lambda content: flip(content, 40),
    "pickle flipped": lambda content: flip(content, 70),
    "code flipped": lambda content: flip(content, len(content) // 2),
    "last byte flipped": lambda content: flip(content, len(content) - 1),
    "zeroed": lambda content: bytes(len(content)),
    "a page zeroed": lambda content: content[:4096] + bytes(4096) + content[8192:],
    "another kernel's": lambda content: b"\x80\x04N.",
}


@pytest.fixture
def damaged(monkeypatch, tmp_path, capsys):
    """A function that damages a kernel's files, and loads it as the next process does."""
    monkeypatch.setattr(_jit, "_CACHE_DIR", str(tmp_path / "given"))
    monkeypatch.setattr(_compiling, "_damaged", [])
    monkeypatch.setattr(_compiling, "_said", [True])
    monkeypatch.delenv("PAGRAPH_QUIET", raising=False)
    values = [np.zeros(2), np.zeros(2, np.int64)]
    compiled = _jit.allocating_kernel(add_two)
    assert [compiled(each).tolist() for each in values] == [[2, 2], [2, 2]]
    files = sorted((tmp_path / "given").glob("**/*.nbc"))
    assert len(files) == 2

    def load(damage, files=files):
        for path in files:
            path.write_bytes(damage(path.read_bytes()))
        for hits, told in ((2 - len(files), 1), (2, 0)):
            _compiling._damaged.clear()
            compiled = _jit.allocating_kernel(add_two)
            results = [compiled(each) for each in values]
            assert [each.tolist() for each in results] == [[2, 2], [2, 2]]
            assert [each.dtype for each in results] == [np.float64, np.int64]
            assert sum(compiled.stats.cache_hits.values()) == hits
            said = capsys.readouterr().err
            assert said.count("\n") == said.count("compiling kernels again") == told, said
            assert not told or str(files[0].parent) in said

    return files, load


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_compiled_anew_and_said_once(damaged, damage):
    """Of machine code that is flipped, nothing may be loaded: it can crash the process."""
    _, load = damaged
    load(DAMAGES[damage])


def test_a_damaged_file_costs_no_other(damaged):
    files, load = damaged
    load(DAMAGES["code flipped"], files[:1])


def test_the_damage_is_not_said_where_nobody_listens(damaged, monkeypatch, capsys):
    files, _ = damaged
    files[0].write_bytes(b"")
    monkeypatch.setenv("PAGRAPH_QUIET", "1")
    assert _jit.allocating_kernel(add_two)(np.zeros(2)).tolist() == [2, 2]
    assert _jit.allocating_kernel(add_two)(np.zeros(2, np.int64)).tolist() == [2, 2]
    assert capsys.readouterr().err == ""


def test_forms_of_a_kernel_never_share_a_file(tmp_path):
    """As those of two processes may that compile at once, with numba's own index of files."""
    first, second = (KernelFiles(str(tmp_path / "kernel"), "source") for _ in range(2))
    first.save(("float64",), "of floats")
    second.save(("int64",), "of integers")
    for files in (first, second):
        assert [files.load((each,)) for each in ("float64", "int64", "int32")] == [
            "of floats",
            "of integers",
            None,
        ]


def test_a_file_of_another_source_is_replaced(tmp_path, capsys):
    KernelFiles(str(tmp_path / "kernel"), ("time", 1)).save(("int64",), "old")
    files = KernelFiles(str(tmp_path / "kernel"), ("time", 2))
    assert files.load(("int64",)) is None and capsys.readouterr().err == ""
    files.save(("int64",), "new")
    assert files.load(("int64",)) == "new" and len(list(tmp_path.glob("*.nbc"))) == 1


@pytest.mark.processes
@as_root
@pytest.mark.parametrize("place", ["given/pagraph", "shared/pagraph-0"])
def test_another_user_is_kept_out_whatever_the_umask(monkeypatch, tmp_path, entered, place):
    if place.startswith("given"):
        monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "given"))
    (tmp_path / "home").chmod(0o2775)
    path = os.pathsep.join([str(Path(pagraph.__file__).parents[1]), *filter(None, sys.path)])
    environment = os.environ | {"PYTHONPATH": path}
    done = subprocess.run(
        [bare_python(), "-W", "error", "-c", SCRIPT, str(tmp_path / "shared")],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    folder = done.stdout.strip()
    assert Path(folder).parent == tmp_path / place and list(Path(folder).glob("**/*.nbc"))
    attack = [sys.executable, "-c", ATTACK, str(tmp_path / place), folder]
    done = subprocess.run(attack, capture_output=True, text=True, cwd="/")
    assert done.stdout == "kept out\n", done.stderr
