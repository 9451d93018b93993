"""The shardings that are timed: what a rank looks up, TorchRec's output dist for it, and the plugin's."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torchrec.distributed.comm import intra_and_cross_node_pg
from torchrec.distributed.embedding_sharding import EmbeddingShardingContext
from torchrec.distributed.fbgemm_qcomm_codec import CommType, QCommsConfig, get_qcomm_codecs_registry
from torchrec.distributed.sharding.rw_sharding import RwPooledEmbeddingDist
from torchrec.distributed.sharding.tw_sharding import TwPooledEmbeddingDist
from torchrec.distributed.sharding.twrw_sharding import TwRwPooledEmbeddingDist

from torchrec_qcomm import codecs
from torchrec_qcomm.collectives import Observers
from torchrec_qcomm.policy import Policy, Table
from torchrec_qcomm.sharding.dists.hop import Hop
from torchrec_qcomm.sharding.dists.pooled import QCommPooledEmbeddingDist
from torchrec_qcomm.sharding.dists.settings import CollectionSettings, HopSettings
from torchrec_qcomm.sharding.dists.two_hops import QCommTwoHopEmbeddingDist
from torchrec_qcomm.sharding.precision import Precision, TableCodecs
from torchrec_qcomm.wire import Column, PooledLayout, ReduceLayout

CPU = torch.device("cpu")


class Setting:
    """Whole tables spread over ranks: this rank's lookup, and the gradient of its samples' values."""

    def __init__(self, tables: int, dim: int, batch: int) -> None:
        self.group = dist.group.WORLD
        self.world, self.rank = dist.get_world_size(), dist.get_rank()
        self.local_size = int(os.environ.get("LOCAL_WORLD_SIZE", self.world))
        self.hosts = self.world // self.local_size
        self.dim, self.sizes = dim, [batch] * self.world
        self.tables = [Table(f"t{i}", rows=1000, dim=dim) for i in range(tables)]
        self.owned = [self.dealt(rank) for rank in range(self.world)]
        generator = torch.Generator().manual_seed(self.rank)
        width = dim * len(self.owned[self.rank])
        self.lookup = torch.randn(batch * self.world, width, generator=generator).requires_grad_()
        self.gradient = torch.randn(batch, dim * tables, generator=generator) * 1e-4
        self.context = EmbeddingShardingContext(batch_size_per_rank=self.sizes)

    def dealt(self, rank: int) -> list[str]:
        """The tables that a rank looks up."""
        return [table.name for table in self.tables[rank :: self.world]]

    def torchrec(self, precision: CommType) -> torch.nn.Module:
        """TorchRec's own output dist."""
        dims = [[self.dim] * len(names) for names in self.owned]
        registry = self.registry(precision)
        return TwPooledEmbeddingDist(self.group, [sum(d) for d in dims], dims, CPU, qcomm_codecs_registry=registry)

    def ours(self, policy: Policy, observers: Observers, hierarchical: bool = False) -> torch.nn.Module:
        """The plugin's output dist."""
        if hierarchical:
            raise ValueError("only row-wise sharding can sum inside hosts first")
        return self.one_hop(policy, observers, self.columns(), PooledLayout)

    @staticmethod
    def registry(precision: CommType) -> dict[str, object]:
        """TorchRec's own codecs."""
        return get_qcomm_codecs_registry(QCommsConfig(precision, precision), device=CPU)

    def columns(self) -> list[list[Column]]:
        """For each rank, those of its lookup."""
        return [[Column(name, self.dim) for name in names] for names in self.owned]

    def settings(self, policy: Policy, observers: Observers) -> CollectionSettings:
        """The codecs of a policy, and who watches."""
        return CollectionSettings(Precision(TableCodecs(policy.resolve(self.tables), self.local_size, codecs.get)), observers)

    def one_hop(
        self, policy: Policy, observers: Observers, columns: list[list[Column]], layout: type[PooledLayout]
    ) -> QCommPooledEmbeddingDist:
        """An exchange of all ranks with each other."""
        settings = self.settings(policy, observers)
        return QCommPooledEmbeddingDist(Hop(HopSettings(self.group, columns, torch.float32, settings, layout)))

    def two_hops(
        self, policy: Policy, observers: Observers, order: list[int], across: type[PooledLayout]
    ) -> QCommTwoHopEmbeddingDist:
        """A sum inside each host, then an exchange across hosts."""
        within, between = intra_and_cross_node_pg(CPU, backend="gloo")
        by_host = self.columns()[:: self.local_size]
        host, local_rank = divmod(self.rank, self.local_size)
        settings, mine = self.settings(policy, observers), [by_host[host]] * self.local_size
        takers = [rank % self.local_size for rank in order]
        first = Hop(HopSettings(within, mine, torch.float32, settings, ReduceLayout, takers))
        second = Hop(HopSettings(between, by_host, torch.float32, settings, across))
        dists = QCommPooledEmbeddingDist(first), QCommPooledEmbeddingDist(second)
        return QCommTwoHopEmbeddingDist(*dists, order, self.local_size, local_rank)


class RowWise(Setting):
    """Every rank looks up its rows of all tables."""

    def dealt(self, rank: int) -> list[str]:
        return [table.name for table in self.tables]

    def torchrec(self, precision: CommType) -> torch.nn.Module:
        return RwPooledEmbeddingDist(self.group, [self.dim] * len(self.tables), qcomm_codecs_registry=self.registry(precision))

    def ours(self, policy: Policy, observers: Observers, hierarchical: bool = False) -> torch.nn.Module:
        if hierarchical:
            return self.two_hops(policy, observers, list(range(self.world)), ReduceLayout)
        return self.one_hop(policy, observers, self.columns(), ReduceLayout)


class TableRowWise(Setting):
    """Every rank looks up its rows of its host's tables."""

    def dealt(self, rank: int) -> list[str]:
        return [table.name for table in self.tables[rank // self.local_size :: self.hosts]]

    def torchrec(self, precision: CommType) -> torch.nn.Module:
        within, between = intra_and_cross_node_pg(CPU, backend="gloo")
        by_host = self.owned[:: self.local_size]
        return TwRwPooledEmbeddingDist(
            self.rank,
            between,
            within,
            [self.dim * len(names) for names in by_host],
            [[self.dim] * len(names) for names in by_host],
            CPU,
            qcomm_codecs_registry=self.registry(precision),
        )

    def ours(self, policy: Policy, observers: Observers, hierarchical: bool = False) -> torch.nn.Module:
        # The order of TorchRec's input dist: local rank by local rank, and host by host for each.
        order = [host * self.local_size + local for local in range(self.local_size) for host in range(self.hosts)]
        return self.two_hops(policy, observers, order, PooledLayout)


SETTINGS: dict[str, type[Setting]] = {"table_wise": Setting, "row_wise": RowWise, "table_row_wise": TableRowWise}
