"""Locations of databases: the driver, its URI, and a name for errors without secrets."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from ...errors import FormatError
from ...system.checks import StrPath
from ...system.units import shortened

ENDINGS = (".db", ".sqlite", ".sqlite3", ".duckdb", ".ddb")
"""Endings of database files."""

_FILE_DRIVERS = ("sqlite", "duckdb")
_SERVERS = {"postgresql": "postgresql", "postgres": "postgresql"}
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)
# Magic bytes: SQLite's are the first, DuckDB's start at the ninth.
_SQLITE_MAGIC = b"SQLite format 3\0"
_DUCKDB_MAGIC = b"DUCK"
_MAGIC_AT = 8
_HIDDEN = "***"
# Secret options of URLs: `password`, `sslpassword`, and tokens and keys of other drivers.
_SECRET = re.compile("pass|pwd|token|secret|key", re.IGNORECASE)


@dataclass(frozen=True)
class Location:
    """The location of a database.

    Attributes:
        driver: "sqlite", "duckdb", "postgresql", or the name of another ADBC driver.
        uri: The driver's URI, perhaps with a password.
        shown: The same for people, without user, password and options.
        path: The file, if the database is one.
    """

    driver: str
    uri: str = field(repr=False)
    shown: str
    path: Path | None = None

    def without_secrets(self, text: str) -> str:
        """A driver's message, without the URL's secrets."""
        for secret in self._secrets():
            # Whole words only: hiding a one-letter password inside words would reveal it.
            text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", _HIDDEN, text)
        return text

    def _secrets(self) -> list[str]:
        if self.path is not None:
            return []
        parts = urlsplit(self.uri)
        found = {self.uri}
        for name, value in parse_qsl(parts.query):
            if _SECRET.search(name):
                found |= {value, quote(value, safe="")}
        if parts.password:
            found |= {parts.password, unquote(parts.password)}
        # Longest first, since a short secret may be part of a longer one.
        return sorted(filter(None, found), key=len, reverse=True)


def is_url(source: StrPath) -> bool:
    """Whether a source is the URL of a database rather than a path."""
    return _driver_of(str(source)) is not None


def is_database(source: StrPath) -> bool:
    """Whether a source is a database, by its name."""
    if is_url(source):
        return True
    # A graph folder may have any name.
    return str(source).lower().endswith(ENDINGS) and not Path(source).is_dir()


def location_of(source: StrPath) -> Location:
    """Parse a URL, or detect a file's database.

    Raises:
        FileNotFoundError: There is no such file.
        FormatError: The file is not a database.
        ValueError: The URL is malformed; the error does not repeat it.
    """
    text = str(source)
    driver = _driver_of(text)
    if driver is None:
        return _file(Path(text), "")
    scheme, rest = text.split(":", 1)
    if driver in _FILE_DRIVERS:
        if not rest.startswith("///") or len(rest) < 4:
            raise ValueError(f"source must be {driver}:///PATH for a file, got {shortened(text)!r}")
        return _file(Path(rest[3:]), driver)
    if scheme.lower() == "adbc":
        name, _, uri = rest.partition(":")
        if not name or not uri:
            raise ValueError("source must be adbc:DRIVER:URI, got a part of it")
        if name == "sqlite":
            return _file(Path(uri.removeprefix("file:")), name)
        return Location(_SERVERS.get(name.lower(), name), uri, f"adbc:{name}")
    return _server(text)


def shown_source(source: StrPath) -> str:
    """A source for people: a file's name, or a URL without user, password and options."""
    if _driver_of(str(source)) is None:
        return Path(source).name
    location = location_of(source)
    return location.path.name if location.path else location.shown


def _driver_of(text: str) -> str | None:
    """The driver of a URL; None for a path."""
    matched = _SCHEME.fullmatch(text)
    if matched is None:
        return None
    scheme = matched[1].lower()
    if scheme in (*_FILE_DRIVERS, "adbc"):
        return scheme
    # A path may also contain a colon.
    if not matched[2].startswith("//"):
        return None
    # SQLAlchemy appends its own drivers after a plus.
    scheme = scheme.partition("+")[0]
    if scheme in _SERVERS:
        return _SERVERS[scheme]
    # Without the URL, which may have a password.
    raise ValueError(
        "source must be sqlite:///PATH, duckdb:///PATH, postgresql://HOST/NAME, adbc:DRIVER:URI "
        f"or a path, got a URL of the form {shortened(scheme)}://"
    )


def _server(text: str) -> Location:
    scheme, rest = text.split(":", 1)
    uri = f"postgresql:{rest}"
    rule = "source must be postgresql://USER:PASSWORD@HOST:PORT/NAME"
    # Checked here, and without the text: libpq's errors quote parts that may be of the password.
    try:
        parts = urlsplit(uri)
        port = parts.port
    except ValueError:
        parts = None
    escaped = "with /, @, : and other signs of a password as %2F, %40, %3A"
    if parts is None or "@" in parts.path or "#" in uri or parts.netloc.count("@") > 1:
        raise ValueError(f"{rule}, {escaped}")
    if re.search(r"%(?![0-9A-Fa-f]{2})", uri):
        raise ValueError(f"{rule}, {escaped}, and % itself as %25")
    place = parts.hostname or ""
    if port is not None:
        place += f":{port}"
    return Location("postgresql", uri, f"postgresql://{place}{parts.path}")


def _file(path: Path, driver: str) -> Location:
    if not path.exists():
        absolute = Path(f"/{path}")
        hint = ""
        if driver and not path.is_absolute() and absolute.exists():
            hint = f"; {driver}:///{absolute} has the path {absolute}"
        raise FileNotFoundError(f"source must exist, got {str(path)!r}{hint}")
    if not path.is_file():
        raise FormatError(f"source must be a file, got {str(path)!r}")
    with open(path, "rb") as file:
        head = file.read(len(_SQLITE_MAGIC))
    found = ""
    # SQLite stores a database without tables as an empty file.
    if head == _SQLITE_MAGIC or not head:
        found = "sqlite"
    elif head[_MAGIC_AT:].startswith(_DUCKDB_MAGIC):
        found = "duckdb"
    if not found or (driver and found != driver):
        known = {"sqlite": "SQLite", "duckdb": "DuckDB"}.get(driver, "SQLite or DuckDB")
        raise FormatError(f"source must be a database of {known}, got {str(path)!r}")
    return Location(found, str(path.absolute()), str(path), path)
