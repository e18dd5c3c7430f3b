"""Draws a batch's way through a loader, for docs/concepts.md: ``python docs/pictures/batch_way.py
docs/pictures/batch-way.svg``."""

import sys

import matplotlib

matplotlib.use("svg")

from matplotlib import pyplot
from matplotlib.patches import FancyBboxPatch

INK = "#202124"
QUIET = "#5f6368"
STEP = "#e8eaf6"
STORE = "#fff3e0"
CACHE = "#e0f2f1"


def box(axes, x, y, width, height, title, lines, color):
    """A rounded box with a title and lines of text; its middle is at ``x``, ``y``."""
    corner = (x - width / 2, y - height / 2)
    axes.add_patch(
        FancyBboxPatch(
            corner, width, height, boxstyle="round,pad=0,rounding_size=0.12", fc=color, ec=INK, lw=1
        )
    )
    # The title's place leaves room for as many lines as there are.
    top = y + 0.145 * len(lines)
    axes.text(x, top, title, ha="center", va="center", color=INK, fontsize=12, weight="bold")
    for number, line in enumerate(lines, 1):
        axes.text(x, top - 0.29 * number, line, ha="center", va="center", color=INK, fontsize=9.5)


def arrow(axes, start, end, text="", *, offset=(0, 0.16)):
    """An arrow with a word beside its middle."""
    style = {"arrowstyle": "-|>", "color": INK, "lw": 1.3, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", xy=end, xytext=start, arrowprops=style)
    middle = ((start[0] + end[0]) / 2 + offset[0], (start[1] + end[1]) / 2 + offset[1])
    axes.text(*middle, text, ha="center", va="center", color=QUIET, fontsize=9.5)


def draw(path):
    """Write the picture."""
    # Text stays text: it can be searched, and the file is small.
    pyplot.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "batch-way"})
    figure, axes = pyplot.subplots(figsize=(10.6, 4.3), facecolor="white")
    axes.set(xlim=(0, 10.6), ylim=(0, 4.3))
    axes.axis("off")
    band = FancyBboxPatch(
        (2.5, 0.25),
        5.4,
        3.45,
        boxstyle="round,pad=0,rounding_size=0.15",
        fc="none",
        ec=QUIET,
        lw=1,
    )
    band.set_linestyle((0, (4, 3)))
    axes.add_patch(band)
    ahead = "in threads, ahead of the loop: up to num_workers + prefetch batches"
    axes.text(5.2, 3.95, ahead, ha="center", va="center", color=QUIET, fontsize=10)
    middle = 2.85
    box(axes, 1.1, middle, 1.7, 1.15, "Seed order", ["shuffle, ranks,", "place to resume"], STEP)
    box(
        axes, 3.6, middle, 1.9, 1.15, "Sampling", ["neighbours of each hop,", "new local ids"], STEP
    )
    box(axes, 6.8, middle, 1.9, 1.15, "Fetch", ["rows of all fields,", "by input node"], STEP)
    box(axes, 9.45, middle, 1.7, 1.15, "Delivery", ["blocks, Data or", "MiniBatch"], STEP)
    box(axes, 3.6, 0.9, 1.9, 0.85, "Edges", ["memory, disk, GPU"], STORE)
    box(axes, 5.75, 0.9, 1.5, 0.85, "Cache", ["rows read most"], CACHE)
    box(axes, 7.15, 0.9, 1.15, 0.85, "Rows", ["memory, disk"], STORE)
    arrow(axes, (1.95, middle), (2.65, middle), "seeds", offset=(-0.08, 0.16))
    arrow(axes, (4.55, middle), (5.85, middle), "input nodes")
    arrow(axes, (7.75, middle), (8.6, middle), "batch", offset=(0.07, 0.16))
    arrow(axes, (3.6, 1.33), (3.6, 2.27), "in-edges", offset=(0.45, 0))
    arrow(axes, (5.85, 1.33), (6.45, 2.27), "hit", offset=(-0.28, 0.02))
    arrow(axes, (7.2, 1.33), (7.05, 2.27), "miss", offset=(0.42, 0.02))
    arrow(axes, (9.45, 2.27), (9.45, 1.33))
    box(axes, 9.45, 0.9, 1.7, 0.85, "Your loop", ["forward, backward"], "white")
    figure.subplots_adjust(0, 0, 1, 1)
    # Without a date the same drawing is the same file.
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    draw(sys.argv[1])
