"""Maps the two top-level rooms into the package; everything else is in pyproject.toml."""

from setuptools import find_packages, setup

ROOMS = {"pagraph.partition": "partition", "pagraph.datasets": "datasets"}

packages = [
    name
    for name in find_packages(include=["pagraph", "pagraph.*"])
    if not any(name == room or name.startswith(room + ".") for room in ROOMS)
]
for room, folder in ROOMS.items():
    packages.append(room)
    packages.extend(f"{room}.{sub}" for sub in find_packages(folder))

setup(packages=packages, package_dir={"pagraph": "pagraph", **ROOMS})
