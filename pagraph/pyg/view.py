"""Views: what a PyG loader is made of, for its engine, which must not keep the loader alive."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..system.buffers import BufferPools

__all__ = ["LinkView", "NodeView", "Viewed"]


@dataclass(eq=False)
class _View:
    """What any ``filter_fn`` reads of a loader, as it is now."""

    data: Any = None
    input_data: Any = None
    transform: Callable[..., Any] | None = None
    transform_sampler_output: Callable[..., Any] | None = None
    custom_cls: Any = None


@dataclass(eq=False)
class NodeView(_View):
    """What ``NodeLoader.filter_fn`` reads."""

    node_sampler: Any = None

    @property
    def sampler(self) -> Any:
        """Draws the subgraphs."""
        return self.node_sampler

    def sample(self, inputs: Any) -> Any:
        """A subgraph of a user's own sampler."""
        return self.node_sampler.sample_from_nodes(inputs)

    def sample_ahead(self, inputs: Any, key: int, pools: BufferPools) -> tuple[Any, dict[str, list[int]]]:
        """A subgraph of our sampler, and where the vertices of each hop end."""
        result: tuple[Any, dict[str, list[int]]] = self.node_sampler.sample_nodes(inputs, key, pools)
        return result


@dataclass(eq=False)
class LinkView(_View):
    """What ``LinkLoader.filter_fn`` reads."""

    link_sampler: Any = None
    neg_sampling: Any = None

    @property
    def sampler(self) -> Any:
        """Draws the subgraphs."""
        return self.link_sampler

    def sample(self, inputs: Any) -> Any:
        """A subgraph of a user's own sampler."""
        return self.link_sampler.sample_from_edges(inputs, neg_sampling=self.neg_sampling)

    def sample_ahead(self, inputs: Any, key: int, pools: BufferPools) -> tuple[Any, dict[str, list[int]]]:
        """A subgraph of our sampler, and where the vertices of each hop end."""
        result: tuple[Any, dict[str, list[int]]] = self.link_sampler.sample_edges(inputs, self.neg_sampling, key, pools)
        return result


class Viewed:
    """An attribute of a loader that lives in its ``_view``, so that what the user sets is seen by the next batch.

    ``vars(loader)`` holds it too, where Lightning looks for a loader's arguments to make it again.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else getattr(instance._view, self._name)

    def __set__(self, instance: Any, value: Any) -> None:
        setattr(instance._view, self._name, value)
        vars(instance)[self._name] = value
