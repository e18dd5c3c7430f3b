"""Where compiled kernels are kept: numba unpickles them, so nobody else may put any there."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from fresh_processes import bare_python

import pagraph
from pagraph import _jit

as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root has folders of other users")
OTHER = 12345


@pytest.fixture(autouse=True)
def folders(monkeypatch, tmp_path):
    """A home that others may enter, and nothing else given."""
    for name in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for folder in (tmp_path, tmp_path / "home", tmp_path / "given"):
        folder.mkdir(exist_ok=True)
        folder.chmod(0o755)


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


def test_the_users_own(monkeypatch, tmp_path, loose_umask):
    assert is_below(_jit._cache_dir(), tmp_path / "home" / ".cache")
    for name in ("XDG_CACHE_HOME", "NUMBA_CACHE_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name / "new"))
        folder = _jit._cache_dir()
        assert is_below(folder, tmp_path / name / "new")
        for part in (Path(folder), *Path(folder).parents[:3]):
            assert part.stat().st_mode & 0o7777 == 0o700


def test_relative_ones_are_none(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path / "given")
    for name in ("HOME", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR"):
        monkeypatch.setenv(name, "some/folder")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # no HOME, and no entry in passwd
    folder = _jit._cache_dir()
    assert os.path.isabs(folder) and not list((tmp_path / "given").iterdir())


REFUSED = "compiled kernels must be in a folder that nobody else may write to or rename, "


def refused(monkeypatch, folder, why):
    """Whether a folder is not taken, with a warning that says why."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(folder))
    with pytest.warns(
        RuntimeWarning, match=f"^{REFUSED}{why}: they are in .*/home/.cache/pagraph/.* instead$"
    ):
        found = _jit._cache_dir()
    return is_below(found, Path(os.environ["HOME"]) / ".cache")


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
    assert is_below(_jit._cache_dir(), last)


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
    assert is_below(_jit._cache_dir(), tmp_path / "given" / "loose")


def test_links_are_followed_first(monkeypatch, tmp_path, entered):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path / "open")
    assert refused(monkeypatch, tmp_path / "link", f"others may write to {tmp_path / 'open'}")
    (tmp_path / "open" / "back").symlink_to(tmp_path / "given")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "open" / "back"))
    # Not by way of the link, which others may replace.
    assert is_below(_jit._cache_dir(), tmp_path / "given")


def test_one_that_was_opened_later(monkeypatch, tmp_path, entered):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "given"))
    folder = Path(_jit._cache_dir())
    folder.chmod(0o755)
    folder.parent.chmod(0o755)
    assert refused(monkeypatch, tmp_path / "given", f"others may enter {folder}")


def test_where_no_folder_is_private(monkeypatch, tmp_path, entered):
    """Kernels are compiled all the same, and kept nowhere."""
    (tmp_path / "home").chmod(0o777)
    monkeypatch.setattr(_jit.tempfile, "tempdir", str(tmp_path / "home"))
    with pytest.warns(
        RuntimeWarning, match=f"{REFUSED}others may write to .*: each process compiles them anew$"
    ):
        folder = _jit._cache_dir()
    assert folder == "" and not list((tmp_path / "home").glob("pagraph-*"))
    monkeypatch.setattr(_jit, "_CACHE_DIR", "")
    assert _jit.allocating_kernel(add_two)(np.zeros(2)).tolist() == [2, 2]
    assert _jit.cache_state() == ("", False, 0)


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
from pagraph import Graph, _jit
many = torch.zeros(100_000, dtype=torch.int64)  # a few edges need no kernel
assert Graph.from_coo(many, many).csc.indices.tolist() == many.tolist()
print(_jit.cache_state()[0])
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


@pytest.mark.processes
@as_root
def test_another_user_is_kept_out_whatever_the_umask(monkeypatch, tmp_path, entered):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "given"))
    path = os.pathsep.join([str(Path(pagraph.__file__).parents[1]), *filter(None, sys.path)])
    environment = os.environ | {"PYTHONPATH": path}
    done = subprocess.run(
        [bare_python(), "-c", SCRIPT], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    folder = done.stdout.strip()
    assert is_below(folder, tmp_path / "given") and list(Path(folder).glob("**/*.nbc"))
    attack = [sys.executable, "-c", ATTACK, str(tmp_path / "given"), folder]
    done = subprocess.run(attack, capture_output=True, text=True, cwd="/")
    assert done.stdout == "kept out\n", done.stderr
