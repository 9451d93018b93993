"""What takes longest of a step after the policy has done its work, and whether codecs can shorten it."""

from __future__ import annotations

from dataclasses import dataclass

from torchrec_qcomm.planner import units as u
from torchrec_qcomm.planner.findings.results import Analysis
from torchrec_qcomm.report import figures as f


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """The longest part of a step's exchange and of what lies beside it, if these came one after the other.

    Attributes:
        what: in words.
        ms: how long it takes a step.
        share: of ``all_ms``, 0 to 1.
        all_ms: moving bytes, encoding and decoding, ids, gradients of data-parallel tables, weights of replicas.
        cure: whether codecs make it shorter.
    """

    what: str
    ms: float
    share: float
    all_ms: float
    cure: str


def bottleneck(analysis: Analysis) -> Bottleneck | None:
    """The longest of: bytes inside hosts, bytes between hosts, coding, ids, gradients, weights. ``None``: none takes time."""
    times = analysis.times
    inside, across = (
        sum((each.wire_ms for each in times.collectives if each.limit == limit), 0.0) for limit in ("intra_host", "inter_host")
    )
    _, encode, decode = f.coding_ms(analysis)
    between = "between hosts" if analysis.crossing.known else "between ranks"
    parts = (
        (f"bytes {between}", across, "fewer bits help"),
        ("bytes inside hosts", inside, "fewer bits help"),
        ("encode and decode", encode + decode, "fewer bits do not help"),
        ("ids", times.ids_ms, "codecs do not help"),
        ("data-parallel gradients", times.dense_ms, "codecs do not help"),
        ("weight sync of 2D", times.sync_ms, "codecs do not help"),
    )
    all_ms = sum(ms for _, ms, _ in parts)
    what, ms, cure = max(parts, key=lambda part: part[1])
    return Bottleneck(what, ms, ms / all_ms, all_ms, cure) if all_ms else None


def bottleneck_words(analysis: Analysis) -> list[str]:
    """Sentences: what takes longest now, and uneven lookups, whose time is not known. Each says whether codecs can help."""
    said, found = [], bottleneck(analysis)
    if found is not None:
        counted = "without coding" if f.uncounted_codecs(analysis) else "in all"
        of = f"{100 * found.share:.0f} % of {u.time(found.all_ms)} {counted}"
        said.append(f"next bottleneck: {found.what}, {of}; {found.cure}")
    lookups = [load for load in analysis.loads if load.what == "lookups"]
    load = next((each for each in lookups if each.measured), lookups[0] if lookups else None)
    if load is not None and load.worst:
        most = "".join(f" ({u.shortened(name, 20)} {100 * part:.0f} %)" for name, part in f.heavy_tables(load, 1))
        source = "measured" if load.measured else "assumed"
        uneven = f"{load.max_over_mean:.2f} x the mean at rank {load.worst[0]}{most}, {source}"
        said.append(f"not timed, and no codec changes it: lookups, {uneven}")
    return said
