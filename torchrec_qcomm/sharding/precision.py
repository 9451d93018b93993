"""The policy as one process group meets it: which codec a table gets between two ranks, and which version is in force."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torchrec.distributed.types import ShardingType

from torchrec_qcomm.codecs import Codec, CodecSpec
from torchrec_qcomm.codecs.formats.one_range import OneRange
from torchrec_qcomm.errors import CodecError, ShardingError, describe
from torchrec_qcomm.policy import Direction, Link, Policy, ResolvedPolicy, Table, link_between
from torchrec_qcomm.sharding.plan import ModulePlan, TableConfig
from torchrec_qcomm.state.running_ranges import RangedTable

logger = logging.getLogger(__name__)

CodecFactory = Callable[[CodecSpec], Codec]


class TableCodecs:
    """One version of the precision: codecs by table, direction and link.

    Args:
        policy: resolved for at least the tables that are asked for.
        devices_per_host: ranks on each host, or ``None`` where that is not known. Only kept if the policy depends on it.
        codec_factory: makes the codec of a spec; asked once a spec.

    Raises:
        ShardingError: the policy depends on the link, and ``devices_per_host`` is not known.
    """

    def __init__(self, policy: ResolvedPolicy, devices_per_host: int | None, codec_factory: CodecFactory) -> None:
        self.policy = policy
        table = _table_with_links(policy)
        # A policy that does not tell hosts apart works on hosts of unequal size, and must not ask how large they are.
        self.devices_per_host = devices_per_host if table else None
        self._factory = codec_factory
        self._codecs: dict[CodecSpec, Codec] = {}
        if devices_per_host is None and table:
            raise ShardingError(
                describe(
                    f"table {table!r}",
                    "its codec depends on the link, but it is not known how many ranks a host has",
                    got=None,
                    allowed="LOCAL_WORLD_SIZE in the environment, or topology.devices_per_host in the configuration",
                )
            )

    def codec(self, table: str, direction: Direction, link: Link) -> Codec:
        """The codec of a site.

        Raises:
            ShardingError: the factory made one whose rows share a range, and nothing of what keeps that knows it.
        """
        spec = self.policy.codec(table, direction, link)
        if spec not in self._codecs:
            codec = self._factory(spec)
            if codec.range_header_bytes and not isinstance(codec, OneRange):
                wrong = "the rows of a table share its range, so it must be the class that keeps one, or derived from it"
                raise ShardingError(describe(f"codec_factory, {spec}", wrong, got=type(codec).__name__, allowed="a OneRange"))
            self._codecs[spec] = codec
        return self._codecs[spec]

    def link(self, source: int, destination: int) -> Link:
        """The link between two *global* ranks; without need of a topology, any other rank is on another host."""
        if self.devices_per_host is None:
            return Link.SELF if source == destination else Link.INTER_HOST
        return link_between(source, destination, self.devices_per_host)

    def ranged(self, tables: Iterable[str], direction: Direction) -> set[RangedTable]:
        """Those of ``tables`` whose rows share a range, each with its codec; a table with two codecs, on two links, twice."""
        found = ((table, self.codec(table, direction, link)) for table in tables for link in Link)
        return {(table, codec) for table, codec in found if isinstance(codec, OneRange)}

    def check_payload(self, table: str, dtype: torch.dtype) -> None:
        """Refuse codecs that cannot carry values of ``dtype``.

        Raises:
            ShardingError: names the table, the site and what the codec says.
        """
        for direction in Direction:
            for link in Link:
                try:
                    self.codec(table, direction, link).check_payload(dtype)
                except CodecError as error:
                    raise ShardingError(f"table {table!r}, {direction}, {link}: {error}") from error


@dataclass(slots=True)
class Precision:
    """What the exchanges of a collection are encoded in. It may change between steps, on all ranks alike.

    Attributes:
        codecs: the version in force. Exchanges take it in their forward and keep it for their backward.
    """

    codecs: TableCodecs


def _table_with_links(policy: ResolvedPolicy) -> str | None:
    """A table whose codec differs between hosts and inside one; ``None`` if there is none.

    ``self`` does not count: a rank knows itself without a topology.
    """
    for table in policy.tables:
        for direction in Direction:
            inside, across = (policy.codec(table.name, direction, link) for link in (Link.INTRA_HOST, Link.INTER_HOST))
            if inside != across:
                return table.name
    return None


def table_codecs(
    configs: Sequence[TableConfig],
    params: ModulePlan,
    policy: Policy,
    devices_per_host: int | None,
    codec_factory: CodecFactory,
) -> TableCodecs:
    """The codecs of a collection's tables.

    Raises:
        ShardingError: the policy needs to know the hosts and cannot.
    """
    resolved = policy.resolve(Table(c.name, c.num_embeddings, c.embedding_dim) for c in configs)
    found = TableCodecs(resolved, devices_per_host, codec_factory)
    hosts, world = found.devices_per_host, dist.get_world_size() if dist.is_initialized() else 1
    if hosts and world % hosts:
        wrong = "the policy tells links apart, and the ranks do not fill hosts of this size"
        raise ShardingError(describe("devices per host (LOCAL_WORLD_SIZE)", wrong, got=hosts, allowed=f"a divisor of {world}"))
    alone = [c.name for c in configs if params[c.name].sharding_type == ShardingType.DATA_PARALLEL.value]
    if idle := [name for name in alone if resolved.quantizes(name)]:
        logger.warning("the policy quantizes tables that are data-parallel and so are not exchanged: %s", ", ".join(idle))
    return found
