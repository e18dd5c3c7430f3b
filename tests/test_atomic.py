"""Folders and JSON files appear whole or not at all, whatever kills the writer."""

import errno
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from fresh_processes import HANGING

from pagraph.system.atomic import (
    check_absent,
    check_writable,
    is_unfinished,
    new_file,
    new_folder,
    write_json,
)

SLOW_WRITER = """
import sys, time
from pagraph.system.atomic import check_absent, check_writable, is_unfinished, new_file, new_folder, write_json
with new_folder(sys.argv[1]) as part:
    (part / "a.txt").write_text("half")
    print(part, flush=True)
    time.sleep(60)
"""


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


class TestNewFolder:
    def test_appears_with_everything_in_it(self, tmp_path):
        target = tmp_path / "out"
        with new_folder(target) as part:
            (part / "a.txt").write_text("a")
            (part / "sub").mkdir()
            (part / "sub" / "b.txt").write_text("b")
            assert not target.exists()
            assert is_unfinished(part)
        assert names(tmp_path) == ["out"]
        assert (target / "sub" / "b.txt").read_text() == "b"
        assert not is_unfinished(target)

    @pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
    def test_failure_leaves_nothing(self, tmp_path, error):
        with pytest.raises(error), new_folder(tmp_path / "out") as part:
            (part / "a.txt").write_text("a")
            raise error
        assert names(tmp_path) == []

    def test_ctrl_c_as_it_is_made_leaves_nothing(self, tmp_path, monkeypatch):
        make = Path.mkdir

        def interrupted(path, **options):
            make(path, **options)
            if is_unfinished(path):
                raise KeyboardInterrupt

        monkeypatch.setattr(Path, "mkdir", interrupted)
        with pytest.raises(KeyboardInterrupt), new_folder(tmp_path / "out"):
            pytest.fail("the block must not run")
        assert names(tmp_path) == []

    def test_a_full_disk_says_where(self, tmp_path):
        target = tmp_path / "out"
        with (
            pytest.raises(OSError, match=f"No space left on device: '{target}'"),
            new_folder(target),
        ):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with pytest.raises(FileNotFoundError, match="'elsewhere'"), new_folder(tmp_path / "out"):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "elsewhere")

    @pytest.mark.parametrize("kind", ["folder", "file", "dangling link"])
    def test_refuses_what_exists(self, tmp_path, kind):
        target = tmp_path / "out"
        make = {
            "folder": target.mkdir,
            "file": target.touch,
            "dangling link": lambda: target.symlink_to(tmp_path / "nowhere"),
        }
        make[kind]()
        with pytest.raises(FileExistsError, match=f"folder must not exist yet, got '{target}'"):
            check_absent(target)
        with pytest.raises(FileExistsError), new_folder(target):
            pytest.fail("the block must not run")
        assert names(tmp_path) == ["out"]

    def test_a_folder_that_appears_meanwhile_is_kept(self, tmp_path):
        target = tmp_path / "out"
        with pytest.raises(FileExistsError), new_folder(target) as part:
            (part / "mine.txt").touch()
            target.mkdir()
            (target / "theirs.txt").touch()
        assert names(target) == ["theirs.txt"]
        assert names(tmp_path) == ["out"]

    def test_creates_the_folders_above(self, tmp_path):
        with new_folder(tmp_path / "a" / "b" / "out") as part:
            (part / "x").touch()
        assert names(tmp_path / "a" / "b") == ["out"]

    def test_permissions_follow_the_umask(self, tmp_path):
        with new_folder(tmp_path / "out"):
            pass
        (tmp_path / "plain").mkdir()
        assert (tmp_path / "out").stat().st_mode == (tmp_path / "plain").stat().st_mode

    def test_relative_path(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        with new_folder("out") as part:
            (part / "x").touch()
        assert names(tmp_path / "out") == ["x"]

    def test_name_with_odd_characters(self, tmp_path):
        for name in ("a [1]*?", "-", "ü"):
            with new_folder(tmp_path / name):
                pass
            assert (tmp_path / name).is_dir()


class TestKilledWriter:
    def start(self, target):
        writer = subprocess.Popen(
            [sys.executable, "-c", SLOW_WRITER, str(target)], stdout=subprocess.PIPE, text=True
        )
        part = writer.stdout.readline().strip()
        assert is_unfinished(part)
        return writer, part

    def end(self, writer, how):
        writer.send_signal(how)
        writer.wait(timeout=HANGING)
        writer.stdout.close()

    def test_leaves_nothing_under_the_name_and_the_next_writer_cleans_up(self, tmp_path):
        target = tmp_path / "out"
        writer, part = self.start(target)
        self.end(writer, signal.SIGKILL)
        assert not target.exists()
        assert os.path.isdir(part)
        with new_folder(target) as mine:
            (mine / "b.txt").touch()
        assert names(tmp_path) == ["out"]
        assert names(target) == ["b.txt"]

    def test_ctrl_c_leaves_nothing(self, tmp_path):
        writer, _ = self.start(tmp_path / "out")
        self.end(writer, signal.SIGINT)
        assert names(tmp_path) == []

    def test_a_living_writer_is_left_alone(self, tmp_path):
        target = tmp_path / "out"
        writer, part = self.start(target)
        try:
            with new_folder(target):
                pass
            assert os.path.isfile(os.path.join(part, "a.txt"))
        finally:
            self.end(writer, signal.SIGKILL)


class TestNewFile:
    def test_appears_whole(self, tmp_path):
        path = tmp_path / "a"
        path.write_bytes(b"old")
        with new_file(path) as file:
            file.write(b"new")
            assert path.read_bytes() == b"old"
        assert path.read_bytes() == b"new"
        assert names(tmp_path) == ["a"]

    def test_failure_leaves_the_old_file_or_none(self, tmp_path):
        for path in (tmp_path / "a", tmp_path / "none"):
            (tmp_path / "a").write_bytes(b"old")
            with pytest.raises(ZeroDivisionError), new_file(path) as file:
                file.write(b"half")
                raise ZeroDivisionError
        assert names(tmp_path) == ["a"]
        assert (tmp_path / "a").read_bytes() == b"old"


@pytest.mark.parametrize("kind", ["device", "link"])
def test_a_full_device_says_where(tmp_path, kind):
    path = "/dev/full"
    if kind == "link":
        path = tmp_path / "link"
        path.symlink_to("/dev/full")
    with pytest.raises(OSError, match=f"No space left on device: '{path}'"):
        write_json(path, {})
    with pytest.raises(OSError, match=f"No space left on device: '{path}'"), new_file(path) as file:
        torch.save(torch.zeros(100_000), file)  # which raises a RuntimeError of its own


class TestCheckWritable:
    def test_leaves_nothing(self, tmp_path):
        (tmp_path / "old").write_bytes(b"old")
        assert check_writable("out", tmp_path / "old") == tmp_path / "old"
        assert check_writable("out", tmp_path / "new") == tmp_path / "new"
        assert names(tmp_path) == ["old"]
        assert (tmp_path / "old").read_bytes() == b"old"

    def test_devices_are_written_directly(self):
        assert str(check_writable("out", "/dev/null")) == "/dev/null"

    def test_a_name_that_is_too_long(self, tmp_path):
        with pytest.raises(OSError, match="out must be writable, got '.*aaa': File name too long"):
            check_writable("out", tmp_path / ("a" * 250))


class TestWriteJson:
    def test_round_trip_and_replacement(self, tmp_path):
        path = tmp_path / "a.json"
        write_json(path, {"a": [1, 2.5, None, "ü"]})
        write_json(path, {"b": (True,)})
        assert json.loads(path.read_text()) == {"b": [True]}
        assert names(tmp_path) == ["a.json"]

    def test_what_json_lacks_becomes_null(self, tmp_path):
        path = tmp_path / "a.json"
        write_json(path, {"loss": [1.0, float("nan"), (float("inf"),)]})
        assert json.loads(path.read_text()) == {"loss": [1.0, None, [None]]}

    def test_failure_keeps_the_old_file(self, tmp_path):
        path = tmp_path / "a.json"
        write_json(path, 1)
        with pytest.raises(TypeError):
            write_json(path, {"x": object()})
        assert path.read_text() == "1\n"
        assert names(tmp_path) == ["a.json"]

    def test_missing_folder(self, tmp_path):
        with pytest.raises(FileNotFoundError):
            write_json(tmp_path / "no" / "a.json", 1)

    def test_follows_a_link(self, tmp_path):
        (tmp_path / "link").symlink_to(tmp_path / "real.json")
        write_json(tmp_path / "link", 5)
        assert (tmp_path / "real.json").read_text() == "5\n"
        assert (tmp_path / "link").is_symlink()

    def test_a_pipe_is_written_directly(self, tmp_path):
        path = tmp_path / "pipe"
        os.mkfifo(path)
        seen = []
        reader = threading.Thread(target=lambda: seen.append(path.read_text()))
        reader.start()
        write_json(path, [1])
        reader.join(timeout=HANGING)
        assert json.loads(seen[0]) == [1]


class TestLeftovers:
    def test_a_killed_writers_file_is_removed_by_the_next(self, tmp_path):
        left = tmp_path / ".out.json.0123abcd.partial"
        left.write_text("half")
        write_json(tmp_path / "out.json", {})
        assert names(tmp_path) == ["out.json"]

    def test_a_living_writers_file_stays(self, tmp_path):
        with new_file(tmp_path / "out.json") as first:
            first.write(b"first")
            first.flush()
            write_json(tmp_path / "out.json", {})
            assert len(names(tmp_path)) == 2
        assert (tmp_path / "out.json").read_text() == "first"

    @pytest.mark.parametrize("make", [lambda path: path.touch(), lambda path: path.mkdir()])
    def test_what_is_empty_may_be_new(self, tmp_path, make):
        left = tmp_path / ".out.json.0123abcd.partial"
        make(left)
        write_json(tmp_path / "out.json", {})
        assert left.exists()
        os.utime(left, (0, 0))
        write_json(tmp_path / "out.json", {})
        assert names(tmp_path) == ["out.json"]

    def test_pipes_and_links_are_nobodys(self, tmp_path):
        os.mkfifo(tmp_path / ".out.json.0123abcd.partial")
        (tmp_path / ".out.json.1123abcd.partial").symlink_to(tmp_path / "elsewhere")
        write_json(tmp_path / "out.json", {})
        assert len(names(tmp_path)) == 3


def test_a_second_writer_leaves_what_the_first_puts_in_place(tmp_path, monkeypatch):
    replace = os.replace

    def after_another(part, target):
        monkeypatch.setattr(os, "replace", replace)
        with new_file(tmp_path / "a") as file:
            file.write(b"the other's")
        replace(part, target)

    monkeypatch.setattr(os, "replace", after_another)
    with new_file(tmp_path / "a") as file:
        file.write(b"the first's")
    assert (tmp_path / "a").read_bytes() == b"the first's"
    assert os.listdir(tmp_path) == ["a"]
