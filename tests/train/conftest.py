"""The small graph that tests of training share, and the frameworks that they run with."""

import pytest
from community import community_graph
from faces import NAMES

from pagraph.train.models import framework_of


@pytest.fixture
def graph():
    """A fresh graph whose fields a test may change."""
    return community_graph()


@pytest.fixture(params=NAMES)
def framework(request):
    """Each framework in turn."""
    return framework_of(request.param)


@pytest.fixture
def pyg_without_extensions(monkeypatch):
    """Lets PyG's own loader run without pyg-lib and torch-sparse: our sampler draws for it, and
    counts no hops."""
    from pagraph.pyg import NeighborSampler, training

    if training.pyg_typing.WITH_PYG_LIB or training.pyg_typing.WITH_TORCH_SPARSE:
        return

    class Uncounted(NeighborSampler):
        def sample_from_nodes(self, inputs):
            output = super().sample_from_nodes(inputs)
            output.num_sampled_nodes = output.num_sampled_edges = None
            return output

        def sample_from_edges(self, inputs, neg_sampling=None):
            output = super().sample_from_edges(inputs, neg_sampling)
            output.num_sampled_nodes = output.num_sampled_edges = None
            return output

    class Loader(training._PyGsLoader):
        def __init__(self, data, num_neighbors, input_nodes, **more):
            sampler = Uncounted(data, num_neighbors)
            super().__init__(data, num_neighbors, input_nodes, neighbor_sampler=sampler, **more)

    class LinkLoader(training._PyGsLinkLoader):
        def __init__(self, data, num_neighbors, **more):
            super().__init__(
                data, num_neighbors, neighbor_sampler=Uncounted(data, num_neighbors), **more
            )

    monkeypatch.setattr(training, "_PyGsLoader", Loader)
    monkeypatch.setattr(training, "_PyGsLinkLoader", LinkLoader)
    monkeypatch.setattr(training._PyG, "check_own_loader", lambda self: None)


@pytest.fixture(scope="module", autouse=True)
def _unsynced(unsynced):
    """All of these tests write folders."""
