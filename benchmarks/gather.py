"""Rows by id on one thread: our kernel against ``torch.index_select(out=)``, both into the same
recycled memory.

And rows in fewer bytes, widened to float32 on the way. Run: ``python benchmarks/gather.py`` (about
2 minutes, 4 GiB).
"""

import argparse
import time

import torch
from report import summarise, write

from pagraph.features import HostFeature, NarrowRows
from pagraph.features.field import row_reader

# float32 columns; 1 is a label, 128 and 602 are common feature widths
WIDTHS = (1, 32, 128, 602)
FORMS = ("float16", "bfloat16", "int8")


def seconds(work):
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--ids", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=25)
    options = parser.parse_args()
    torch.set_num_threads(1)
    result = {"settings": vars(options), "widths": {}}
    for width in WIDTHS:
        rows = min(options.rows, 2**28 // width)
        table = torch.randn(rows, width)
        ids = torch.randint(0, rows, (options.ids,))
        out, feature = torch.zeros(options.ids, width), HostFeature(table)
        ways = {
            "torch": lambda table=table, ids=ids, out=out: torch.index_select(
                table, 0, ids, out=out
            ),
            "pagraph": lambda feature=feature, ids=ids, out=out: feature.read(ids, out),
        }
        for form in FORMS if width > 1 else ():
            narrow = row_reader(NarrowRows.of(table, form))
            ways[form] = lambda narrow=narrow, ids=ids, out=out: narrow.read(ids, out)
        runs = {name: [] for name in ways}
        for _ in range(options.repeats + 2):
            for name, work in ways.items():
                runs[name].append(seconds(work))
        figures = {name: summarise(values[2:]) for name, values in runs.items()}
        ratio = figures["torch"]["median"] / figures["pagraph"]["median"]
        medians = {
            name: f"{figure['median'] * 1e9 / options.ids:.1f} ns a row"
            for name, figure in figures.items()
        }
        print(f"{width:4d} x float32: {medians}, {ratio:.2f} times as fast", flush=True)
        result["widths"][width] = {"seconds": figures, "ratio": ratio}
    write("gather", result)


if __name__ == "__main__":
    main()
