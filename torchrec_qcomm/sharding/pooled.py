"""Pooled output dists over the byte exchange, and TorchRec's shardings that make them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial, reduce
from typing import Any

import torch
import torch.distributed as dist
from torchrec.distributed.comm_ops import get_gradient_division
from torchrec.distributed.dist_data import PooledEmbeddingsAwaitable
from torchrec.distributed.embedding_sharding import BaseEmbeddingDist, EmbeddingShardingContext
from torchrec.distributed.embedding_types import GroupedEmbeddingConfig
from torchrec.distributed.sharding.cw_sharding import CwPooledEmbeddingSharding
from torchrec.distributed.sharding.rw_sharding import RwPooledEmbeddingSharding
from torchrec.distributed.sharding.tw_sharding import TwPooledEmbeddingSharding
from torchrec.distributed.sharding.twcw_sharding import TwCwPooledEmbeddingSharding
from torchrec.distributed.types import Awaitable, ShardingType

from torchrec_qcomm.collectives import Exchange, Plan
from torchrec_qcomm.errors import ShardingError, WireError, describe
from torchrec_qcomm.policy import Direction, Link
from torchrec_qcomm.sharding.sites import SiteCodecs
from torchrec_qcomm.sharding.traffic import Meters
from torchrec_qcomm.wire import Column, PooledLayout, ReduceLayout, Side

_COLLECTIVE = "all_to_all"


class ExchangeAwaitable(Awaitable[torch.Tensor]):
    """TorchRec's handle on a started exchange."""

    def __init__(self, exchange: Exchange) -> None:
        super().__init__()
        self._exchange = exchange

    def _wait_impl(self) -> torch.Tensor:
        return self._exchange.wait()


class QCommPooledEmbeddingDist(BaseEmbeddingDist[EmbeddingShardingContext, torch.Tensor, torch.Tensor]):
    """Moves pooled lookups to the samples' ranks, and their gradients back, each table in its own codecs.

    Args:
        group: the process group.
        columns: for each rank of the group, the columns of its lookup.
        dtype: of every rank's lookup, and so of the result.
        sites: the codecs.
        meters: where launches are counted.
        callbacks: applied to the result in order, as TorchRec's own dist does.
        layout: `PooledLayout` where ranks own whole vectors, `ReduceLayout` where a vector is the sum of all ranks'.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        columns: Sequence[Sequence[Column]],
        dtype: torch.dtype,
        sites: SiteCodecs,
        meters: Meters,
        callbacks: Sequence[Callable[[torch.Tensor], torch.Tensor]] = (),
        layout: type[PooledLayout] = PooledLayout,
    ) -> None:
        super().__init__()
        self._group, self._dtype, self._meters = group, dtype, meters
        self._callbacks = list(callbacks)
        self._ranks = dist.get_process_group_ranks(group)
        self._me = group.rank()
        for table in {column.table for owned in columns for column in owned}:
            sites.check_payload(table, dtype)

        def link_of(owner: int, sample: int) -> Link:
            return sites.link(self._ranks[owner], self._ranks[sample])

        self._forward_layout, self._backward_layout = (
            layout(columns, partial(sites.codec, direction=direction), link_of, dtype)
            for direction in (Direction.FORWARD, Direction.BACKWARD)
        )

    def forward(
        self, local_embs: torch.Tensor, sharding_ctx: EmbeddingShardingContext | None = None
    ) -> PooledEmbeddingsAwaitable:
        """Start the exchange of ``local_embs [sum of batch sizes, sum of own dims]``.

        Returns:
            An awaitable of ``[own batch size, sum of all dims]``, in the dtype of the lookup.
        """
        if sharding_ctx is not None and sharding_ctx.variable_batch_per_feature:
            raise ShardingError(
                describe(
                    "quantized exchange",
                    "variable batch per feature is not supported yet",
                    got="variable_batch_per_feature=True",
                    allowed="one batch size for all features of a rank",
                    todo="Use TorchRec's own sharder for this model.",
                )
            )
        plan = self.plan(self._batch_sizes(local_embs, sharding_ctx))
        if local_embs.numel() == 0:
            local_embs = local_embs.view(plan.lookup_out.shape)  # a rank without tables looks up a flat empty tensor
        exchange = Exchange(self._group, plan, self._gradient_divisor, self._count)
        # A rank without tables looks up FP32 whatever the others do; TorchRec's own exchange is killed by that.
        exchange.start(local_embs.to(self._dtype))
        awaitable = PooledEmbeddingsAwaitable(ExchangeAwaitable(exchange))
        awaitable.callbacks.extend(self._callbacks)
        return awaitable

    def plan(self, batch_sizes: tuple[int, ...]) -> Plan:
        """What this rank encodes and decodes when the ranks of the group have these many samples."""
        mine = batch_sizes[self._me]
        return Plan(
            lookup_out=self._forward_layout.owner_side(self._me, batch_sizes),
            values_in=self._forward_layout.sample_side(self._me, mine),
            gradient_out=self._backward_layout.sample_side(self._me, mine),
            lookup_gradient_in=self._backward_layout.owner_side(self._me, batch_sizes),
        )

    def _batch_sizes(self, local_embs: torch.Tensor, context: EmbeddingShardingContext | None) -> tuple[int, ...]:
        if context is not None and context.batch_size_per_rank:
            return tuple(context.batch_size_per_rank)
        total, world = local_embs.size(0), self._group.size()
        if total % world:
            raise WireError(
                describe("quantized exchange", "the batch does not divide among the ranks", got=total, allowed=f"k * {world}")
            )
        return (total // world,) * world

    def _gradient_divisor(self) -> int:
        return self._group.size() if get_gradient_division() else 1

    def _count(self, direction: str, side: Side, buffer: torch.Tensor) -> None:
        for meter in self._meters.active:
            meter.count(_COLLECTIVE, direction, self._ranks, self._ranks[self._me], side, buffer)


class _ExchangedMixin:
    """Gives a TorchRec sharding whose lookup is exchanged by one all-to-all the quantized output dist."""

    _layout: type[PooledLayout] = PooledLayout

    def __init__(self, *args: Any, sites: SiteCodecs, meters: Meters, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sites, self._meters = sites, meters

    def create_output_dist(
        self, device: torch.device | None = None
    ) -> BaseEmbeddingDist[EmbeddingShardingContext, torch.Tensor, torch.Tensor]:
        """TorchRec's own dist on one rank, where nothing is exchanged; else the quantized one."""
        native = super().create_output_dist(device)  # type: ignore[misc]
        group, grouped = self._pg, self._grouped_embedding_configs_per_rank  # type: ignore[attr-defined]
        if group.size() == 1:
            return native
        return QCommPooledEmbeddingDist(
            group,
            columns=[columns_of(configs) for configs in grouped],
            dtype=payload_dtype(config for configs in grouped for config in configs),
            sites=self._sites,
            meters=self._meters,
            callbacks=getattr(native, "_callbacks", None) or (),  # a row-wise dist has none
            layout=self._layout,
        )


class QCommTwPooledEmbeddingSharding(_ExchangedMixin, TwPooledEmbeddingSharding):
    """Table-wise."""


class QCommCwPooledEmbeddingSharding(_ExchangedMixin, CwPooledEmbeddingSharding):
    """Column-wise."""


class QCommTwCwPooledEmbeddingSharding(_ExchangedMixin, TwCwPooledEmbeddingSharding):
    """Table-column-wise."""


class QCommRwPooledEmbeddingSharding(_ExchangedMixin, RwPooledEmbeddingSharding):
    """Row-wise: a reduce-scatter whose sum is made at the receiver, after decoding."""

    _layout = ReduceLayout


POOLED_SHARDINGS = {
    ShardingType.TABLE_WISE.value: QCommTwPooledEmbeddingSharding,
    ShardingType.COLUMN_WISE.value: QCommCwPooledEmbeddingSharding,
    ShardingType.TABLE_COLUMN_WISE.value: QCommTwCwPooledEmbeddingSharding,
    ShardingType.ROW_WISE.value: QCommRwPooledEmbeddingSharding,
}
"""The sharding types whose exchange is quantized."""


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
