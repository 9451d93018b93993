"""What is trained, and what each arm must show."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import nn
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import ModuleSharder

import torchrec_qcomm as qc
from tests.convergence import faults
from torchrec_qcomm.codecs import CodecLike

DIM = 32  # of all tables
DROPPED = "t_date_origin_window"  # the table whose gradient the control drops
MARK = "fp16"  # stands in a policy for the faulty codec of the two gradient controls


@dataclass(frozen=True, slots=True)
class Gate:
    """Limits on the mean of the paired differences to the FP32 wire.

    Attributes:
        auc: may fall by so much at most; 0: both must be equal.
        normalized_entropy: may rise by so much at most; None: not looked at.
    """

    auc: float
    normalized_entropy: float | None

    def holds(self, auc: float, normalized_entropy: float) -> bool:
        """Whether differences to the FP32 wire are within the limits."""
        if self.auc == 0:
            return auc == normalized_entropy == 0
        return auc >= -self.auc and (self.normalized_entropy is None or normalized_entropy <= self.normalized_entropy)

    def __str__(self) -> str:
        if self.auc == 0:
            return "equal"
        text = f"AUC >= -{self.auc:.4f}"
        return text if self.normalized_entropy is None else f"{text}, NE <= +{self.normalized_entropy:.4f}"


EIGHT_BITS = Gate(0.0005, 0.0008)
FOUR_BITS = Gate(0.0005, 0.0010)
SGD = Gate(0.002, None)
EXACT = Gate(0.0, 0.0)


@dataclass(frozen=True)
class Arm:
    """One way of moving the embeddings, trained with each seed.

    Attributes:
        name: in the table.
        optimizer: ``adagrad`` or ``sgd``.
        gate: None for the FP32 wire, which the others are compared with.
        policy: None is TorchRec's own exchange.
        broken: codecs of the policy that are broken on purpose.
        expected: whether it is within its gate (a codec) or not (a control, which the gate has to notice); None: shown only.
        of_range: it stands in the table of the whole range of codecs.
    """

    name: str
    optimizer: str
    gate: Gate | None = None
    policy: qc.Policy | None = None
    broken: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = field(default_factory=dict)
    expected: bool | None = True
    of_range: bool = False

    def sharders(self) -> list[ModuleSharder[nn.Module]]:
        """Fresh sharders for one run."""
        if self.policy is None:
            return get_default_sharders()
        return [qc.QCommEmbeddingBagCollectionSharder(self.policy, codec_factory=faults.factory(self.broken))]


def ranged(forward: CodecLike, backward: CodecLike, expected: bool | None = None) -> Arm:
    """Two codecs of the whole range, with what they save of the rows' bytes."""
    found = [qc.codecs.get(like) for like in (forward, backward)]
    names = [f"{codec.spec} ({4 * DIM / codec.row_bytes(DIM):.1f}x)" for codec in found]
    policy = qc.Policy(forward, backward)
    return Arm(" forward, ".join(names) + " backward", "adagrad", FOUR_BITS, policy, expected=expected, of_range=True)


def stochastic(name: str) -> CodecLike:
    """A codec with stochastic rounding."""
    return {"codec": name, "rounding": "stochastic"}


def moving(name: str, decay: float) -> CodecLike:
    """A codec with one range for the rows of a table, which follows what is sent."""
    return {"codec": name, "range": {"ema": decay}}


QSGD4: CodecLike = {"codec": "qsgd", "norm": "max"}
NATURAL4: CodecLike = {"codec": "natural", "bits": 4}

FP8 = qc.Policy("fp8_e4m3", "fp8_e5m2")
INT8 = qc.Policy("int8", "int8")
INT4 = qc.Policy("int4", "int4")

ARMS = (
    Arm("FP32 wire (TorchRec)", "adagrad"),
    Arm("none", "adagrad", EXACT, qc.Policy()),
    Arm("FP16 both ways", "adagrad", EIGHT_BITS, qc.Policy("fp16", {"codec": "fp16", "loss_scale": 1024})),
    Arm("BF16 both ways", "adagrad", EIGHT_BITS, qc.Policy("bf16", "bf16")),
    Arm("FP8: E4M3 forward, E5M2 backward", "adagrad", EIGHT_BITS, FP8),
    Arm("INT8 both ways", "adagrad", EIGHT_BITS, INT8),
    Arm("INT4 both ways", "adagrad", FOUR_BITS, INT4),
    Arm("control: INT4 truncates", "adagrad", FOUR_BITS, INT4, {"int4": faults.truncated_int4}, expected=False),
    Arm(
        "control: E5M2 backward without a row scale, of the mean over all ranks",
        "adagrad",
        EIGHT_BITS,
        FP8,
        {"fp8_e5m2": faults.e5m2_without_scale_of_global_mean},
        expected=False,
    ),
    Arm(
        "the same, of each rank's own mean",
        "adagrad",
        EIGHT_BITS,
        FP8,
        {"fp8_e5m2": faults.e5m2_without_scale},
        expected=None,
    ),
    Arm(
        "control: INT4 with one scale per tensor",
        "adagrad",
        FOUR_BITS,
        INT4,
        {"int4": faults.int4_with_one_scale},
        expected=False,
    ),
    Arm(
        f"control: gradient of {DROPPED} dropped",
        "adagrad",
        EIGHT_BITS,
        qc.Policy(rules=(qc.Rule(tables=DROPPED, backward=MARK),)),
        {MARK: faults.dropped},
        expected=False,
    ),
    ranged(stochastic("int8"), stochastic("int8")),
    ranged("int8", stochastic("int4")),
    ranged(stochastic("int4"), stochastic("int4")),
    ranged(moving("int8", 0.9), moving("int8", 0.9)),
    ranged(moving("int4", 0.9), moving("int4", 0.9)),
    ranged(moving("int8", 0.99), "int8"),
    ranged("lut4", "lut4"),
    ranged("mxfp4", "mxfp4"),
    ranged("int8", QSGD4),
    ranged("int4", NATURAL4),
    ranged("int2", "int2"),
    ranged("lut2", "lut2"),
    ranged("int4", stochastic("int2")),
    ranged("int8", "ternary"),
    ranged("int4", "ternary"),
    ranged("int8", "onebit"),
    ranged("int8", "sign"),
    Arm(
        "sign (21.3x) both ways, int8 (3.2x) for tables of 200 rows or more",
        "adagrad",
        FOUR_BITS,
        qc.Policy("sign", "sign", rules=(qc.Rule(where=qc.Where(min_rows=200), forward="int8", backward="int8"),)),
        of_range=True,
    ),
    ranged("sign", "sign", expected=False),
    Arm("FP32 wire (TorchRec)", "sgd"),
    Arm("FP8: E4M3 forward, E5M2 backward", "sgd", SGD, FP8),
    Arm("INT8 both ways", "sgd", SGD, INT8),
    Arm("INT4 both ways", "sgd", SGD, INT4),
    Arm("control: gradients times 0.5", "sgd", SGD, qc.Policy(backward=MARK), {MARK: faults.halved}, expected=False),
)
