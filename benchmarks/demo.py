"""Training with another loader and with pagraph's: what ``make demo`` shows and writes.

The epochs of both loaders take turns in one process (``pagraph train --compare``), once in each
setting of ``OMP_WAIT_POLICY`` (``sides.py``). A loader's figures are medians over its epochs but
the first, in the setting in which these are faster. ``figures.json`` beside the graph has those of
both settings.

Run: ``python benchmarks/demo.py FOLDER`` with a graph folder (with that of ``make demo`` about a
minute and a half on 2 cores).
"""

import argparse
import importlib.util
from pathlib import Path

import torch
from report import counted, summarise, write
from sides import SETTINGS, trained

from pagraph.system.tables import Table
from pagraph.train.models import peers

STAGES = ("loading", "computing", "epoch")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="a graph folder")
    parser.add_argument("--epochs", type=int, default=4, help="the first is not counted [4]")
    parser.add_argument("--hidden", type=int, default=16, help="width of the model [16]")
    options = parser.parse_args()
    if options.epochs < 2:
        parser.error(f"--epochs must be at least 2, got {options.epochs}")
    layers = chosen_layers()
    peer = chosen_peer(layers)
    words = ["--layers", layers] if layers else []
    words += ["--compare", peer] if peer else []
    words += ["--epochs", str(options.epochs), "--hidden", str(options.hidden)]
    if not peer:
        print(
            "no other loader to compare with: DGL is not installed, nor pyg-lib or torch-sparse "
            "for PyG's"
        )
    names = [peer, "pagraph"] if peer else ["pagraph"]
    loaders = measured(options.folder, words, names)
    result = {"graph": options.folder.name, "command": ["pagraph", "train", *words]}
    result |= {"loaders": loaders, "ratios": ratios(loaders)}
    print(f"\n{table(result)}")
    write("figures", result, options.folder.parent)


def chosen_layers():
    """PyG's on a GPU, as DGL's wheels know none; None: those of the peer."""
    has_pyg = importlib.util.find_spec("torch_geometric") is not None
    return "pyg" if has_pyg and torch.cuda.is_available() else None


def chosen_peer(layers):
    """The first framework whose own loader can run, of those that have these layers."""
    return next((name for name in peers() if layers in (None, name)), None)


def measured(folder, words, names):
    """The figures of each loader, from one run in each setting."""
    by_loader = {name: {} for name in names}
    for number, (setting, added) in enumerate(SETTINGS.items(), start=1):
        shown = " ".join([*(f"{name}={value}" for name, value in added.items()), "pagraph train"])
        print(f"\nrun {number} of {len(SETTINGS)}: {shown} {folder}", *words, flush=True)
        report = trained(setting, folder, *words)
        reports = {names[0]: report} if len(names) == 1 else report
        for name, of_loader in reports.items():
            by_loader[name][setting] = {
                stage: summarise(of_loader[f"{stage}_seconds"][1:]) for stage in STAGES
            }
    return {name: counted(settings, "epoch") for name, settings in by_loader.items()}


def ratios(loaders):
    """The peer's medians over ours; of nothing without a peer, or where ours took no time."""
    theirs, *ours = loaders.values()
    return {
        stage: theirs[stage]["median"] / mine[stage]["median"]
        for mine in ours
        for stage in STAGES
        if mine[stage]["median"]
    }


def table(result):
    """Medians of each loader in both settings; a star stands where they count."""
    rows = [["seconds per epoch (median)", "OMP_WAIT_POLICY", *STAGES]]
    for name, figures in result["loaders"].items():
        for setting, of_setting in figures["settings"].items():
            star = " *" if setting == figures["counted"] else ""
            medians = [f"{of_setting[stage]['median']:.3f}" for stage in STAGES]
            rows.append([f"{name}'s loader", setting + star, *medians])
    found = result["ratios"]
    if found:
        rows.append(["ratio, * to *", "", *(f"{found.get(s, float('nan')):.2f}" for s in STAGES)])
    return Table(rows, left=(0, 1))


if __name__ == "__main__":
    main()
