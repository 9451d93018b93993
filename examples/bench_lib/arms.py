"""What is timed against what: TorchRec's precisions and the plugin's policies."""

from __future__ import annotations

from dataclasses import dataclass, field

from torchrec.distributed.fbgemm_qcomm_codec import CommType

import torchrec_qcomm as qc
from torchrec_qcomm.policy import Policy

TORCHREC = {"torchrec fp32": CommType.FP32, "torchrec fp16": CommType.FP16, "torchrec int8": CommType.INT8}


@dataclass(frozen=True)
class Arm:
    """An exchange of the plugin.

    Attributes:
        policy: the codecs.
        hierarchical: sum inside hosts first; for row-wise sharding.
    """

    policy: Policy = field(default_factory=Policy)
    hierarchical: bool = False


def light_inside(across: str) -> Policy:
    """16 bits inside a host, a codec across."""
    return Policy(across, across, (qc.Rule(link="intra_host", forward="bf16", backward="bf16"),))


OURS = {
    "none": Arm(),
    "fp16": Arm(Policy("fp16", "fp16")),
    "fp8": Arm(Policy("fp8_e4m3", "fp8_e5m2")),
    "int8": Arm(Policy("int8", "int8")),
    "int4": Arm(Policy("int4", "int4")),
    "mixed": Arm(
        Policy(
            "fp8_e4m3",
            "fp8_e5m2",
            (
                qc.Rule(tables="t?", forward="int8", backward="int8"),
                qc.Rule(tables="*[02468]", forward="int4", backward="int8"),
            ),
        )
    ),
    "bf16+int8": Arm(light_inside("int8")),
    "bf16+int4": Arm(light_inside("int4")),
    "none, h": Arm(hierarchical=True),
    "fp16, h": Arm(Policy("fp16", "fp16"), hierarchical=True),
    "int8, h": Arm(Policy("int8", "int8"), hierarchical=True),
    "bf16+int8, h": Arm(light_inside("int8"), hierarchical=True),
    "none+int8, h": Arm(
        Policy("int8", "int8", (qc.Rule(link="intra_host", forward="none", backward="none"),)), hierarchical=True
    ),
}
"""``a+b``: ``a`` inside hosts, ``b`` across. ``h``: hierarchical."""

DEFAULT = {
    "table_wise": [*TORCHREC, "none", "fp16", "fp8", "int8", "int4", "mixed"],
    "row_wise": [
        *("torchrec fp32", "torchrec fp16"),
        *("none", "fp16", "int8", "int4", "none, h", "fp16, h", "int8, h", "bf16+int8, h"),
    ],
    "table_row_wise": ["torchrec fp32", "torchrec fp16", "none", "fp16", "int8", "bf16+int8", "bf16+int4"],
}
"""The arms of each sharding. TorchRec's INT8 fails in a reduce-scatter, so it is left out there."""


def wrong_arm(sharding: str, arms: list[str]) -> str | None:
    """What is wrong with the arms for a sharding."""
    for arm in arms:
        if arm == "torchrec int8" and sharding != "table_wise":
            return f"{arm}: raises in TorchRec's own reduce-scatter, with --sharding {sharding}"
        if arm in OURS and OURS[arm].hierarchical and sharding != "row_wise":
            return f"{arm}: only --sharding row_wise can sum inside hosts first"
    return None
