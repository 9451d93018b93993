"""TorchRec's shardings, with the quantized output dists in the place of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torchrec.distributed.comm import intra_and_cross_node_pg, intra_and_cross_node_pg_2D
from torchrec.distributed.embedding_sharding import BaseEmbeddingDist, EmbeddingShardingContext
from torchrec.distributed.embedding_types import GroupedEmbeddingConfig
from torchrec.distributed.sharding.cw_sequence_sharding import CwSequenceEmbeddingSharding
from torchrec.distributed.sharding.cw_sharding import CwPooledEmbeddingSharding
from torchrec.distributed.sharding.grid_sharding import GridPooledEmbeddingSharding
from torchrec.distributed.sharding.rw_sequence_sharding import RwSequenceEmbeddingSharding
from torchrec.distributed.sharding.rw_sharding import RwPooledEmbeddingSharding
from torchrec.distributed.sharding.tw_sequence_sharding import TwSequenceEmbeddingSharding
from torchrec.distributed.sharding.tw_sharding import TwPooledEmbeddingSharding
from torchrec.distributed.sharding.twcw_sharding import TwCwPooledEmbeddingSharding
from torchrec.distributed.sharding.twrw_sharding import TwRwPooledEmbeddingSharding
from torchrec.distributed.types import ShardingType

from torchrec_qcomm.sharding.dists.hop import Hop
from torchrec_qcomm.sharding.dists.pooled import QCommPooledEmbeddingDist
from torchrec_qcomm.sharding.dists.sequence import QCommSequenceEmbeddingDist
from torchrec_qcomm.sharding.dists.settings import CollectionSettings, HopSettings
from torchrec_qcomm.sharding.dists.two_hops import QCommTwoHopEmbeddingDist
from torchrec_qcomm.sharding.start_up.hosts import require_hosts
from torchrec_qcomm.wire import Column, PooledLayout, ReduceLayout


class _Quantized:
    """Makes the quantized output dist where TorchRec's sharding makes its own; one hop of `layout`."""

    layout: type[PooledLayout] = PooledLayout

    def __init__(self, *args: Any, qcomm: CollectionSettings, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._qcomm = qcomm

    def create_output_dist(
        self, device: torch.device | None = None
    ) -> BaseEmbeddingDist[EmbeddingShardingContext, torch.Tensor, torch.Tensor]:
        """TorchRec's own dist on one rank, where nothing is exchanged; else the quantized one."""
        native = super().create_output_dist(device)  # type: ignore[misc]
        if self._pg.size() == 1:  # type: ignore[attr-defined]
            return native
        # Callbacks restore the order of columns; shardings that never change it have none.
        return self._replace(getattr(native, "_callbacks", None) or ())

    def _replace(self, callbacks: Sequence[Any]) -> nn.Module:
        hop = self._hop(self._pg, self._columns(), self.layout)  # type: ignore[attr-defined]
        return QCommPooledEmbeddingDist(hop, callbacks)

    def _hop(self, group: Any, columns: Any, layout: type[PooledLayout], takers: Sequence[int] | None = None) -> Hop:
        return Hop(HopSettings(group, columns, self._dtype(), self._qcomm, layout, takers, type(self).__name__))

    def _columns(self) -> list[list[Column]]:
        return [columns_of(configs) for configs in self._grouped_embedding_configs_per_rank]  # type: ignore[attr-defined]

    def _dtype(self) -> torch.dtype:
        grouped = self._grouped_embedding_configs_per_rank  # type: ignore[attr-defined]
        return payload_dtype(config for configs in grouped for config in configs)


class _QuantizedInTwoHops(_Quantized):
    """For shardings that deal the rows of a table out to the ranks of one host."""

    def create_output_dist(
        self, device: torch.device | None = None
    ) -> BaseEmbeddingDist[EmbeddingShardingContext, torch.Tensor, torch.Tensor]:
        """TorchRec's own on the meta device, where it has no groups of hosts, so that nothing can be exchanged."""
        if self._intra_pg is None:  # type: ignore[attr-defined]
            return super(_Quantized, self).create_output_dist(device)  # type: ignore[misc]
        return super().create_output_dist(device)

    def _replace(self, callbacks: Sequence[Any]) -> nn.Module:
        hosts, local_size = self._cross_pg.size(), self._intra_pg.size()  # type: ignore[attr-defined]
        by_host = self._columns()[::local_size]  # the ranks of a host have the same columns
        # The order of TorchRec's input dist for such shardings: local rank by local rank, and host by host for each.
        order = [host * local_size + local for local in range(local_size) for host in range(hosts)]
        return self._two_hops(by_host, callbacks, PooledLayout, order)

    def _two_hops(
        self, by_host: Sequence[list[Column]], callbacks: Sequence[Any], across: type[PooledLayout], order: Sequence[int]
    ) -> QCommTwoHopEmbeddingDist:
        intra, cross, rank = self._intra_pg, self._cross_pg, self._rank  # type: ignore[attr-defined]
        host, local_rank = divmod(rank, intra.size())
        takers = [sample % intra.size() for sample in order]
        first = QCommPooledEmbeddingDist(self._hop(intra, [by_host[host]] * intra.size(), ReduceLayout, takers))
        second = QCommPooledEmbeddingDist(self._hop(cross, by_host, across), callbacks)
        return QCommTwoHopEmbeddingDist(first, second, order, intra.size(), local_rank)


class _QuantizedSequence(_Quantized):
    """For sequences, which are moved and never summed: one hop, whoever owns the rows."""

    def _replace(self, callbacks: Sequence[Any]) -> nn.Module:
        return QCommSequenceEmbeddingDist(self._hop(self._pg, self._columns(), self.layout))  # type: ignore[attr-defined]


class QCommTwPooledEmbeddingSharding(_Quantized, TwPooledEmbeddingSharding):
    """Table-wise."""


class QCommCwPooledEmbeddingSharding(_Quantized, CwPooledEmbeddingSharding):
    """Column-wise."""


class QCommTwCwPooledEmbeddingSharding(_Quantized, TwCwPooledEmbeddingSharding):
    """Table-column-wise."""


class QCommRwPooledEmbeddingSharding(_Quantized, RwPooledEmbeddingSharding):
    """Row-wise: a reduce-scatter whose sum is made at the receiver, after decoding."""

    layout = ReduceLayout


class QCommHierarchicalRwPooledEmbeddingSharding(_QuantizedInTwoHops, RwPooledEmbeddingSharding):
    """Row-wise in two reduce-scatters: inside each host, then across hosts among the ranks of one place in them.

    Args:
        summing_ranks: ranks on each host.

    Raises:
        ShardingError: TorchRec's groups of ranks are not hosts of that size.
    """

    def __init__(self, *args: Any, summing_ranks: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # As TorchRec's own shardings in two hops do.
        if self._is_2D_parallel:
            self._intra_pg, self._cross_pg = intra_and_cross_node_pg_2D(self._env, device=self._device)
        else:
            backend = dist.get_backend(self._pg)
            self._intra_pg, self._cross_pg = intra_and_cross_node_pg(self._device, backend=backend)
        if self._intra_pg is not None:  # there are none on the meta device
            require_hosts(self._pg, self._intra_pg, self._cross_pg, summing_ranks)

    def _replace(self, callbacks: Sequence[Any]) -> nn.Module:
        by_host = self._columns()[:: self._intra_pg.size()]
        return self._two_hops(by_host, callbacks, ReduceLayout, range(self._pg.size()))


class QCommTwRwPooledEmbeddingSharding(_QuantizedInTwoHops, TwRwPooledEmbeddingSharding):
    """Table-row-wise: rows over the ranks of one host."""


class QCommGridPooledEmbeddingSharding(_QuantizedInTwoHops, GridPooledEmbeddingSharding):
    """Grid: column shards over hosts, and rows of each over the ranks of its host."""

    def uncombined_embedding_dims(self) -> list[int]:
        """Of the column shards; TorchRec 1.8 lacks it here, and asks for it to put variable batches together."""
        return self._embedding_dims

    def uncombined_embedding_names(self) -> list[str]:
        """A name for each of `uncombined_embedding_dims`."""
        return self._embedding_names


POOLED_SHARDINGS = {
    ShardingType.TABLE_WISE.value: QCommTwPooledEmbeddingSharding,
    ShardingType.COLUMN_WISE.value: QCommCwPooledEmbeddingSharding,
    ShardingType.TABLE_COLUMN_WISE.value: QCommTwCwPooledEmbeddingSharding,
    ShardingType.ROW_WISE.value: QCommRwPooledEmbeddingSharding,
    ShardingType.TABLE_ROW_WISE.value: QCommTwRwPooledEmbeddingSharding,
    ShardingType.GRID_SHARD.value: QCommGridPooledEmbeddingSharding,
}
"""The sharding types of pooled tables."""


class QCommTwSequenceEmbeddingSharding(_QuantizedSequence, TwSequenceEmbeddingSharding):
    """Table-wise, for sequences."""


class QCommCwSequenceEmbeddingSharding(_QuantizedSequence, CwSequenceEmbeddingSharding):
    """Column-wise, for sequences."""


class QCommRwSequenceEmbeddingSharding(_QuantizedSequence, RwSequenceEmbeddingSharding):
    """Row-wise, for sequences: every rank sends the vectors of the ids that it owns."""


SEQUENCE_SHARDINGS = {
    ShardingType.TABLE_WISE.value: QCommTwSequenceEmbeddingSharding,
    ShardingType.COLUMN_WISE.value: QCommCwSequenceEmbeddingSharding,
    ShardingType.ROW_WISE.value: QCommRwSequenceEmbeddingSharding,
}
"""The sharding types of sequences."""


def columns_of(configs: Sequence[GroupedEmbeddingConfig]) -> list[Column]:
    """The columns of a rank's lookup, in its order: groups, then tables, then features."""
    return [
        Column(table.name, table.local_cols)
        for config in configs
        for table in config.embedding_tables
        for _ in range(table.num_features())
    ]


def payload_dtype(configs: Iterable[GroupedEmbeddingConfig]) -> torch.dtype:
    """The dtype of all ranks' lookups: FP32 unless ``fused_params['output_dtype']`` says otherwise."""
    dtypes = [
        torch.float32 if (sparse := (config.fused_params or {}).get("output_dtype")) is None else sparse.as_dtype()
        for config in configs
    ]
    return reduce(torch.promote_types, dtypes) if dtypes else torch.float32
