"""Where a codec applies: at a site, which is a table (or later something else), a direction and a link."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from torchrec_qcomm.errors import PolicyError, describe


class What(StrEnum):
    """The kind of thing whose values are exchanged."""

    TABLE = "table"
    """An embedding table: its lookups forward, their gradients backward."""


class Direction(StrEnum):
    """Which way the rows go."""

    FORWARD = "forward"
    """Lookups, from the owner of a shard to the rank that has the samples."""

    BACKWARD = "backward"
    """Gradients, the other way."""


class Link(StrEnum):
    """What lies between two ranks."""

    SELF = "self"
    """Nothing: a rank's share with itself. Follows ``intra_host`` unless a rule names it."""

    INTRA_HOST = "intra_host"
    INTER_HOST = "inter_host"


class Site(NamedTuple):
    """Where a codec applies. Plain texts find the same site as the enums.

    Attributes:
        what: the kind of thing.
        name: of the thing: a table's.
        direction: which way its values go.
        link: what they go over.
    """

    what: What | str
    name: str
    direction: Direction | str
    link: Link | str


def link_between(src: int, dst: int, devices_per_host: int) -> Link:
    """The link from one global rank to another; ranks fill the hosts in order.

    Args:
        src: the global rank that sends.
        dst: the global rank that receives.
        devices_per_host: ranks on each host, at least 1.

    Raises:
        PolicyError: a rank is negative or ``devices_per_host`` is below 1.

    >>> [str(link_between(3, dst, devices_per_host=2)) for dst in (1, 2, 3)]
    ['inter_host', 'intra_host', 'self']
    """
    if devices_per_host < 1:
        raise PolicyError(describe("link_between: devices_per_host", "not a count", got=devices_per_host, allowed="1 or more"))
    if src < 0 or dst < 0:
        raise PolicyError(describe("link_between: src, dst", "not a global rank", got=(src, dst), allowed="0 or more"))
    if src == dst:
        return Link.SELF
    return Link.INTRA_HOST if src // devices_per_host == dst // devices_per_host else Link.INTER_HOST


@dataclass(frozen=True, slots=True)
class Table:
    """What a rule looks at: an embedding table, whole. Never a shard of it.

    Attributes:
        name: as in TorchRec's config.
        rows: ``num_embeddings``.
        dim: ``embedding_dim``.
    """

    name: str
    rows: int
    dim: int

    def __post_init__(self) -> None:
        for label, value in (("rows", self.rows), ("dim", self.dim)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise PolicyError(
                    describe(f"table {self.name!r}: {label}", "not a size", got=value, allowed="a whole number >= 1")
                )
