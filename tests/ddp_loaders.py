"""The processes of ``test_ddp_loaders.py``: ``python ddp_loaders.py FOLDER RANK WORLD`` writes as JSON
what one rank saw of the core's and PyG's loaders."""

import datetime
import json
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed
from fresh_processes import HANGING
from torch.utils.data import DistributedSampler

from pagraph import Graph, Loader, NeighborSampler

NUM_NODES = 103
EDGES = torch.randint(NUM_NODES, (2, 600), generator=torch.Generator().manual_seed(0))


def core(**options):
    graph = Graph.from_coo(*EDGES, NUM_NODES)
    loader = Loader(graph, torch.arange(NUM_NODES), NeighborSampler([2]), **options)
    return loader, lambda batch: batch.output_nodes.tolist()


def pyg(**options):
    from torch_geometric.data import Data

    from pagraph.pyg import NeighborLoader

    data = Data(x=torch.ones(NUM_NODES, 4), edge_index=EDGES)
    return NeighborLoader(data, [2], **options), lambda b: b.n_id[: b.batch_size].tolist()


def pyg_links(**options):
    from torch_geometric.data import Data

    from pagraph.pyg import LinkNeighborLoader

    data = Data(x=torch.ones(NUM_NODES, 4), edge_index=EDGES)
    links = EDGES[:, :NUM_NODES]
    loader = LinkNeighborLoader(data, [2], edge_label_index=links, **options)
    return loader, lambda batch: batch.input_id.tolist()


FACES = {"core": core, "pyg": pyg, "pyg links": pyg_links}


def seen(face):
    """What a face's loaders give this rank."""
    options = {"batch_size": 10, "shuffle": True, "use_ddp": True, "seed": 1}
    loader, seeds = face(**options)
    epochs = [[seeds(batch) for batch in loader] for _ in range(2)]
    batches = iter(loader)
    begun = [seeds(next(batches)) for _ in range(2)]
    state = loader.state_dict()
    rest = [seeds(batch) for batch in batches]
    found = {"batches": len(loader), "epochs": epochs, "begun": begun, "rest": rest}
    found["state"] = {name: value for name, value in state.items() if name != "permutation"}
    other, seeds = face(**options)
    other.load_state_dict(state)
    found["resumed"] = [seeds(batch) for batch in other]
    whole, seeds = face(**options | {"drop_last": True})
    found["whole"] = [seeds(batch) for batch in whole]
    # Without a seed the order is still one for all.
    torch.manual_seed(torch.distributed.get_rank())
    unseeded, seeds = face(**options | {"seed": None})
    found["unseeded"] = [seeds(batch) for batch in unseeded]
    return found


def main():
    folder, rank, world = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.distributed.init_process_group(
        "gloo",
        store=torch.distributed.FileStore(str(folder / "store"), world),
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=HANGING),
    )
    faces = sys.argv[4:]
    found = {name: seen(FACES[name]) for name in faces}
    if "pyg" in faces:
        loader, _ = pyg(use_ddp=True, sampler=DistributedSampler(range(NUM_NODES)))
        found["sampler"] = sum(1 for _ in loader)
        try:
            pyg(use_ddp=True, sampler=list(range(5)))
        except TypeError as error:
            found["refused"] = str(error)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for use_ddp in (None, None, False, True):
            loader, _ = core(use_ddp=use_ddp, batch_size=50)
            for _ in range(2):
                iter(loader)
    found["warned"] = [str(each.message) for each in caught]
    (folder / f"{rank}.json").write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
