"""Which ranks share a host, for an exchange that sums inside hosts first."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence

import torch.distributed as dist
from torchrec.distributed.types import ShardingEnv, ShardingEnv2D

from torchrec_qcomm.errors import ShardingError, describe

logger = logging.getLogger(__name__)

_HIERARCHICAL = "hierarchical_row_wise"


def exchange_group(env: ShardingEnv) -> dist.ProcessGroup | None:
    """The ranks that exchange with each other: with 2D parallelism those of a sharding group, whose plans differ."""
    return env.sharding_pg if isinstance(env, ShardingEnv2D) else env.process_group


def summing_ranks(devices_per_host: int | None, env: ShardingEnv) -> int:
    """How many ranks of a host sum row-wise lookups before they leave it; 1 where one hop does the same.

    That is with one host and with one rank on each host, and is logged.

    Args:
        devices_per_host: ranks on each host, or ``None`` where that is not known.
        env: whose ranks exchange.

    Raises:
        ShardingError: hosts are not known, or do not have equally many of these ranks, one host's after the other's.
    """
    if devices_per_host is None:
        wrong = "it is not known how many ranks a host has"
        allowed = "LOCAL_WORLD_SIZE in the environment, or topology.devices_per_host in the configuration"
        raise ShardingError(describe(_HIERARCHICAL, wrong, got=None, allowed=allowed))
    group = exchange_group(env)
    if group is None:
        return 1
    world, ranks = dist.get_world_size(), dist.get_process_group_ranks(group)
    if world % devices_per_host:
        where, wrong = f"{_HIERARCHICAL}, devices per host (LOCAL_WORLD_SIZE)", "the ranks do not fill hosts of this size"
        raise ShardingError(describe(where, wrong, got=devices_per_host, allowed=f"a divisor of {world}"))
    hosts = [rank // devices_per_host for rank in ranks]
    sizes = Counter(hosts)
    here = sizes[hosts[0]]
    if set(sizes.values()) != {here} or any(hosts[i - i % here] != host for i, host in enumerate(hosts)):
        wrong, allowed = "the ranks that share tables are not equally many on each host, one host after the other", "such ranks"
        raise ShardingError(describe(_HIERARCHICAL, wrong, got=ranks, allowed=allowed))
    if here in (1, len(ranks)):
        shape = "one rank on each host" if here == 1 else "one host"
        logger.info("%s: with %s, row-wise tables are exchanged in one hop, which does the same", _HIERARCHICAL, shape)
        return 1
    return here


def require_hosts(group: dist.ProcessGroup, intra: dist.ProcessGroup, cross: dist.ProcessGroup, here: int) -> None:
    """Refuse groups that are not the hosts of ``group`` with ``here`` ranks each, and the ranks of one place in them.

    Raises:
        ShardingError: TorchRec, which makes the groups, goes by another size of a host.
    """
    ranks, me = dist.get_process_group_ranks(group), group.rank()
    first = me - me % here
    _require(intra, ranks[first : first + here])
    _require(cross, ranks[me % here :: here])


def _require(group: dist.ProcessGroup, ranks: Sequence[int]) -> None:
    if (got := dist.get_process_group_ranks(group)) != ranks:
        todo = (
            "TorchRec goes by LOCAL_WORLD_SIZE, TORCHREC_RESOLVED_POD_SIZE, or the node_group_size of 2D parallelism, and by "
            "what a process asked for first."
        )
        wrong = "TorchRec's groups of ranks are not the hosts"
        raise ShardingError(describe(_HIERARCHICAL, wrong, got=got, allowed=f"global ranks {ranks}", todo=todo))
