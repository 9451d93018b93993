"""What an exchange costs, for TorchRec's planner: with the bytes of each table's codecs and the bandwidth of each link.

TorchRec counts INT8, FP8 and MX4 as a byte a value. It takes one size for all tables of a module, and one bandwidth for all
bytes of a collective. Here a row has the bytes of its codec, which may differ by direction and link, and bytes that stay inside
a host go over the fast link. The time that kernels compute stays TorchRec's.

For a shard that sends ``n`` rows to each of ``W`` ranks, ``L`` of them on its host and ``P`` in its pod, with row bytes
``b(link)`` and rates ``r``:

    time = max(n * [(L - 1) * b(intra) + (P - L) * b(inter)] / r(intra),  n * (W - P) * b(inter) / r(inter))

since both links work at once. Hops follow each other, so their times add up. A rank's share with itself takes no time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torchrec.distributed.planner import ParameterConstraints, Topology
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.estimator import EmbeddingPerfEstimatorConfig, EmbeddingPerfEstimatorFactory, ShardPerfContext
from torchrec.distributed.planner.estimator.annotations import bwd_comms, fwd_comms
from torchrec.distributed.planner.shard_estimators import EmbeddingStorageEstimator
from torchrec.distributed.planner.types import ShardingOption

from torchrec_qcomm import codecs
from torchrec_qcomm.codecs import Codec
from torchrec_qcomm.planner.kinds import KINDS, ROW_WISE, kind_of
from torchrec_qcomm.planner.search.tables import ModelTable
from torchrec_qcomm.policy import Direction, Link, Policy, Table

_ORDER = [kind.name for kind in KINDS]
"""Of options that cost the same, the planner takes the first. So a whole table comes before one shard of all columns."""

_EXCHANGED = [kind.name for kind in KINDS if kind.hops]
_FP32 = 4


@dataclass(frozen=True, slots=True)
class _Peers:
    """The ranks that a shard exchanges with in one hop.

    Attributes:
        rows: that go to each of them.
        on_host, in_pod, beyond: how many there are on the shard's host, on others of its pod, and farther away.
        summed: they add up what several shards send, so each value is decoded as often as it is sent.
    """

    rows: float
    on_host: int
    in_pod: int
    beyond: int
    summed: bool


class WireAwareEstimator(EmbeddingPerfEstimatorConfig):
    """TorchRec's default estimates, but for those of the exchange of embeddings.

    Args:
        policy: the codecs.
        tables: all tables of the model.
        untouched: names of tables that TorchRec exchanges itself, unquantized.
        payload: dtype of the lookups.
        hierarchical_row_wise: whether row-wise pooled tables are summed inside hosts first.
        codec_speeds: for a codec's short name, ``(encode, decode)`` in GB/s (1e9 bytes) of FP32 values. The coding of other
            codecs takes no time.
    """

    name = "wire_aware"

    def __init__(
        self,
        policy: Policy,
        tables: Iterable[ModelTable],
        *,
        untouched: Iterable[str] = (),
        payload: torch.dtype = torch.float32,
        hierarchical_row_wise: bool = False,
        codec_speeds: Mapping[str, tuple[float, float]] | None = None,
    ) -> None:
        super().__init__()
        self._policy, self._payload, self._hierarchical = policy, payload, hierarchical_row_wise
        self._untouched, self._speeds = frozenset(untouched), dict(codec_speeds or {})
        # Tables of two modules may share a name. Their sizes tell which one an option is of, if they differ.
        self._tables: dict[str, list[ModelTable]] = {}
        for entry in tables:
            self._tables.setdefault(entry.table.name, []).append(entry)
        self._codec = lru_cache(maxsize=None)(self._find_codec)

    @fwd_comms(sharding_type=_EXCHANGED)
    def exchange_of_lookups(self, ctx: ShardPerfContext) -> float:
        """Milliseconds of a shard's part in the forward exchange."""
        return self._exchange(ctx, Direction.FORWARD)

    @bwd_comms(sharding_type=_EXCHANGED)
    def exchange_of_gradients(self, ctx: ShardPerfContext) -> float:
        """Milliseconds of a shard's part in the backward exchange, in which it receives as many rows as it sent."""
        return self._exchange(ctx, Direction.BACKWARD)

    def _exchange(self, ctx: ShardPerfContext, direction: Direction) -> float:
        world, pod = ctx.world_size, ctx.intra_group_size
        local = min(ctx.local_world_size, world)
        entry = self._entry(ctx)
        table = Table(ctx.table_name, ctx.hash_size_for_clamping, ctx.emb_dim) if entry is None else entry.table
        rows = self._rows(ctx, entry)
        kind = kind_of(ctx.sharding_type)
        pooled_rows = ctx.is_pooled and kind.rows_dealt_out
        two_hops = pooled_rows and (kind is not ROW_WISE or self._hierarchical)
        if not two_hops:
            if not ctx.is_pooled and kind.rows_dealt_out:
                rows /= world  # every rank has the vectors of its own ids
            hops = [_Peers(rows, local - 1, pod - local, world - pod, summed=pooled_rows)]
        elif kind is ROW_WISE:
            hosts, of_pod = world // local, pod // local
            inside = _Peers(rows * hosts, local - 1, 0, 0, summed=True)
            hops = [inside, _Peers(rows, 0, of_pod - 1, hosts - of_pod, summed=True)]
        else:  # rows lie in one pod; its ranks sum, then each exchanges with its like in every other pod
            groups = world // pod
            inside = _Peers(rows * groups, local - 1, pod - local, 0, summed=True)
            hops = [inside, _Peers(rows, 0, 0, groups - 1, summed=False)]
        return sum(self._hop(ctx, table, direction, hop) for hop in hops)

    def _hop(self, ctx: ShardPerfContext, table: Table, direction: Direction, hop: _Peers) -> float:
        intra, inter = (self._codec(table, direction, link) for link in (Link.INTRA_HOST, Link.INTER_HOST))
        near, far = (
            hop.rows * codec.row_bytes(ctx.emb_dim, self._payload) + codec.range_header_bytes for codec in (intra, inter)
        )
        rates = ctx.comms_bandwidths
        assert rates is not None
        wire = max((hop.on_host * near + hop.in_pod * far) / rates.intra_host_bw, hop.beyond * far / rates.inter_host_bw)
        values = hop.rows * ctx.emb_dim * _FP32
        coding = sum(
            ranks * self._coding(codec, values, direction, hop.summed)
            for ranks, codec in ((hop.on_host, intra), (hop.in_pod + hop.beyond, inter))
        )
        return wire + coding

    def _coding(self, codec: Codec, nbytes: float, direction: Direction, summed: bool) -> float:
        """Milliseconds at the shard to encode values for one rank, or to decode them from there."""
        speed = self._speeds.get(str(codec.spec))
        if speed is None:
            return 0.0
        encode, decode = (nbytes / (rate * 1e6) for rate in speed)
        if direction == Direction.FORWARD:
            return encode + decode if summed else encode
        return decode

    def _rows(self, ctx: ShardPerfContext, entry: ModelTable | None) -> float:
        """How many vectors the samples of one rank need: one for each bag, or for each id of a sequence."""
        ids = ctx.input_lengths if not ctx.is_pooled else [1.0] * len(ctx.num_poolings)
        rows = sum(bags * size * length for bags, size, length in zip(ctx.num_poolings, ctx.batch_sizes, ids, strict=True))
        # TorchRec's default is one pooling factor, however many features there are.
        features = len(entry.features) if entry is not None else len(ctx.num_poolings)
        return rows * max(1.0, features / len(ctx.num_poolings))

    def _entry(self, ctx: ShardPerfContext) -> ModelTable | None:
        entries = self._tables.get(ctx.table_name, [])
        fitting = [e for e in entries if e.table.rows == ctx.hash_size_for_clamping and e.table.dim >= ctx.emb_dim]
        return next(iter(fitting or entries), None)

    def _find_codec(self, table: Table, direction: Direction, link: Link) -> Codec:
        if table.name in self._untouched:
            return codecs.get("none")
        return codecs.get(self._policy.decide(table, direction, link).codec)


class SteadyEnumerator(EmbeddingEnumerator):
    """Lists options in one order in every process, so that plans are the same where options cost the same.

    TorchRec goes through sets of names, whose order changes from process to process.
    """

    def enumerate(self, *args: Any, **kwargs: Any) -> list[ShardingOption]:
        """The options of TorchRec, table by table."""
        options = super().enumerate(*args, **kwargs)
        place: dict[str, int] = {}
        for option in options:
            place.setdefault(option.fqn, len(place))
        return sorted(options, key=lambda o: (place[o.fqn], _ORDER.index(o.sharding_type), o.compute_kernel))


def wire_aware_enumerator(
    estimator: WireAwareEstimator,
    topology: Topology,
    batch_size: int,
    constraints: Mapping[str, ParameterConstraints] | None = None,
) -> SteadyEnumerator:
    """For ``EmbeddingShardingPlanner(enumerator=...)``: TorchRec's enumerator, storage estimates, and these costs."""
    given = dict(constraints or {})
    perf = EmbeddingPerfEstimatorFactory.create_with_config(estimator, topology=topology, constraints=given)
    storage = EmbeddingStorageEstimator(topology=topology, constraints=given)
    return SteadyEnumerator(topology, batch_size, given, [perf, storage])
