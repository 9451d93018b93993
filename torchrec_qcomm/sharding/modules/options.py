"""What a sharder tells the modules that it makes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from torchrec_qcomm.policy import Policy
from torchrec_qcomm.sharding.precision import CodecFactory


@dataclass(frozen=True, slots=True)
class SharderOptions:
    """Of one sharder; the arguments of `QCommSharder` say what each is.

    Attributes:
        check_rules: refuses rules that match none of the tables sharded so far.
        hierarchical_row_wise: for EmbeddingBagCollections alone.
    """

    policy: Policy
    devices_per_host: int | None
    codec_factory: CodecFactory
    agreement_timeout: timedelta
    seed: int
    check_rules: Callable[[], None]
    hierarchical_row_wise: bool = False
