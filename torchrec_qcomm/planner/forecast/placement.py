"""Which ranks exchange with which, and how far apart they are. Arrays have an entry for every global rank."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from torchrec_qcomm.errors import PlannerError, describe
from torchrec_qcomm.planner.job import LINK_INDEX, LINKS, REACHES, Job, Machines, PlannedTable

MATRIX_RANKS = 512
"""With more ranks than this there is no matrix of rank pairs."""

_SELF, _INTRA, _POD, _FAR, _UNKNOWN = range(len(REACHES))


class Peers:
    """Sets of ranks. The ranks of one set exchange with each other.

    Args:
        machines: where the ranks are.
        label: int64 ``[world]``: the set of each global rank.

    Attributes:
        size: ranks of the largest set.
    """

    def __init__(self, machines: Machines, label: np.ndarray) -> None:
        world = np.arange(machines.world_size)
        self.label, self.size = label, int(np.bincount(label).max())
        self._known = machines.devices_per_host is not None
        self._hosts = machines.hosts
        self.host = world // (machines.devices_per_host or 1)
        self._pod = self.host // machines.pod_hosts
        # Ranks of one set and one host (or pod) have one number here.
        self._by_host = np.unique(label * len(world) + self.host, return_inverse=True)[1]
        self._by_pod = np.unique(label * len(world) + self._pod, return_inverse=True)[1]

    def total(self, each: np.ndarray) -> np.ndarray:
        """``[world]``: for every rank, the sum of ``each [world]`` over its peers, itself included."""
        return np.bincount(self.label, each)[self.label]

    def spread(self, each: np.ndarray) -> np.ndarray:
        """``[world, reach]``: for every rank, the sum of ``each [world]`` over its peers at that reach."""
        sums = np.zeros((len(each), len(REACHES)))
        everyone = self.total(each)
        sums[:, _SELF] = each
        if not self._known:
            sums[:, _UNKNOWN] = everyone - each
        else:
            host, pod = (np.bincount(by, each)[by] for by in (self._by_host, self._by_pod))
            sums[:, _INTRA], sums[:, _POD], sums[:, _FAR] = host - each, pod - host, everyone - pod
        return np.maximum(sums, 0.0)  # rounding may leave a difference of two sums below zero

    def by_link(self, each: np.ndarray) -> np.ndarray:
        """As `spread`, of ``each [world, link]``: for every reach, the column of its link is summed."""
        sums = [self.spread(each[:, link]) for link in range(len(LINKS))]
        return np.stack([sums[link][:, reach] for reach, link in enumerate(LINK_INDEX)], axis=1)

    def across_hosts(self, source: np.ndarray, destination: np.ndarray) -> np.ndarray:
        """``[hosts, hosts]``: the sum of ``source[i] * destination[j]`` over peers on different hosts; the diagonal is 0.

        Where hosts are not known, every rank counts as one. If these are too many for a matrix, it is empty.
        """
        sets = int(self.label.max()) + 1
        matrix = self.no_hosts()
        if self.size <= 1 or not len(matrix) or not self._far:
            return matrix
        place = self.label * self._hosts + self.host
        sums = [np.bincount(place, each, sets * self._hosts).reshape(sets, -1) for each in (source, destination)]
        matrix = sums[0].T @ sums[1]
        np.fill_diagonal(matrix, 0.0)
        return matrix

    def no_hosts(self) -> np.ndarray:
        """``[hosts, hosts]`` zeros."""
        return np.zeros((self._hosts if self._known or self._hosts <= MATRIX_RANKS else 0,) * 2)

    @cached_property
    def _far(self) -> bool:
        """Whether any peers are on different hosts, or may be."""
        return bool(self.spread(np.ones(len(self.label)))[:, _POD:].any())

    def reach(self, ranks: np.ndarray) -> np.ndarray:
        """``[ranks, world]``: the reach from each of ``ranks`` to every rank, as an index into `REACHES`; -1: no peer."""
        if self._known:
            apart = np.where(self._pod[ranks][:, None] == self._pod, _POD, _FAR)
            apart = np.where(self.host[ranks][:, None] == self.host, _INTRA, apart)
        else:
            apart = np.full((len(ranks), len(self.label)), _UNKNOWN)
        apart[np.arange(len(ranks)), ranks] = _SELF
        return np.where(self.label[ranks][:, None] == self.label, apart, -1)


class Placement:
    """The ranks of a job.

    Attributes:
        groups: int64 ``[groups, ranks of a group]``: global ranks; one group, or with 2D parallelism several.
        everyone: the ranks of a group as each other's peers, for exchanges in one hop.

    Raises:
        PlannerError: the groups do not divide the ranks.
    """

    def __init__(self, job: Job) -> None:
        self.job, self.machines = job, job.machines
        self.groups = np.array(job.groups())
        self.world = job.machines.world_size
        self._group, self._index = np.empty(self.world, int), np.empty(self.world, int)
        self._group[self.groups] = np.arange(len(self.groups))[:, None]
        self._index[self.groups] = np.arange(self.group_size)
        self.everyone = Peers(job.machines, self._group)
        self._hops: dict[int, tuple[Peers, Peers]] = {}

    @property
    def group_size(self) -> int:
        """Ranks of a sharding group."""
        return self.groups.shape[1]

    def owners(self, ranks: np.ndarray) -> np.ndarray:
        """Ranks of a group as global ranks: those of the first group, then those of the next."""
        if len(ranks) and not 0 <= ranks.min() <= ranks.max() < self.group_size:
            allowed = f"ranks below {self.group_size}, the ranks that share the tables out"
            raise PlannerError(describe("plan", "a shard is on a rank that is not there", got=ranks.tolist(), allowed=allowed))
        return self.groups[:, ranks].ravel()

    def hops(self, local: int) -> tuple[Peers, Peers]:
        """The peers of both hops: first ``local`` neighbours of a group; then the ranks at the same place among them."""
        if local not in self._hops:
            many = self.group_size // local
            within = Peers(self.machines, self._group * many + self._index // local)
            self._hops[local] = (within, Peers(self.machines, self._group * local + self._index % local))
        return self._hops[local]

    def local_size(self, planned: PlannedTable) -> int:
        """How many neighbours of a group share the rows of a table-row-wise or grid table.

        TorchRec takes LOCAL_WORLD_SIZE, times the hosts of a pod if it is told of pods; or ``node_group_size``, if it has one.

        Raises:
            PlannerError: it is not known, or does not divide the group, or is not what the plan was made for.
        """
        where, replicas = f"table {planned.table.name!r}: {planned.sharding_type}", self.job.replicas
        local = (replicas and replicas.node_group_size) or self.machines.devices_per_host
        if local is None:
            wrong = "it is not known how many ranks a host has"
            raise PlannerError(describe(where, wrong, got=None, allowed="machines with devices_per_host"))
        pod = local * self.machines.pod_hosts
        if replicas is None and not _fills(planned, local) and _fills(planned, pod):
            local = pod
        if self.group_size % local:
            allowed = f"a divisor of {self.group_size}, the ranks that share the tables out"
            raise PlannerError(describe(where, "ranks do not fill the hosts", got=local, allowed=allowed))
        if not _fills(planned, local):
            wrong = "its shards are not one on each rank of a host"
            raise PlannerError(describe(where, wrong, got=planned.ranks.tolist(), allowed=f"hosts of {local} ranks"))
        return local

    def summing_ranks(self, where: str) -> int:
        """How many ranks of a host sum row-wise lookups first, with ``hierarchical_row_wise``; 1: there is one hop only.

        Raises:
            PlannerError: hosts are not known, or do not have equally many ranks of a group, one after the other.
        """
        if self.machines.devices_per_host is None:
            wrong = "it is not known how many ranks a host has"
            raise PlannerError(describe(where, wrong, got=None, allowed="machines with devices_per_host"))
        hosts = self.everyone.host[self.groups]
        here = int((hosts[0] == hosts[0, 0]).sum())
        starts = hosts[:, ::here]
        even = self.group_size % here == 0 and (np.repeat(starts, here, axis=1) == hosts).all()
        if not even or any(len(set(row)) != len(row) for row in starts.tolist()):
            wrong = "the ranks that share tables are not equally many on each host, one host after the other"
            raise PlannerError(describe(where, wrong, got=self.groups[0].tolist(), allowed="such ranks"))
        return 1 if here == self.group_size else here


def _fills(planned: PlannedTable, local: int) -> bool:
    """Whether each shard of columns has its rows cut into ``local`` shards, one on each of ``local`` neighbours."""
    ranks = planned.ranks
    if planned.shard_dims.sum() != local * planned.table.dim:
        return False  # the same ranks may hold twice as many shards of rows, or two halves of the columns
    columns = np.bincount(ranks // local)
    return bool(len(ranks)) and np.array_equal(
        np.bincount(ranks, minlength=len(columns) * local), np.repeat(columns / local, local)
    )
