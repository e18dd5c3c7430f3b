"""What the measuring kernel is compiled to, on a machine without a GPU as well."""

import os
import sys

import pytest
from fresh_processes import answer, bare_python

pytestmark = pytest.mark.compilers

COMPILE = """
import json, os
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from gpu_rows_kernel import TILE_WORDS, read_rows

found = []
for capability in (80, 90):
    for width in (64, 4, 3, 2500):
        columns = min(TILE_WORDS, 1 << (width - 1).bit_length())
        constants = {"width": width, "block": TILE_WORDS // columns, "columns": columns}
        signature = {"ids": "*i64", "rows": "*i64", "out": "*i64", "count": "i32"}
        source = ASTSource(
            read_rows,
            signature | dict.fromkeys(constants, "constexpr"),
            constants,
            {(place,): [["tt.divisibility", 16]] for place in range(3)},
        )
        ptx = triton.compile(source, target=GPUTarget("cuda", capability, 32)).asm["ptx"]
        wide = ptx.count("ld.global.v2.b64") + ptx.count("ld.global.v4.b32")
        found.append((width, wide, ptx.count(".local")))
json.dump(found, open(os.environ["PAGRAPH_TEST_ANSWER"], "w"))
"""


def test_rows_of_16_bytes_are_read_in_16_bytes_and_nothing_spills():
    pytest.importorskip("triton")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)  # with the benchmarks' folder
    for width, wide, local in answer([bare_python(), "-c", COMPILE], env=environment):
        assert local == 0
        assert (wide > 0) == (width % 2 == 0), width
