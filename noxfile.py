"""The tests with the versions that pagraph promises, each set in an environment of its own:
``make matrix``.

``nox --list`` names the sessions, ``nox -s lowest`` runs one. What this machine cannot have, an
interpreter or a build of torch, is skipped with the reason. Arguments for pytest stand after
``--``, in place of ``--tier first``.
"""

import re
from pathlib import Path

import nox

nox.options.default_venv_backend = "venv"
nox.options.error_on_missing_interpreters = False

PROJECT = nox.project.load_toml("pyproject.toml")["project"]
EXTRAS = "dgl,metis,plot,pyg"
TOOLS = ("build", "hypothesis", "pyarrow", "pytest", "pytest-timeout", "pytest-xdist", "setuptools")
TORCH = "2.13.0"


@nox.session(python="3.11")
def lowest(session):
    """The lowest versions of everything at once."""
    pins = lowest_versions()
    install_torch(session, pins.pop("torch"))
    run_tests(session, *(f"{name}=={version}" for name, version in pins.items()))


@nox.session(python="3.11")
def current(session):
    """The newest versions of everything but torch, which is that of `make venv`."""
    install_torch(session, TORCH)
    run_tests(session)


@nox.session(python=["3.14", "3.13"])
def without_dgl(session):
    """The newest Pythons, for which DGL has no build."""
    install_torch(session, "2.14.1")
    run_tests(session)


@nox.session(python=["3.10", "3.12"])
def other_python(session):
    """Other Pythons that have DGL, where a CPU build of torch can be had."""
    install_torch(session, TORCH, cpu_only=True)
    run_tests(session)


@nox.session(python="3.11")
@nox.parametrize("torch", ["2.4.1", "2.5.1", "2.9.1"])
def other_torch(session, torch):
    """Older versions of torch with the newest of all else, where a CPU build can be had."""
    install_torch(session, torch, cpu_only=True)
    run_tests(session)


@nox.session(python="3.11", default=False)
def wheel_newest(session):
    """The wheel in dist/ with the newest dependencies; part of ``make release``."""
    install_torch(session, TORCH)
    test_wheel(session)


@nox.session(python="3.11", default=False)
def wheel_lowest(session):
    """The wheel in dist/ with the lowest dependencies; part of ``make release``."""
    pins = lowest_versions()
    install_torch(session, pins.pop("torch"))
    test_wheel(session, *(f"{name}=={version}" for name, version in pins.items()))


def test_wheel(session, *pins):
    """Install the wheel of dist/ as a user does, so that pip resolves what it declares, and run the
    tests marked ``wheel`` away from the checkout."""
    (wheel,) = Path("dist").glob("*.whl")
    session.install(kept_torch(session), *pins, *tools(), f"{wheel}[{EXTRAS}]")
    session.run("python", "-m", "pip", "check", success_codes=[0, 1])
    python = str(Path(session.bin, "python"))
    env = {"OMP_WAIT_POLICY": "passive", "PAGRAPH_DIST": str(Path("dist").resolve())}
    session.run(".ci/test-wheel", python, *session.posargs, external=True, env=env)


def kept_torch(session):
    """The requirement that leaves the torch of a session as it is."""
    version = "from importlib.metadata import version; print(version('torch'))"
    return f"torch=={session.run('python', '-c', version, silent=True).strip()}"


def lowest_versions():
    """The lower bounds in pyproject.toml, by package."""
    extras = PROJECT["optional-dependencies"]
    listed = [
        *PROJECT["dependencies"],
        *(each for extra in EXTRAS.split(",") for each in extras[extra]),
        *tools(),
    ]
    return dict(re.findall(r"^([\w-]+)>=([\w.]+)", "\n".join(listed), re.MULTILINE))


def tools():
    """Packages that the tests need beside the package, as pyproject.toml has it."""
    return [
        each
        for each in PROJECT["optional-dependencies"]["dev"]
        if re.split("[>;]", each)[0] in TOOLS
    ]


def install_torch(session, version, *, cpu_only=False):
    """Install a CPU build of torch; without one the default build, with gigabytes of CUDA, or with
    `cpu_only` skip."""
    index = (
        "--retries",
        "1",
        "--timeout",
        "20",
        "--index-url",
        "https://download.pytorch.org/whl/cpu",
    )
    for where in ((), index):
        try:
            session.install(*where, f"torch=={version}+cpu")
        except nox.command.CommandFailed:
            continue
        return
    if cpu_only:
        session.skip(f"no CPU build of torch {version} for Python {session.python} can be had here")
    session.install(f"torch=={version}")


def run_tests(session, *pins):
    """Install the checkout with its extras, at the pinned versions, and run the tests; torch stays
    as it is."""
    session.install(kept_torch(session), *pins, *tools(), "--editable", f".[{EXTRAS}]")
    session.run("python", "-m", "pip", "list")
    session.run(
        "pytest", *(session.posargs or ("--tier", "first")), env={"OMP_WAIT_POLICY": "passive"}
    )
