"""Data sets for ``run_scripts.py``: small, random, and in the form that each script of DGL, PyG
and RelBench reads, so that nothing is downloaded.
"""

import gzip
import hashlib
import io
import json
import pickle

import numpy as np


def table(path, rows, head=False):
    """Rows as a packed table of text, as OGB keeps them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as file:
        for row in rows:
            values = row if isinstance(row, list | tuple | np.ndarray) else [row]
            file.write(",".join(map(str, values)) + "\n")


def communities(rng, nodes, classes, degree, width):
    """Labels, features that show them through noise, and edges mostly within a class."""
    labels = rng.integers(classes, size=nodes)
    centers = rng.normal(size=(classes, width))
    features = (centers[labels] + 6 * rng.normal(size=(nodes, width))).astype(np.float32)
    members = [np.flatnonzero(labels == c) for c in range(classes)]
    src = np.repeat(np.arange(nodes), degree)
    near = np.array([rng.choice(members[labels[v]]) for v in src])
    dst = np.where(rng.random(len(src)) < 0.8, near, rng.integers(nodes, size=len(src)))
    return labels, features, src, dst


def parts(rng, nodes):
    """Training, validation and test vertices."""
    order = rng.permutation(nodes)
    return np.split(order, [int(0.6 * nodes), int(0.8 * nodes)])


def products(folder, rng, nodes=1500):
    labels, features, src, dst = communities(rng, nodes, 10, 8, 100)
    raw = folder / "raw"
    table(raw / "edge.csv.gz", zip(src, dst, strict=True))
    table(raw / "num-node-list.csv.gz", [nodes])
    table(raw / "num-edge-list.csv.gz", [len(src)])
    table(raw / "node-feat.csv.gz", features.round(3))
    table(raw / "node-label.csv.gz", labels)
    for name, ids in zip(("train", "valid", "test"), parts(rng, nodes), strict=True):
        table(folder / "split/sales_ranking" / f"{name}.csv.gz", ids)
    (folder / "RELEASE_v1.txt").touch()


def mag(raw, split, release, rng, papers=1200):
    labels, features, src, dst = communities(rng, papers, 10, 6, 128)
    counts = {"author": 2000, "field_of_study": 200, "institution": 50, "paper": papers}
    (raw / "node-feat/paper").mkdir(parents=True)
    table(raw / "num-node-dict.csv.gz", [list(counts), list(counts.values())])
    table(raw / "node-feat/paper/node-feat.csv.gz", features.round(3))
    table(raw / "node-feat/paper/node_year.csv.gz", 2010 + rng.integers(10, size=papers))
    table(raw / "node-feat/paper/num-node-list.csv.gz", [papers])
    table(raw / "node-label/paper/node-label.csv.gz", labels)
    fields = rng.permuted(np.arange(200)).reshape(10, 20)
    authors = rng.integers(2000, size=3 * papers)
    edges = {
        ("author", "affiliated_with", "institution"): (np.arange(2000), rng.integers(50, size=2000)),
        ("author", "writes", "paper"): (authors, np.repeat(np.arange(papers), 3)),
        ("paper", "cites", "paper"): (src, dst),
        ("paper", "has_topic", "field_of_study"): (
            np.repeat(np.arange(papers), 2),
            np.concatenate([rng.choice(fields[c], 2) for c in labels]),
        ),
    }  # fmt: skip
    table(raw / "triplet-type-list.csv.gz", list(edges))
    for number, (triplet, ends) in enumerate(edges.items()):
        home = raw / "relations" / "___".join(triplet)
        table(home / "edge.csv.gz", zip(*ends, strict=True))
        table(home / "num-edge-list.csv.gz", [len(ends[0])])
        table(home / "edge_reltype.csv.gz", [number] * len(ends[0]))
    has = [[name for name in counts], [str(name == "paper") for name in counts]]
    table(raw / "nodetype-has-feat.csv.gz", has)
    table(raw / "nodetype-has-label.csv.gz", has)
    table(split / "nodetype-has-split.csv.gz", has)
    for name, ids in zip(("train", "valid", "test"), parts(rng, papers), strict=True):
        table(split / "paper" / f"{name}.csv.gz", ids)
    if release is not None:
        (release / "RELEASE_v2.txt").touch()
    return counts


def pyg_data(data, rng):
    """Raw files of the data sets of PyG's scripts."""
    import scipy.sparse as sp
    import torch

    nodes = 2000
    labels, features, src, dst = communities(rng, nodes, 7, 8, 64)
    adjacency = sp.coo_matrix((np.ones(2 * len(src)), (np.r_[src, dst], np.r_[dst, src])))
    types = np.empty(nodes, np.int64)
    for number, ids in enumerate(parts(rng, nodes), 1):
        types[ids] = number
    reddit = data / "Reddit/raw"
    reddit.mkdir(parents=True)
    np.savez(reddit / "reddit_data.npz", feature=features, label=labels, node_types=types)
    sp.save_npz(reddit / "reddit_graph.npz", adjacency)

    flickr = data / "Flickr/raw"
    flickr.mkdir(parents=True)
    rows = adjacency.tocsr()
    rows.sum_duplicates()
    whole = {name: getattr(rows, name) for name in ("data", "indices", "indptr", "shape")}
    np.savez(flickr / "adj_full.npz", **whole)
    np.save(flickr / "feats.npy", features)
    (flickr / "class_map.json").write_text(
        json.dumps({str(i): int(c) for i, c in enumerate(labels)})
    )
    roles = dict(zip(("tr", "va", "te"), (ids.tolist() for ids in parts(rng, nodes)), strict=True))
    (flickr / "role.json").write_text(json.dumps(roles))

    cora = data / "Cora/Cora/raw"
    cora.mkdir(parents=True)
    words = sp.csr_matrix(features - features.min())
    hot = np.eye(7, dtype=np.int64)[labels]
    test = np.arange(1000, 2000)
    lists = {v: rows.indices[rows.indptr[v] : rows.indptr[v + 1]].tolist() for v in range(nodes)}
    pieces = {"x": words[:140], "y": hot[:140], "tx": words[test], "ty": hot[test]}
    pieces |= {"allx": words[:1000], "ally": hot[:1000], "graph": lists}
    for name, value in pieces.items():
        (cora / f"ind.cora.{name}").write_bytes(pickle.dumps(value))
    (cora / "ind.cora.test.index").write_text("\n".join(map(str, test)))

    for root in (data / "OGB", data):
        raw = root / "mag/raw"
        counts = mag(raw, raw / "split/time", None, np.random.default_rng(1))
        shown = {name: torch.randn(n, 128) for name, n in counts.items() if name != "paper"}
        torch.save(shown, raw / "mag_metapath2vec_emb.pt")

    taobao = data / "Taobao/raw"
    taobao.mkdir(parents=True)
    users = rng.integers(300, size=9000)
    items = (users * 7 + rng.integers(60, size=9000)) % 500
    times = rng.integers(1511539200, 1512316799, size=9000)
    kinds = rng.choice(["pv", "cart", "buy", "fav"], size=9000)
    lines = zip(users, items, items % 20, kinds, times, strict=True)
    (taobao / "UserBehavior.csv").write_text("\n".join(",".join(map(str, line)) for line in lines))

    # Processed: what PyG's own process() asks a language model for.
    from torch_geometric.data import HeteroData, InMemoryDataset

    movies = HeteroData()
    movies["movie"].x = torch.randn(400, 404)
    movies["user"].num_nodes = 200
    user = rng.integers(200, size=8000)
    movie = (user * 3 + rng.integers(80, size=8000)) % 400
    rates = movies["user", "rates", "movie"]
    rates.edge_index = torch.from_numpy(np.stack([user, movie]))
    rates.edge_label = torch.from_numpy(1 + (user + movie) % 5)
    rates.time = torch.from_numpy(np.sort(rng.integers(10**9, size=8000)))
    lens = data / "MovieLens"
    for name in ("movies", "ratings"):
        path = lens / "raw/ml-latest-small" / f"{name}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (lens / "processed").mkdir()
    InMemoryDataset.save([movies], lens / "processed/data_all-MiniLM-L6-v2.pt")


def citations(folder, rng, nodes=1000):
    """ogbl-citation2: an edge list, and pairs with other ends to rank them among."""
    import torch

    _, features, src, dst = communities(rng, nodes, 10, 8, 128)
    # No loops and no edge twice: the script pairs each edge with its reverse.
    pairs = np.unique(np.stack([src, dst], 1)[src != dst], axis=0)
    src, dst = pairs[:, 0], pairs[:, 1]
    raw = folder / "raw"
    table(raw / "edge.csv.gz", zip(src, dst, strict=True))
    table(raw / "num-node-list.csv.gz", [nodes])
    table(raw / "num-edge-list.csv.gz", [len(src)])
    table(raw / "node-feat.csv.gz", features.round(3))
    table(raw / "node_year.csv.gz", 2000 + rng.integers(10, size=nodes))
    split = folder / "split/time"
    split.mkdir(parents=True)
    for name in ("train", "valid", "test"):
        at = rng.choice(len(src), 300, replace=False)
        pairs = {"source_node": src[at], "target_node": dst[at]}
        if name != "train":
            pairs["target_node_neg"] = rng.integers(nodes, size=(300, 100))
        # As tensors: torch 2.6 and newer load no arrays.
        tensors = {key: torch.from_numpy(value) for key, value in pairs.items()}
        torch.save(tensors, split / f"{name}.pt")
    (folder / "RELEASE_v1.txt").touch()


def proteins(folder, rng, nodes=400):
    """ogbn-proteins: features of edges alone, and 112 labels of yes and no."""
    classes, _, src, dst = communities(rng, nodes, 8, 10, 1)
    # Both ends' classes show in an edge, through noise.
    edges = rng.random((len(src), 8)).astype(np.float32) * 0.5
    edges[np.arange(len(src)), classes[src]] += 0.5
    wanted = rng.integers(2, size=(112, 8))
    labels = wanted[:, classes].T ^ (rng.random((nodes, 112)) < 0.1)
    raw = folder / "raw"
    table(raw / "edge.csv.gz", zip(src, dst, strict=True))
    table(raw / "edge-feat.csv.gz", edges.round(3))
    table(raw / "num-node-list.csv.gz", [nodes])
    table(raw / "num-edge-list.csv.gz", [len(src)])
    table(raw / "node_species.csv.gz", rng.integers(8, size=nodes))
    table(raw / "node-label.csv.gz", labels.astype(int))
    for name, ids in zip(("train", "valid", "test"), parts(rng, nodes), strict=True):
        table(folder / "split/species" / f"{name}.csv.gz", ids)
    (folder / "RELEASE_v1.txt").touch()


def interactions(folder, rng, nodes=200):
    """PPI: several graphs to a split, and 121 labels of yes and no to a vertex."""
    folder.mkdir(parents=True)
    wanted = rng.integers(2, size=(121, 6))
    centers = rng.normal(size=(6, 50))
    for name, graphs in {"train": 4, "valid": 2, "test": 2}.items():
        features, labels, links = [], [], []
        for graph in range(graphs):
            classes, _, src, dst = communities(rng, nodes, 6, 6, 1)
            features.append(centers[classes] + 2 * rng.normal(size=(nodes, 50)))
            labels.append(wanted[:, classes].T)
            ends = np.stack([src, dst]) + graph * nodes
            links += [
                {"source": int(a), "target": int(b)} for a, b in np.hstack([ends, ends[::-1]]).T
            ]
        ids = range(graphs * nodes)
        graph = {"directed": True, "multigraph": False, "graph": {}}
        graph |= {"nodes": [{"id": i} for i in ids], "links": links}
        (folder / f"{name}_graph.json").write_text(json.dumps(graph))
        np.save(folder / f"{name}_feats.npy", np.concatenate(features))
        np.save(folder / f"{name}_labels.npy", np.concatenate(labels))
        np.save(folder / f"{name}_graph_id.npy", np.repeat(np.arange(graphs), nodes))


def unpacked(folder, name, address, files):
    """A data set where DGL looks before it downloads: in a folder named after its address."""
    mark = hashlib.sha1(f"https://data.dgl.ai/dataset/{address}".encode()).hexdigest()[:8]
    home = folder / f"{name}_{mark}"
    home.mkdir(parents=True)
    for file, content in files.items():
        (home / file).write_bytes(content)


def written(write, *values, **named):
    """The bytes that a function writes to a file."""
    file = io.BytesIO()
    write(file, *values, **named)
    return file.getvalue()


def dgl_data(folder, rng):
    """The data sets that DGL's scripts take from ``dgl.data``."""
    import scipy.io as sio
    import scipy.sparse as sp

    nodes = 2000
    labels, features, src, dst = communities(rng, nodes, 7, 8, 64)
    types = np.empty(nodes, np.int64)
    for number, ids in enumerate(parts(rng, nodes), 1):
        types[ids] = number
    loops = np.arange(nodes)
    for name, more in {"reddit": [], "reddit_self_loop": [loops]}.items():
        ends = np.concatenate([src, dst, *more]), np.concatenate([dst, src, *more])
        matrix = sp.coo_matrix((np.ones(len(ends[0])), ends), (nodes, nodes))
        matrix.sum_duplicates()
        data = written(np.savez, feature=features, label=labels, node_types=types)
        files = {"reddit_data.npz": data, f"{name}_graph.npz": written(sp.save_npz, matrix)}
        unpacked(folder, name, f"{name}.zip", files)

    # Reviews, of which some are spam: three relations of one type.
    fraud = labels < 2
    shown = features[:, :32]
    several = {"features": sp.csc_matrix(shown), "label": fraud.astype(np.int64)[None]}
    for number, relation in enumerate(("net_rur", "net_rtr", "net_rsr")):
        some = rng.random(len(src)) < 0.2 + 0.1 * number
        ends = np.r_[src[some], dst[some]], np.r_[dst[some], src[some]]
        several[relation] = sp.csc_matrix((np.ones(len(ends[0])), ends), (nodes, nodes))
    unpacked(folder, "yelp", "FraudYelp.zip", {"YelpChi.mat": written(sio.savemat, several)})

    # News and those who pass it on; some of the news is false.
    news, users = 300, 900
    false = rng.random(news) < 0.4
    ends = np.unique(
        np.stack([rng.integers(news, size=4000), rng.integers(users, size=4000)]), axis=1
    )
    row, col = ends[0], ends[1] + news
    matrix = sp.coo_matrix((np.ones(2 * len(row)), (np.r_[row, col], np.r_[col, row])))
    nodewise = rng.normal(size=(news + users, 32)).astype(np.float32)
    nodewise[:news, 0] += 0.7 * false
    edgewise = np.tile(rng.normal(size=(len(row), 32)).astype(np.float32), (2, 1))
    retweets = {"graph": matrix, "label": false.astype(np.int64)[None]}
    files = {"pol_retweet_graph.mat": written(sio.savemat, retweets)}
    files["pol_node_feature.npy"] = written(np.save, nodewise)
    files["pol_edge_feature.npy"] = written(np.save, edgewise)
    unpacked(folder, "pol", "GASPOL.zip", files)

    unpacked(folder, "aifb-hetero", "rdf/aifb-hetero.zip", staff(rng))


def staff(rng, people=176, groups=4):
    """AIFB: people, whose group shows in what they publish and work at."""
    entity = "<http://www.aifb.uni-karlsruhe.de/{}/viewX/{}>"
    relation = "<http://swrc.ontoware.org/ontology#{}>"
    group = rng.integers(groups, size=people)
    lines = []
    for kind, name, each, count in (
        ("Publikationen", "author", 6, 400),
        ("Projekte", "worksAtProject", 3, 60),
    ):
        share = count // groups
        for person, of in enumerate(group):
            for _ in range(each):
                stranger = rng.random() < 0.6
                thing = rng.integers(count) if stranger else of * share + rng.integers(share)
                ends = (
                    entity.format("Personen", f"p{person}"),
                    entity.format(kind, f"{kind[:3]}{thing}"),
                )
                lines.append(f"{ends[0]} {relation.format(name)} {ends[1]} .")
    rows = [
        f"{entity.format('Personen', f'p{p}')[1:-1]}\t{p}\tgroup{group[p]}" for p in range(people)
    ]
    files = {"aifb.nt": "\n".join(sorted(set(lines))).encode()}
    for name, some in {"trainingSet.tsv": rows[:140], "testSet.tsv": rows[140:]}.items():
        files[name] = "\n".join(["person\tid\tlabel_affiliation", *some]).encode()
    return files


def shop(folder, rng, customers=600, products=80, purchases=12_000):
    """A database in RelBench's form: will a customer buy in the next 30 days?"""
    import pandas as pd
    from relbench.manifest import DatasetManifest, TableSpec, TaskManifest

    start = pd.Timestamp("2024-01-01")
    days = 360
    eager = rng.random(customers)
    # Customers buy in spells: who bought lately buys again.
    spells = rng.random((customers, days // 60)) < eager[:, None]
    who = rng.integers(customers, size=purchases)
    day = rng.integers(days, size=purchases)
    bought = spells[who, day // 60]
    who, day = who[bought], np.sort(day[bought])
    words = np.array(["blue", "green", "round", "small", "large", "old", "new", "plain"])
    tables = {
        "customer": pd.DataFrame({
            "id": np.arange(customers),
            "age": rng.integers(18, 90, customers),
            "city": rng.choice(["Oslo", "Rome", "Lima"], customers),
            "joined": start - pd.to_timedelta(rng.integers(1, 400, customers), "D"),
        }),
        "product": pd.DataFrame({
            "id": np.arange(products),
            "price": rng.gamma(2, 10, products).round(2),
            "description": [" ".join(rng.choice(words, 4)) for _ in range(products)],
        }),
        "purchase": pd.DataFrame({
            "id": np.arange(len(who)),
            "customer": who,
            "product": rng.integers(products, size=len(who)),
            "pieces": rng.integers(1, 5, len(who)),
            "time": start + pd.to_timedelta(day, "D"),
        }),
    }  # fmt: skip
    specs = {
        "customer": TableSpec("id", "joined"),
        "product": TableSpec("id"),
        "purchase": TableSpec("id", "time", {"customer": "customer", "product": "product"}),
    }
    (folder / "db").mkdir(parents=True)
    for name, frame in tables.items():
        frame.to_parquet(folder / "db" / f"{name}.parquet")
    DatasetManifest("shop", "2024-09-01", "2024-10-31", tables=specs).save(folder / "manifest.yaml")
    sql = """SELECT t.timestamp AS time, c.id AS customer,
    CAST(EXISTS (
        SELECT 1 FROM purchase p
        WHERE p.customer = c.id AND p.time > t.timestamp
            AND p.time <= t.timestamp + INTERVAL '{timedelta}'
    ) AS INTEGER) AS buys
FROM timestamps t CROSS JOIN customer c WHERE c.joined <= t.timestamp"""
    task = TaskManifest("buys", "forecast", "binary_classification", sql=sql, timedelta="30 days")
    task.entity_table, task.entity_col, task.target_col, task.time_col = (
        "customer",
        "customer",
        "buys",
        "time",
    )
    task.save(folder / "tasks/buys/manifest.yaml")
