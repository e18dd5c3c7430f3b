"""What the gather kernel is compiled to, without a GPU: 16-byte accesses, all asked for at once,
nothing spilled."""

import json
import os
import re

import pytest
from fresh_processes import answer, bare_python

pytest.importorskip("triton")

pytestmark = pytest.mark.compilers

# In a process of its own: here kernels may be the interpreter's.
_COMPILE = """
import json, os, subprocess, sys, tempfile
import triton.backends.nvidia
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
import triton.language as tl
from pagraph.features.gpu.kernels import gather_placed, gather_rows

POINTERS = dict(ids="*i64", slots="*i32", cached=None, rows=None, table="*i64", out=None, hits="*i64", order="*i64")
ORDER = "ids count num_rows slots num_cached cached rows table limit out hits order begin".split()
ORDER += [f"end{part}" for part in range(8)]

def compiled(architecture, word, constants, cached=None, far=None, out=None, wide=()):
    words = {8: "*i64", 4: "*i32", 2: "*i16", 1: "*u8"}[word]
    given = dict(POINTERS, cached=cached or words, rows=far or words, out=out or words)
    given |= {name: "i64" for name in wide}
    signature = {name: given.get(name, "i32") for name in ORDER} | {name: "constexpr" for name in constants}
    aligned = {(ORDER.index(name),): [["tt.divisibility", 16]] for name in POINTERS}
    source = ASTSource(gather_rows, signature=signature, constexprs=constants, attrs=aligned)
    kernel = compile(source, target=GPUTarget("cuda", architecture, 32), options={"num_stages": 1})
    return kernel.asm["ptx"], resources(kernel.asm["cubin"])

def placed(architecture, word, constants, **unused):
    # The same of addresses in the batch's state, of four parts.
    words = {8: tl.int64, 4: tl.int32}[word]
    constants = {name: value for name, value in constants.items() if name not in ("HAS_ORDER", "LEAVE")}
    constants |= dict(ADDRESSES=20, SLAB=19, COUNT=12, HITS=16, ENDS_STEP=4, PARTS=4, TABLE=tl.int32)
    constants |= dict(OUT_WORD=words, WORD=words, IDS=constants.get("IDS", -1), ID=tl.int64)
    names = gather_placed.arg_names
    signature = {name: "*i64" if name in ("ids", "state", "ends") else "i32" for name in names}
    signature |= {name: "constexpr" for name in constants}
    aligned = {(names.index(name),): [["tt.divisibility", 16]] for name in ("ids", "state")}
    source = ASTSource(gather_placed, signature=signature, constexprs=constants, attrs=aligned)
    kernel = compile(source, target=GPUTarget("cuda", architecture, 32), options={"num_stages": 1})
    return kernel.asm["ptx"], resources(kernel.asm["cubin"])

def resources(cubin):
    tool = os.path.join(os.path.dirname(triton.backends.nvidia.__file__), "bin", "cuobjdump")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([tool, "-res-usage", file.name], check=True, capture_output=True, text=True).stdout

cases = json.loads(sys.stdin.read())
answers = [(placed if "FAR_ALIGNED" in case["constants"] else compiled)(**case) for case in cases]
json.dump(answers, open(os.environ["PAGRAPH_TEST_ANSWER"], "w"))
"""

_DEFAULTS = {
    "PARTS": 3,
    "LINE": 1,
    "LEAD": 0,
    "HEAD": 0,
    "HAS_CACHE": True,
    "HAS_ROWS": True,
    "HAS_TABLE": False,
    "HAS_ORDER": False,
    "LEAVE": False,
    "BRAIN": False,
    "COLUMNS": 1,
    "STEPS": 1,
}


def case(
    architecture,
    word,
    width,
    rows,
    columns=1,
    cached=None,
    far=None,
    out=None,
    stride=None,
    wide=(),
    **changes,
):
    """One compilation: rows of ``width`` words, ``rows`` of them in a tile."""
    block = 1 << (-(-width // columns) - 1).bit_length()
    constants = {
        **_DEFAULTS,
        "WIDTH": width,
        "STRIDE": width if stride is None else stride,
        **changes,
    }
    constants |= {"BLOCK_ROWS": rows, "BLOCK_WORDS": block, "COLUMNS": columns}
    return {
        "architecture": architecture,
        "word": word,
        "constants": constants,
        "cached": cached,
        "far": far,
        "out": out,
        "wide": wide,
    }


def compile_all(cases):
    """The PTX of each case, and what the machine's code takes of a processor."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [bare_python(), "-c", _COMPILE]
    try:
        kernels = answer(command, input=json.dumps(cases), env=environment)
    except AssertionError as error:
        if "ptxas" in str(error):
            pytest.skip("Triton's ptxas does not run here")
        raise
    return [tuple(kernel) for kernel in kernels]


def accesses(ptx):
    """The global loads and stores in their order."""
    return re.findall(r"\b((?:ld|st)\.global(?:\.[a-z]\w*)*\.[bsuf]\d+)\b", ptx)


@pytest.mark.parametrize("architecture", [80, 90])
def test_rows_move_with_16_bytes_an_access_and_nothing_is_spilled(architecture):
    whole_rows = {
        "512 bytes": case(architecture, 8, 64, 16),
        "512 bytes, turned to lines": case(architecture, 8, 64, 16, LINE=16, LEAD=8),
        "400 bytes, turned to lines": case(architecture, 8, 50, 16, LINE=16, LEAD=2),
        "400 bytes of 416": case(architecture, 8, 50, 16, stride=52, LINE=16),
        "by reference": case(architecture, 8, 64, 16, LINE=16, LEAD=8, HAS_TABLE=True),
        "4 KiB": case(architecture, 8, 512, 4, columns=2, LINE=16, LEAD=8),
        "4800 bytes": case(architecture, 8, 600, 4, columns=3, LINE=16),
        "many tiles": case(architecture, 8, 64, 16, LINE=16, LEAD=8, STEPS=64),
        "no cache": case(architecture, 8, 64, 16, LINE=16, LEAD=8, HAS_CACHE=False, PARTS=0),
        "hits alone": case(architecture, 8, 64, 16, stride=0, HAS_ROWS=False, LEAVE=True, PARTS=0),
    }
    narrow = {
        f"{cached} as {out}": case(
            architecture,
            4,
            128,
            8,
            stride=0,
            cached=cached,
            out=out,
            HAS_ROWS=False,
            LEAVE=True,
            BRAIN=cached == "*i16",
        )
        for cached in ("*fp16", "*i16")
        for out in ("*fp32", "*fp64")
    }
    narrow |= {
        f"{name}, read by zero-copy": case(
            architecture,
            word,
            128,
            8,
            stride=stride,
            cached=cached,
            far=cached,
            out="*fp32",
            **more,
        )
        for name, word, cached, stride, more in (
            ("float16", 2, "*fp16", 128, {"LINE": 64, "LEAD": 32}),
            ("bfloat16", 2, "*i16", 128, {"LINE": 64, "LEAD": 32, "BRAIN": True}),
        )
    }
    others = {
        "int8": case(architecture, 1, 128, 8, stride=132, out="*fp32", LINE=128, LEAD=4, HEAD=4),
        "4 bytes": case(architecture, 4, 1, 256),
        "8 bytes": case(architecture, 8, 1, 256),
        "12 bytes": case(architecture, 4, 3, 256),
        "7 bytes": case(architecture, 1, 7, 128),
        "258 bytes": case(architecture, 2, 129, 4, LINE=64, LEAD=32),
    }
    cases = whole_rows | narrow | others
    kernels = dict(zip(cases, compile_all(list(cases.values())), strict=True))
    for name, (ptx, resources) in kernels.items():
        assert ".local" not in ptx and "STACK:0" in resources and "LOCAL:0" in resources, name
        # With 64 of its 65536 registers each, a processor has 8 programs of 128 threads and 8 KiB
        # of rows at once.
        assert int(re.search(r"REG:(\d+)", resources)[1]) <= 64, name
    for name in whole_rows:
        made = accesses(kernels[name][0])
        sides = 2 if name not in ("no cache", "hits alone") else 1  # a lane reads from one of them
        assert (made.count("ld.global.v2.b64"), made.count("st.global.v2.b64")) == (4 * sides, 4), (
            name
        )
        # All of them are asked for before the first is written.
        loads = [i for i, access in enumerate(made) if access == "ld.global.v2.b64"]
        assert loads[-1] < made.index("st.global.v2.b64"), name
    for name in narrow:
        made = accesses(kernels[name][0])
        assert "ld.global.v4.b32" in made, name
        assert {access for access in made if access.startswith("st")} <= {
            "st.global.v4.b32",
            "st.global.v2.b64",
        }, name
    widths = {
        "4 bytes": "b32",
        "8 bytes": "b64",
        "12 bytes": "b32",
        "7 bytes": "b8",
        "258 bytes": "b16",
    }
    for name, width in widths.items():
        assert f"st.global.{width}" in accesses(kernels[name][0]), name


@pytest.mark.parametrize("architecture", [80, 90])
def test_rows_at_addresses_that_stand_in_memory_move_likewise(architecture):
    both = {"CACHED_ALIGNED": True, "FAR_ALIGNED": True}
    cases = {
        "512 bytes": case(architecture, 8, 64, 16, **both),
        "512 bytes, turned to lines": case(architecture, 8, 64, 16, LINE=16, LEAD=8, **both),
        "4800 bytes": case(architecture, 8, 600, 4, columns=3, LINE=16, **both),
        "16 tiles": case(architecture, 8, 64, 16, LINE=16, LEAD=8, STEPS=16, **both),
        "padded": case(architecture, 8, 64, 16, LINE=16, LEAD=8, IDS=512, **both),
        "a cache anywhere": case(architecture, 8, 64, 16, CACHED_ALIGNED=False, FAR_ALIGNED=True),
    }
    kernels = dict(zip(cases, compile_all(list(cases.values())), strict=True))
    for name, (ptx, resources) in kernels.items():
        assert ".local" not in ptx and "STACK:0" in resources and "LOCAL:0" in resources, name
        assert int(re.search(r"REG:(\d+)", resources)[1]) <= 64, name
        made = accesses(ptx)
        sides = 1 if name == "a cache anywhere" else 2
        assert (made.count("ld.global.v2.b64"), made.count("st.global.v2.b64")) == (4 * sides, 4), (
            name
        )


def test_parts_may_end_beyond_int32():
    # Numbers from 2**31 on are int64: the last ends of a huge batch, but not the first, nor those
    # of parts that do not exist.
    huge = case(90, 8, 64, 16, wide=("count", "end1", "end2"))
    ((ptx, _),) = compile_all([huge])
    assert "atom.global" in ptx or "red.global" in ptx  # the hits are counted
