"""From the codecs in force to the layouts of a hop, and to the running ranges of what this rank sends in it."""

from __future__ import annotations

from typing import NamedTuple

import torch.distributed as dist

from torchrec_qcomm.codecs import Codec
from torchrec_qcomm.policy import Direction, Link
from torchrec_qcomm.sharding.dists.settings import HopSettings
from torchrec_qcomm.sharding.precision import TableCodecs
from torchrec_qcomm.state.running_ranges import RunningRanges
from torchrec_qcomm.wire import PooledLayout


class Layouts(NamedTuple):
    """Of one version of the precision.

    Attributes:
        forward, backward: of the lookups, and of their gradients.
        ranges: by direction, of the tables whose rows share a range.
    """

    forward: PooledLayout
    backward: PooledLayout
    ranges: dict[str, RunningRanges]


def layouts_of(settings: HopSettings, codecs: TableCodecs) -> tuple[PooledLayout, PooledLayout]:
    """Forward and backward.

    Raises:
        ShardingError: a codec cannot carry the values of a table.
    """
    ranks = dist.get_process_group_ranks(settings.group)
    for table in {column.table for owned in settings.columns for column in owned}:
        codecs.check_payload(table, settings.dtype)

    def link_of(owner: int, sample: int) -> Link:
        return codecs.link(ranks[owner], ranks[sample])

    def one(direction: Direction) -> PooledLayout:
        def codec_of(table: str, link: Link) -> Codec:
            return codecs.codec(table, direction, link)

        return settings.layout(settings.columns, codec_of, link_of, settings.dtype, settings.takers)

    return one(Direction.FORWARD), one(Direction.BACKWARD)


def ranges_of(settings: HopSettings, codecs: TableCodecs, name: str) -> dict[str, RunningRanges]:
    """By direction, the running ranges of the exchange ``name``; what the version before knew of the same goes on."""
    me, state = settings.group.rank(), settings.collection.state
    rank = dist.get_process_group_ranks(settings.group)[me]
    found = {}
    for direction in Direction:
        senders = [settings.columns[me]] if direction == Direction.FORWARD else settings.columns
        tables = {column.table for owned in senders for column in owned}
        ranges = state.ranges.of(f"{name}/{direction}", rank, codecs.ranged(tables, direction))
        if ranges is not None:
            found[str(direction)] = ranges
    return found
