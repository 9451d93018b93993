"""What a forecast is made from: the machines, the sharded tables, and the policy. Plain values, from whatever source."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from glob import escape

import numpy as np
import torch

from torchrec_qcomm.errors import PlannerError, describe
from torchrec_qcomm.planner.kinds import Kind, kind_of
from torchrec_qcomm.policy import Link, Policy, ResolvedPolicy, Rule, Table


class Reach(StrEnum):
    """How far bytes go. A policy's link ``inter_host`` is every reach beyond the host."""

    SELF = "self"
    """A rank's share with itself."""

    INTRA_HOST = "intra_host"
    INTRA_POD = "intra_pod"
    """Between hosts of one pod; nothing where a pod is one host."""

    INTER_POD = "inter_pod"
    """Between pods; where a pod is one host, between hosts."""

    UNKNOWN = "unknown"
    """To another rank, and it is not known how many ranks a host has."""


REACHES = tuple(Reach)
"""The columns of arrays ``[..., reach]``."""

LINKS = (Link.SELF, Link.INTRA_HOST, Link.INTER_HOST)
"""The columns of arrays ``[..., link]``."""

LINK_OF_REACH = {
    Reach.SELF: Link.SELF,
    Reach.INTRA_HOST: Link.INTRA_HOST,
    Reach.INTRA_POD: Link.INTER_HOST,
    Reach.INTER_POD: Link.INTER_HOST,
    Reach.UNKNOWN: Link.INTER_HOST,
}
"""The policy's word for each reach. Where hosts are not known, a policy that depends on the link is refused."""

LINK_INDEX = np.array([LINKS.index(LINK_OF_REACH[reach]) for reach in REACHES])
"""For each column of ``[..., reach]``, the column of ``[..., link]``."""


@dataclass(frozen=True, slots=True)
class Machines:
    """The ranks, and what joins them. Global ranks fill the hosts in order, and hosts the pods.

    Attributes:
        world_size: ranks in all.
        devices_per_host: ranks on each host; ``None``: not known, and then nothing is said of hosts.
        pod_hosts: hosts whose ranks are joined by the fast link.
        intra_host_gb_per_s: GB/s (1e9 bytes) of a rank, one way, inside a host (and a pod).
        inter_host_gb_per_s: likewise between hosts; a host's NIC has this times its ranks, which share it.
        device: ``cpu``, ``cuda`` or ``mtia``; ``None``: not known.

    Raises:
        PlannerError: ranks do not fill the hosts, or hosts the pods, or a number is not positive.
    """

    world_size: int
    devices_per_host: int | None
    pod_hosts: int = 1
    intra_host_gb_per_s: float = 600.0
    inter_host_gb_per_s: float = 12.5
    device: str | None = None

    def __post_init__(self) -> None:
        for name in ("world_size", "devices_per_host", "pod_hosts", "intra_host_gb_per_s", "inter_host_gb_per_s"):
            value = getattr(self, name)
            if not (value is None and name == "devices_per_host") and not value > 0:
                raise PlannerError(describe(f"machines: {name}", "not positive", got=value, allowed="above 0"))
        if self.devices_per_host is not None and self.world_size % self.devices_per_host:
            wrong = f"{self.world_size} ranks do not fill hosts of this size"
            allowed = f"a divisor of {self.world_size}"
            raise PlannerError(describe("machines: devices_per_host", wrong, got=self.devices_per_host, allowed=allowed))
        if self.devices_per_host is not None and self.hosts % self.pod_hosts:
            wrong, allowed = f"{self.hosts} hosts do not fill pods of this size", f"a divisor of {self.hosts}"
            raise PlannerError(describe("machines: pod_hosts", wrong, got=self.pod_hosts, allowed=allowed))

    @property
    def hosts(self) -> int:
        """Hosts in all; every rank is one where it is not known."""
        return self.world_size // (self.devices_per_host or 1)


@dataclass(frozen=True, slots=True, eq=False)
class PlannedTable:
    """One sharded table.

    Attributes:
        table: name, rows and dim of the whole table.
        module: path of its collection in the model.
        features: that look into it.
        pooling: ids of a sample, for each feature (TorchRec's pooling factors); where it has several bags, of each.
        sharding_type: TorchRec's value: ``table_wise``, ``row_wise``, ...
        ranks: int64 ``[shards]``: where each shard is, as ranks of the sharding group. Empty for data-parallel tables, which
            are on all ranks.
        shard_rows, shard_dims: int64 ``[shards]``: the size of each.
        row_offsets: int64 ``[shards]``: the first row of each.
        pooled: of an EmbeddingBagCollection; else of an EmbeddingCollection.
        weighted: its ids come with weights.
        payload: dtype of its vectors in the exchange, before quantization.
        value_bytes: of a weight in memory.
        num_poolings: for each feature, how many bags a sample has (TorchRec's ``num_poolings``); empty: one each.
    """

    table: Table
    module: str
    features: tuple[str, ...]
    pooling: tuple[float, ...]
    sharding_type: str
    ranks: np.ndarray
    shard_rows: np.ndarray
    shard_dims: np.ndarray
    row_offsets: np.ndarray
    pooled: bool = True
    weighted: bool = False
    payload: torch.dtype = torch.float32
    value_bytes: int = 4
    num_poolings: tuple[float, ...] = ()

    @property
    def kind(self) -> Kind:
        """What is known of its sharding type."""
        return kind_of(self.sharding_type)


@dataclass(frozen=True, slots=True)
class Replicas:
    """2D parallelism: groups of ranks that each hold all tables, and keep their weights in step.

    Attributes:
        group_size: ranks of a sharding group.
        strided: TorchRec's default: group ``i`` of ``n`` has the ranks ``i, i + n, i + 2 n, ...``; else neighbouring ranks
            (``use_inter_host_allreduce``).
        sync_interval: steps from one all-reduce of the weights to the next.
        node_group_size: neighbours of a group that share the rows of a table-row-wise or grid table out, as TorchRec is told;
            ``None``: as many as a host has ranks, of whatever group, which is TorchRec's default.
    """

    group_size: int
    strided: bool = True
    sync_interval: int = 1
    node_group_size: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """A training job as a forecast looks at it.

    Attributes:
        tables: all of them, of all collections.
        machines: the ranks and links.
        batch_size: samples of a rank.
        policy: the codecs.
        hierarchical_row_wise: row-wise pooled tables are summed inside hosts first.
        replicas: with 2D parallelism; else ``None``.
        index_bytes: of an id in the exchange of ids.
        length_bytes: of a length there, one for each bag.
        weight_bytes: of the weight of an id there.
        assumptions: sentences on what was assumed because nothing said it ("pooling factor 1 for all tables: ..."); reported.
        untouched: names of tables that TorchRec exchanges itself, as they are, whatever a policy says.
        planned_memory: FP64 ``[world]``: bytes that TorchRec's planner reckons with on each rank: weights, optimizer, buffers,
            and what is not sharded as far as its figures hold that; ``None``: not known.
    """

    tables: tuple[PlannedTable, ...]
    machines: Machines
    batch_size: int
    policy: Policy = field(default_factory=Policy)
    hierarchical_row_wise: bool = False
    replicas: Replicas | None = None
    index_bytes: int = 8
    assumptions: tuple[str, ...] = ()
    length_bytes: int = 8
    weight_bytes: int = 4
    untouched: tuple[str, ...] = ()
    planned_memory: np.ndarray | None = None

    def under(self, policy: Policy) -> Job:
        """The same job with other codecs; with a rule first that leaves ``untouched`` tables as they are, if there are any."""
        if self.untouched and policy != Policy():
            first = Rule(tuple(map(escape, self.untouched)), forward="none", backward="none", allow_unmatched=True)
            if first not in policy.rules:
                policy = replace(policy, rules=(first, *policy.rules))
        return replace(self, policy=policy)

    def resolved(self) -> dict[str, ResolvedPolicy]:
        """The codecs of each collection's tables, by its path: as when it is sharded, each for itself.

        In another collection a name may stand for another table.
        """
        by_module: dict[str, list[Table]] = {}
        for planned in self.tables:
            by_module.setdefault(planned.module, []).append(planned.table)
        return {module: self.policy.resolve(tables) for module, tables in by_module.items()}

    def groups(self) -> list[list[int]]:
        """The global ranks of every sharding group: one, or with 2D parallelism several.

        Raises:
            PlannerError: the groups do not divide the ranks.
        """
        world = self.machines.world_size
        if self.replicas is None:
            return [list(range(world))]
        size = self.replicas.group_size
        if size < 1 or world % size:
            wrong = f"{world} ranks cannot be dealt out to groups of this size"
            raise PlannerError(describe("2D: sharding group", wrong, got=size, allowed=f"a divisor of {world}"))
        count = world // size
        if self.replicas.strided:
            return [list(range(first, world, count)) for first in range(count)]
        return [list(range(first, first + size)) for first in range(0, world, size)]
