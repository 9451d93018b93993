"""What a forecast is made from: the machines, the sharded tables and the policy, as plain values."""

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
    """How far bytes go. It is finer than a policy's link, which is ``inter_host`` for all that leaves the host."""

    SELF = "self"
    """A rank's share with itself."""

    INTRA_HOST = "intra_host"
    INTRA_POD = "intra_pod"
    """Between hosts of one pod. There are no such bytes where a pod is one host."""

    INTER_POD = "inter_pod"
    """Between pods; where a pod is one host, between hosts."""

    UNKNOWN = "unknown"
    """To another rank, where it is not known how many ranks a host has."""


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
"""For each column of arrays ``[..., reach]``, the column of arrays ``[..., link]``."""


@dataclass(frozen=True, slots=True)
class Machines:
    """The ranks and the links between them. Global ranks fill the hosts in order, and hosts fill the pods.

    Attributes:
        world_size: ranks in all.
        devices_per_host: ranks on each host; ``None``: not known. Then no figure says anything of hosts.
        pod_hosts: hosts whose ranks are joined by the fast link.
        intra_host_gb_per_s: GB/s (1e9 bytes) of a rank inside a host and a pod, one way.
        inter_host_gb_per_s: GB/s of a rank between hosts, one way. A host's NIC has this times its ranks, which share it.
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
        features: names of the features that look into it.
        pooling: for each feature, the ids of a bag (TorchRec's pooling factors).
        sharding_type: TorchRec's value: ``table_wise``, ``row_wise``, ...
        ranks: int64 ``[shards]``: the rank of each shard in the sharding group. It is empty for data-parallel tables, which are
            on all ranks.
        shard_rows, shard_dims: int64 ``[shards]``: rows and columns of each shard.
        row_offsets: int64 ``[shards]``: the first row of each shard.
        pooled: whether it is of an EmbeddingBagCollection, and not of an EmbeddingCollection.
        weighted: whether its ids come with weights.
        payload: dtype of its vectors in the exchange, before quantization.
        value_bytes: bytes of a weight in memory.
        num_poolings: for each feature, the bags of a sample (TorchRec's ``num_poolings``); empty: one each.
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
    """2D parallelism: several groups of ranks. Each holds all tables, and they average their weights from time to time.

    Attributes:
        group_size: ranks of a sharding group.
        strided: group ``i`` of ``n`` has the ranks ``i, i + n, i + 2 n, ...``, which is TorchRec's default. Else a group has
            neighbouring ranks (``use_inter_host_allreduce``).
        sync_interval: steps from one all-reduce of the weights to the next.
        node_group_size: how many neighbours of a group share the rows of a table-row-wise or grid table, as TorchRec is told.
            ``None``: as many as a host has ranks, whatever their group, which is TorchRec's default.
    """

    group_size: int
    strided: bool = True
    sync_interval: int = 1
    node_group_size: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """A training job, as far as a forecast needs it.

    Attributes:
        tables: of all collections.
        machines: the ranks and links.
        batch_size: samples of a rank.
        policy: the codecs.
        hierarchical_row_wise: whether row-wise pooled tables are summed inside hosts first.
        replicas: the sharding groups of 2D parallelism; ``None``: one group has all ranks.
        index_bytes: bytes of an id in the exchange of ids.
        length_bytes: bytes of a length there; each bag has one.
        weight_bytes: bytes of the weight of an id there.
        assumptions: sentences on what was assumed because nothing said it ("pooling factor 1 for all tables: ..."). Reports
            list them.
        untouched: names of tables that TorchRec exchanges itself, unquantized, whatever a policy says.
        planned_memory: FP64 ``[world]``: bytes that TorchRec's planner reckons with on each rank, for weights, optimizer and
            buffers, and for what is not sharded if its figures include that; ``None``: not known.
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
        """The same job with other codecs. A first rule leaves ``untouched`` tables as they are, if there are any."""
        if self.untouched and policy != Policy():
            first = Rule(tuple(map(escape, self.untouched)), forward="none", backward="none", allow_unmatched=True)
            if first not in policy.rules:
                policy = replace(policy, rules=(first, *policy.rules))
        return replace(self, policy=policy)

    def resolved(self) -> dict[str, ResolvedPolicy]:
        """The codecs of each collection's tables, by its path.

        Each collection is resolved alone, as when it is sharded: a name may stand for another table in another collection.
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
