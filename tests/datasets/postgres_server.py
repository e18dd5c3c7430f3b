"""A PostgreSQL server that tests and benchmarks start in a folder of its own."""

import contextlib
import glob
import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path

PASSWORD = "se/cr@t w%rd"
QUOTED = "se%2Fcr%40t%20w%25rd"


class Server:
    """A server in a folder of its own, reached by a socket there and on the loopback."""

    def __init__(self, programs, folder, user):
        self._programs = programs
        self._user = user
        self.folder = folder
        self.port = 20_000 + os.getpid() % 20_000
        (folder / "word").write_text(PASSWORD)
        if user is not None:
            shutil.chown(folder, user)
            shutil.chown(folder / "word", user)
        where = ["-D", str(folder / "data")]
        more = ["-U", "owner", "--auth=scram-sha-256", f"--pwfile={folder / 'word'}", "-N"]
        self.call("initdb", *where, *more, "-E", "UTF8", "--locale=C")
        self.start()

    def start(self):
        options = f"-p {self.port} -k {self.folder} -c listen_addresses=127.0.0.1 -c fsync=off"
        where = ["-D", str(self.folder / "data"), "-l", str(self.folder / "log")]
        self.call("pg_ctl", *where, "-o", options, "-w", "start")

    def stop(self, how="fast"):
        self.call("pg_ctl", "-D", str(self.folder / "data"), "-m", how, "-w", "stop")

    def call(self, program, *arguments):
        command = [str(Path(self._programs) / program), *arguments]
        # The server refuses to run as root.
        more = {} if self._user is None else {"user": self._user, "group": self._user}
        done = subprocess.run(
            command, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **more
        )
        assert done.returncode == 0, done.stdout

    def url(self, name="postgres", user="owner", password=QUOTED):
        return f"postgresql://{user}:{password}@127.0.0.1:{self.port}/{name}"

    def run(self, script, name="postgres"):
        """Run a script of statements; the rows of one that has some."""
        # Late: tests are skipped where a driver is missing.
        import adbc_driver_manager as adbc
        import adbc_driver_postgresql as driver
        import nanoarrow

        with (
            adbc.AdbcDatabase(driver=driver._driver_path(), uri=self.url(name)) as database,
            adbc.AdbcConnection(database) as link,
        ):
            for statement in filter(None, map(str.strip, script.split(";\n"))):
                with adbc.AdbcStatement(link) as asked:
                    asked.set_sql_query(statement)
                    stream, _ = asked.execute_query()
                    rows = nanoarrow.ArrayStream(stream).read_all().to_pylist()
        return rows


@contextlib.contextmanager
def running_server():
    """Start a server and stop it; LookupError where none can be."""
    found = [*sorted(glob.glob("/usr/lib/postgresql/*/bin"), reverse=True)]
    on_path = shutil.which("initdb")
    found += [] if on_path is None else [str(Path(os.path.realpath(on_path)).parent)]
    if not found:
        raise LookupError("needs PostgreSQL's initdb and pg_ctl")
    user = None
    if os.getuid() == 0:
        names = [
            name for name in ("postgres", "nobody") if name in {u.pw_name for u in pwd.getpwall()}
        ]
        if not names:
            raise LookupError("needs a user other than root, as PostgreSQL does")
        user = names[0]
    # A socket's path is short, and other users may enter no folder of pytest's.
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    started = None
    try:
        started = Server(found[0], folder, user)
        yield started
    finally:
        if started is not None:
            started.stop("immediate")
        shutil.rmtree(folder)
