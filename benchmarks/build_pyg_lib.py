"""Build pyg-lib from its sources, so that ``pyg_loader.py`` can measure PyG's loader with it: CPU only, without METIS.

PyPI has no pyg-lib. This takes two repositories (addresses or local clones), compiles pyg-lib against the torch of this
environment and installs it into a folder of its own; the environment is left as it is. It needs git, CMake, Ninja and
a C++20 compiler, and 10 to 40 minutes of a core:

    python benchmarks/build_pyg_lib.py --target ~/pyg-lib
    PYTHONPATH=~/pyg-lib python benchmarks/pyg_loader.py
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

# METIS serves pyg-lib's partitioner only; the sources can do without, but CMakeLists.txt lets only Windows do so.
WITHOUT_METIS = {
    "set(NO_METIS 0)": "set(NO_METIS 1)",
    "if (NOT MSVC)\n  set(METIS_DIR": "if (NOT NO_METIS)\n  set(METIS_DIR",
}


def clone(repository, folder, revision=None):
    subprocess.run(["git", "clone", "--quiet", repository, folder], check=True)
    if revision:
        subprocess.run(["git", "-C", folder, "checkout", "--quiet", revision], check=True)


def leave_metis_out(cmake_lists):
    text = cmake_lists.read_text()
    for old, new in WITHOUT_METIS.items():
        if text.count(old) != 1:
            raise SystemExit(f"{cmake_lists.name} of this revision has no single {old!r}: try pyg-lib 0.9.0")
        text = text.replace(old, new)
    cmake_lists.write_text(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True, help="folder to install into, for PYTHONPATH")
    parser.add_argument("--pyg-lib", default="https://github.com/pyg-team/pyg-lib", help="its repository [%(default)s]")
    parser.add_argument("--revision", help="commit or tag of pyg-lib [the newest]")
    parser.add_argument(
        "--phmap", default="https://github.com/greg7mdp/parallel-hashmap", help="that of its hash tables [%(default)s]"
    )
    parser.add_argument("--jobs", type=int, default=1, help="compilers at once, each up to 3 GiB [%(default)s]")
    options = parser.parse_args()
    target = Path(options.target).expanduser().resolve()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "pyg-lib"
        clone(options.pyg_lib, source, options.revision)
        clone(options.phmap, source / "third_party/parallel-hashmap")
        leave_metis_out(source / "CMakeLists.txt")
        pip = [sys.executable, "-m", "pip", "install", "--no-build-isolation", "--no-deps", "--no-index", "--upgrade"]
        settings = {"CMAKE_BUILD_PARALLEL_LEVEL": str(options.jobs), "FORCE_NINJA": "1", "FORCE_CUDA": "0"}
        subprocess.run([*pip, "--target", target, source], env=os.environ | settings, check=True)


if __name__ == "__main__":
    main()
