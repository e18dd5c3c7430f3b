"""Ways to damage a partition folder so that every checksum is right, and what is then found."""

import hashlib
import json

import numpy as np

from pagraph import Graph
from pagraph.partition import partition_graph, verify_partition, write_partition


def edit_json(path, change):
    """Change a manifest, which then vouches for nothing in itself."""
    value = json.loads(path.read_text())
    if isinstance(value, dict):
        value.pop("checksum", None)
    change(value)
    path.write_text(json.dumps(value))


def seal(out, part):
    """Let the partition's manifest vouch for the part's, whatever that says now."""
    digest = hashlib.sha256((out / f"part-{part}" / "manifest.json").read_bytes()).hexdigest()
    edit_json(out / "manifest.json", lambda value: value["folders"][part].update(sha256=digest))


def describe(path, array):
    content = path.read_bytes()
    return {
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        "shape": list(array.shape),
    }


def rewrite(out, part, name, change):
    """Replace an array of a part by what ``change`` makes of it, with matching checksums."""
    path = out / f"part-{part}" / f"{name}.npy"
    array = change(np.load(path).copy())
    np.save(path, array)
    entry = describe(path, array)
    if name in ("train", "val", "test"):

        def change_list(value):
            value["folders"][part][name].update(entry)
            value[f"{name}_per_part"][part] = len(array)

        edit_json(out / "manifest.json", change_list)
        return

    def change_array(value):
        entries = [
            entry
            for own in (*value["node_types"], *value["edge_types"])
            for entry in own["fields"].values()
        ]
        entries += [edge[name] for edge in value["edge_types"] for name in ("indptr", "indices")]
        (found,) = [e for e in entries if e["file"] == path.name]
        found.update(entry)

    edit_json(out / f"part-{part}" / "manifest.json", change_array)
    seal(out, part)


def found(out, source=None):
    """The one finding as (check, part, message)."""
    (finding,) = verify_partition(out, source=source).findings
    return finding.check, finding.part, finding.message


def changed(graph, csc=None, edata=None, **fields):
    return Graph(csc or graph.csc, ndata={**graph.ndata, **fields}, edata=edata or graph.edata)


def write_from(graph, source, out):
    """Parts of ``graph`` that say they are of ``source``: all checksums and counts are right."""
    partition = partition_graph(graph, 3, hops=1, method="hash", seed=4)
    write_partition(partition, out, source=source)
    return partition
