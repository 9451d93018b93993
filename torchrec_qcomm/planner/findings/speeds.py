"""How fast the codecs of a job work: measured on this machine, or given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain

import torch

from torchrec_qcomm import codecs
from torchrec_qcomm.codecs import CodecLike, CodecSpec
from torchrec_qcomm.codecs.speed import codec_speed
from torchrec_qcomm.errors import PlannerError, describe
from torchrec_qcomm.planner.job import Job
from torchrec_qcomm.policy import Direction, Link
from torchrec_qcomm.policy.resolution import LOSSLESS

RUNGS: tuple[tuple[str, str], ...] = (("fp8_e4m3", "fp8_e5m2"), ("int4", "int4"))
"""Codecs forward and backward that advice tries in turn: 8 bits, then 4. Their speeds are measured too."""


@dataclass(frozen=True, slots=True)
class Speeds:
    """Codec speeds, all from one source.

    Attributes:
        by_codec: for a codec's short name, ``(encode, decode)`` in GB/s (1e9 bytes) of FP32 values.
        how: ``given``, or what they were measured on.
        device: what they were measured on, as in `Machines.device`; ``None``: they were given, for the job's device.
    """

    by_codec: Mapping[str, tuple[float, float]]
    how: str = "given"
    device: str | None = None

    def __post_init__(self) -> None:
        for name, pair in self.by_codec.items():
            if len(pair) != 2 or not all(speed > 0 for speed in pair):
                allowed = "(encode, decode), GB/s of FP32 values, above 0"
                raise PlannerError(describe(f"codec speeds: {name}", "not two speeds", got=pair, allowed=allowed))

    def of(self, spec: CodecSpec) -> tuple[float, float] | None:
        """``(encode, decode)``; ``None``: not known. Both are infinite for codecs that move values as they are."""
        return (float("inf"), float("inf")) if spec.name in LOSSLESS else self.by_codec.get(str(spec))


def specs_of(job: Job) -> tuple[CodecSpec, ...]:
    """The codecs whose speeds an analysis of the job needs: those of its policy, and those that advice tries."""
    used = [
        resolved.codec(table.name, direction, link)
        for resolved in job.resolved().values()
        for table in resolved.tables
        for direction in Direction
        for link in Link
    ]
    return tuple(
        spec for spec in dict.fromkeys([*used, *map(codecs.spec, chain.from_iterable(RUNGS))]) if spec.name not in LOSSLESS
    )


def has_device(device: str | None) -> bool:
    """Whether speeds can be measured on this machine: it has the device, and it is known which device that is."""
    return device == "cpu" or (device == "cuda" and torch.cuda.is_available())


def speeds_of(jobs: Iterable[Job], device: str) -> Speeds:
    """The speeds that analyses of the jobs need, measured.

    Raises:
        PlannerError: this machine does not have the device.
    """
    return measured_speeds(dict.fromkeys(spec for job in jobs for spec in specs_of(job)), device=device)


def measured_speeds(
    likes: Iterable[CodecLike], dim: int = 128, device: str | torch.device = "cpu", seconds: float = 0.05, values: int = 2**22
) -> Speeds:
    """Time the codecs' own encode and decode.

    Args:
        likes: codecs.
        dim: of the rows.
        device: ``cpu``, or ``cuda`` if this machine has one.
        seconds: to spend on each direction of each codec.
        values: of the sample. The default is 16 MiB, more than most caches hold.

    Raises:
        PlannerError: the device is not here.
        CodecError: no such codec.
    """
    device = torch.device(device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise PlannerError(describe("codec speeds: device", "not on this machine", got=str(device), allowed=["cpu"]))
    generator = torch.Generator().manual_seed(0)
    sample = torch.randn(max(values // dim, 1), dim, generator=generator).to(device)
    found = {str(spec): codec_speed(codecs.get(spec), sample, seconds) for spec in dict.fromkeys(map(codecs.spec, likes))}
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{torch.get_num_threads()} threads"
    return Speeds(found, f"measured here on {device.type} ({name}), rows of {dim} values", device.type)
