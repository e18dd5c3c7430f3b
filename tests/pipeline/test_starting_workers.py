"""What is run when worker threads start, and which cores they may be pinned to."""

from types import SimpleNamespace

import pytest

from pagraph.system.threads import lock_of, near_cores, starting_workers


@pytest.mark.parametrize("users", [False, True])
def test_ours_comes_before_the_users_function_which_is_put_back(users):
    calls = []
    loader = SimpleNamespace(
        worker_init_fn=(lambda worker: calls.append(("user", worker))) if users else None
    )
    before = loader.worker_init_fn
    with (
        pytest.raises(KeyError),
        starting_workers(loader, lambda worker: calls.append(("ours", worker))),
    ):
        loader.worker_init_fn(3)
        raise KeyError
    assert calls == [("ours", 3), ("user", 3)][: 2 if users else 1]
    assert loader.worker_init_fn is before


@pytest.mark.parametrize(
    ("allowed", "workers", "nodes", "expected"),
    [
        ({0, 1, 2, 3}, 1, {0: [(0, [0, 2]), (1, [1, 3])]}, [0, 1]),
        ({2, 1, 3}, 1, {0: [(0, [0, 2]), (1, [1, 3])]}, [2, 1]),
        ({0, 1, 2, 3}, 2, {0: [(0, [0, 2]), (1, [1, 3])]}, [0, 1, 2, 3]),
        ({4, 5}, 1, {0: [(0, [0]), (1, [1])]}, [4, 5]),
        ({1, 0}, 1, {}, [0, 1]),
    ],
)
def test_the_cores_of_the_first_node(allowed, workers, nodes, expected):
    assert near_cores(allowed, workers, nodes) == expected


class Sampler:
    """A user's object."""


def test_locks_belong_to_objects():
    one, other = Sampler(), Sampler()
    assert lock_of(one) is lock_of(one) and lock_of(one) is not lock_of(other)
    assert lock_of([]) is not lock_of([])  # which cannot be told apart
    with lock_of(one), lock_of(one):
        pass
