"""What is found in a forecast: plain values, which this room fills in and reports print."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from torchrec_qcomm.planner.forecast.results import Forecast
from torchrec_qcomm.policy import Direction


@dataclass(frozen=True, slots=True, eq=False)
class Load:
    """How evenly one thing is spread over the ranks.

    Attributes:
        what: ``lookups``, ``bytes sent``, ``bytes received``, ``rows`` or ``memory``. Bytes are those of all hops of the
            forward exchange, without a rank's share with itself. A rank that sends many lookups receives as many gradients, so
            both directions together would hide who has more than its share.
        unit: of the numbers: ``ids a step``, ``B a step``, ``rows``, ``B``.
        per_rank: ``[world]``: the load of each rank.
        worst: at most 5 ranks above 1.1 x mean, the most loaded first; empty if the load is even.
        tables: at most 5 tables, those that weigh most at the most loaded rank. Each has its share of that rank's load, 0 to 1.
        measured: whether lookups were counted from batches, and not assumed from pooling factors.
    """

    what: str
    unit: str
    per_rank: np.ndarray
    worst: tuple[int, ...]
    tables: tuple[tuple[str, float], ...]
    measured: bool = False

    @property
    def max_over_mean(self) -> float:
        """1 for an even load; 1 too where there is none."""
        mean = float(self.per_rank.mean())
        return float(self.per_rank.max()) / mean if mean else 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Crossing:
    """How far the bytes of the quantized exchange go, both directions together.

    Attributes:
        wire: ``[reach]`` bytes of all ranks.
        known: whether it is known which ranks share a host. If it is not, there are no shares.
    """

    wire: np.ndarray
    known: bool

    def shares(self, include_self: bool) -> np.ndarray | None:
        """``[reach]`` shares that sum to 1, with or without a rank's share with itself; ``None`` if hosts are not known."""
        if not self.known:
            return None
        wire = self.wire.copy()
        if not include_self:
            wire[0] = 0.0
        total = wire.sum()
        return wire / total if total else wire


@dataclass(frozen=True, slots=True)
class CollectiveTime:
    """An estimate for one collective; milliseconds, at the slowest rank.

    Attributes:
        module, sharding_type, hop, direction: which, as in `ExchangeForecast`.
        plain_ms: to move the same values without a codec.
        wire_ms: to move the encoded bytes.
        encode_ms, decode_ms: to encode and decode, each at the rank with most to do.
        limit: which link decides ``wire_ms``: ``intra_host``, or ``inter_host`` (a host's NIC, which its ranks share);
            ``nothing`` where no byte leaves a rank.
    """

    module: str
    sharding_type: str
    hop: int
    direction: Direction
    plain_ms: float
    wire_ms: float
    encode_ms: float
    decode_ms: float
    limit: str

    @property
    def quantized_ms(self) -> float:
        """With the policy, coding included."""
        return self.wire_ms + self.encode_ms + self.decode_ms


@dataclass(frozen=True, slots=True)
class Times:
    """Estimates for a step.

    Attributes:
        collectives: the quantized ones.
        ids_ms: the exchange of ids.
        dense_ms: the all-reduce of the gradients of data-parallel tables.
        sync_ms: the all-reduce of weights between replicas, averaged over the steps between two of them.
        break_even: for each table that the policy quantizes, the GB/s of a rank above which it is faster without codecs.
            ``None``: there is no such rate, since coding takes no time or saves no bytes.
        codec_speeds: for each codec that the policy uses, ``(encode GB/s, decode GB/s, how)`` of FP32 values. ``how`` is the
            device on which it was measured, or ``given``. The time of other codecs is not counted, and a note says so.
    """

    collectives: tuple[CollectiveTime, ...]
    ids_ms: float
    dense_ms: float
    sync_ms: float
    break_even: Mapping[str, float | None]
    codec_speeds: Mapping[str, tuple[float, float, str]]

    @property
    def plain_ms(self) -> float:
        """The embedding exchange without codecs."""
        return sum(each.plain_ms for each in self.collectives)

    @property
    def quantized_ms(self) -> float:
        """The embedding exchange with the policy, coding included."""
        return sum(each.quantized_ms for each in self.collectives)

    @property
    def slower(self) -> bool:
        """Whether the policy is predicted to slow the exchange down."""
        return self.quantized_ms > self.plain_ms


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing to do next.

    Attributes:
        rule: the name of the adviser that found it.
        title: what to do, in a line.
        because: why, in a sentence with numbers.
        setting: the lines of YAML, or the setting of the planner, that do it; empty where nothing is to be set.
        gain_ms: predicted gain in a step.
    """

    rule: str
    title: str
    because: str
    setting: str
    gain_ms: float


@dataclass(frozen=True, slots=True, eq=False)
class Analysis:
    """All that a report prints of one job.

    Attributes:
        forecast: with the policy.
        plain: the same job without codecs.
        loads: in the order of `Load.what`. Measured lookups stand behind assumed ones.
        crossing: with the policy.
        times: estimates.
        advice: the largest gain first.
        notes: sentences on what is not known or was left out.
    """

    forecast: Forecast
    plain: Forecast
    loads: tuple[Load, ...]
    crossing: Crossing
    times: Times
    advice: tuple[Advice, ...]
    notes: tuple[str, ...] = ()
