"""Build of pyg-lib what PyG's NeighborLoader and Node2Vec call, for ``pyg_loader.py`` and
``walks.py`` to measure.

PyPI has no pyg-lib. This takes two repositories (addresses or local clones), compiles pyg-lib's
samplers for the CPU against the torch of this environment, as pyg-lib's own build would, and
installs it into a folder of its own; the environment is left as it is. Layers that call pyg-lib's
other operators do not run with it. It needs git, CMake, Ninja, a C++20 compiler with 3 GiB of
memory, and about 5 minutes:

    python benchmarks/build_pyg_lib.py --target ~/pyg-lib
    PYTHONPATH=~/pyg-lib python benchmarks/pyg_loader.py
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

SAMPLER = ["library", "utils/check", "utils/convert", "random/cpu/biased_sampling"]
SAMPLER += [
    "sampler/neighbor",
    "sampler/cpu/neighbor_kernel",
    "sampler/random_walk",
    "sampler/cpu/random_walk_kernel",
]
# With which PyG's loader converts edge_index.
SORTING = ["ops/index_sort", "ops/cpu/index_sort_kernel"]
SOURCES = " ".join(f"${{CSRC}}/{name}.cpp" for name in SAMPLER + SORTING)  # 10 of 55, without METIS

EDITS = {
    "file(GLOB_RECURSE ALL_SOURCES ${CSRC}/*.cpp)": f"set(ALL_SOURCES {SOURCES})",
    "if (NOT MSVC)\n  set(METIS_DIR": "if (FALSE)\n  set(METIS_DIR",
    # CMake would ask the first Python that it finds how torch was compiled, and take "no torch" for
    # an answer.
    "find_package(Python3 COMPONENTS Interpreter REQUIRED)": "set(Python3_EXECUTABLE "
    f'"{sys.executable}")',
}


def clone(repository, folder, revision=None):
    subprocess.run(["git", "clone", "--quiet", repository, folder], check=True)
    if revision:
        subprocess.run(["git", "-C", folder, "checkout", "--quiet", revision], check=True)


def edit(cmake_lists):
    text = cmake_lists.read_text()
    for old, new in EDITS.items():
        if text.count(old) != 1:
            raise SystemExit(
                f"{cmake_lists.name} of this revision has no single {old!r}: try pyg-lib 0.9.0"
            )
        text = text.replace(old, new)
    cmake_lists.write_text(text)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", required=True, help="folder to install into, for PYTHONPATH")
    parser.add_argument(
        "--pyg-lib",
        default="https://github.com/pyg-team/pyg-lib",
        help="its repository [%(default)s]",
    )
    parser.add_argument("--revision", help="commit or tag of pyg-lib [the newest]")
    parser.add_argument(
        "--phmap",
        default="https://github.com/greg7mdp/parallel-hashmap",
        help="that of its hash tables [%(default)s]",
    )
    parser.add_argument(
        "--jobs", type=int, default=1, help="compilers at once, each up to 3 GiB [%(default)s]"
    )
    options = parser.parse_args()
    target = Path(options.target).expanduser().resolve()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "pyg-lib"
        clone(options.pyg_lib, source, options.revision)
        clone(options.phmap, source / "third_party/parallel-hashmap")
        edit(source / "CMakeLists.txt")
        pip = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--no-build-isolation",
            "--no-deps",
            "--no-index",
            "--upgrade",
        ]
        settings = {
            "CMAKE_BUILD_PARALLEL_LEVEL": str(options.jobs),
            "FORCE_NINJA": "1",
            "FORCE_CUDA": "0",
        }
        subprocess.run([*pip, "--target", target, source], env=os.environ | settings, check=True)


if __name__ == "__main__":
    main()
