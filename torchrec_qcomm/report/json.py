"""An analysis as JSON: everything that the text says, and the arrays behind it. Bytes are of a step."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from torchrec_qcomm.codecs import CodecSpec
from torchrec_qcomm.planner.findings.results import Analysis
from torchrec_qcomm.planner.forecast.results import MATRIX_RANKS, ExchangeForecast, Forecast
from torchrec_qcomm.planner.job import REACHES, Job
from torchrec_qcomm.planner.units import ranges, saved
from torchrec_qcomm.policy import Direction, Policy
from torchrec_qcomm.report import figures as f
from torchrec_qcomm.report.bottleneck import bottleneck

SCHEMA_VERSION = 1
"""It goes up when a key is removed, renamed, or gets another meaning. New keys may come at any time."""

MATRIX_HOSTS = 512
"""Hosts up to which there is a matrix of host pairs."""

UNITS = {
    "bytes": "wire bytes of a step, a rank's share with itself included",
    "ms": "milliseconds of a step",
    "shares": "of 1",
    "gb_per_s": "1e9 bytes a second, of a rank, one way",
}


def report_json(analysis: Analysis, title: str = "") -> str:
    """The JSON text, in one line. The same analysis gives the same text.

    Args:
        analysis: what was found.
        title: put into the JSON, such as the name of the config.
    """
    return json.dumps(report_dict(analysis, title), separators=(",", ":"), allow_nan=False) + "\n"


def report_dict(analysis: Analysis, title: str = "") -> dict[str, Any]:
    """What `report_json` writes, as plain values: the guide lists the keys."""
    forecast, plain = analysis.forecast, analysis.plain
    return {
        "schema_version": SCHEMA_VERSION,
        "title": title,
        "units": UNITS,
        "reaches": [str(reach) for reach in REACHES],
        "job": _job(forecast.job),
        "totals": _totals(analysis),
        "crossing": _crossing(analysis),
        "times": _times(analysis),
        "loads": [
            {
                "what": load.what,
                "unit": load.unit,
                "measured": load.measured,
                "max_over_mean": _number(load.max_over_mean),
                "max_over_mean_plain": None
                if (plain_ratio := f.plain_max_over_mean(analysis, load)) is None
                else _number(plain_ratio),
                "worst_ranks": list(load.worst),
                "tables": [{"table": name, "share": _number(part)} for name, part in load.tables],
                "per_rank": _numbers(load.per_rank),
            }
            for load in f.loads_of(analysis)
        ],
        "advice": [
            {
                "rule": each.rule,
                "title": each.title,
                "because": each.because,
                "setting": each.setting,
                "gain_ms": _number(each.gain_ms),
            }
            for each in analysis.advice
        ],
        "tables": [_table(table) for table in f.table_figures(analysis)],
        "exchanges": [_exchange(after, before) for after, before in zip(forecast.exchanges, plain.exchanges, strict=True)],
        "ranks": {
            "sent": _both(forecast, plain, lambda side, way: side.sent((way,))),
            "received": _both(forecast, plain, lambda side, way: side.received((way,))),
            "ids_sent": _numbers(forecast.ids_sent),
            "ids_received": _numbers(forecast.ids_received),
            "lookups": _numbers(forecast.lookups),
            "rows": _numbers(forecast.rows),
            "memory": _numbers(forecast.memory),
            "sync_bytes": _numbers(forecast.sync_bytes),
        },
        "host_matrix": _host_matrix(forecast, plain),
        "rank_matrix": _rank_matrix(forecast, plain),
        "assumptions": list(forecast.job.assumptions),
        "notes": list(analysis.notes),
    }


def _job(job: Job) -> dict[str, Any]:
    machines = job.machines
    replicas = None
    if job.replicas is not None:
        replicas = {
            "group_size": job.replicas.group_size,
            "strided": job.replicas.strided,
            "sync_interval": job.replicas.sync_interval,
        }
    return {
        "world_size": machines.world_size,
        "devices_per_host": machines.devices_per_host,
        "hosts": None if machines.devices_per_host is None else machines.hosts,
        "pod_hosts": machines.pod_hosts,
        "intra_host_gb_per_s": machines.intra_host_gb_per_s,
        "inter_host_gb_per_s": machines.inter_host_gb_per_s,
        "batch_size": job.batch_size,
        "hierarchical_row_wise": job.hierarchical_row_wise,
        "index_bytes": job.index_bytes,
        "replicas": replicas,
        "policy": _policy(job.policy),
    }


def _policy(policy: Policy) -> dict[str, Any]:
    rules = [
        {
            "tables": list(rule.globs),
            "where": None
            if rule.where is None
            else {name: size for name, size in asdict(rule.where).items() if size is not None},
            "link": None if rule.link is None else str(rule.link),
            **{str(way): None if (spec := rule.codec(way)) is None else str(spec) for way in Direction},
        }
        for rule in policy.rules
    ]
    return {"default": {str(way): str(policy.default(way)) for way in Direction}, "rules": rules}


def _totals(analysis: Analysis) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for way in (*Direction, None):
        before, after = f.sent_bytes(analysis.plain, way), f.sent_bytes(analysis.forecast, way)
        gain = saved(before, after)
        made[str(way or "both")] = {
            "before": _number(before),
            "after": _number(after),
            "saved_share": _optional(gain),
        }
    return {
        **made,
        "ids": _number(float(analysis.forecast.ids_sent.sum())),
        "dense_bytes_of_a_rank": _number(analysis.forecast.dense_bytes),
        "sync_bytes": _number(float(analysis.forecast.sync_bytes.sum())),
    }


def _crossing(analysis: Analysis) -> dict[str, Any]:
    def shares(include_self: bool) -> list[float | int | None] | None:
        found = analysis.crossing.shares(include_self)
        return None if found is None else _numbers(found, 9)

    return {
        "known": analysis.crossing.known,
        "bytes": _numbers(analysis.crossing.wire),
        "shares_with_self": shares(True),
        "shares_without_self": shares(False),
    }


def _times(analysis: Analysis) -> dict[str, Any]:
    times = analysis.times
    return {
        "plain_ms": _number(times.plain_ms),
        "quantized_ms": _number(times.quantized_ms),
        "predicted_slower": bool(times.slower),
        "ids_ms": _number(times.ids_ms),
        "dense_ms": _number(times.dense_ms),
        "sync_ms": _number(times.sync_ms),
        "bottleneck": None
        if (found := bottleneck(analysis)) is None
        else {"what": found.what, "ms": _number(found.ms), "share": _number(found.share), "cure": found.cure},
        "codec_speeds": {
            name: {"encode_gb_per_s": _number(encode), "decode_gb_per_s": _number(decode), "from": how}
            for name, (encode, decode, how) in sorted(times.codec_speeds.items())
        },
        "collectives": [
            {
                "module": one.module,
                "sharding_type": one.sharding_type,
                "hop": one.hop,
                "direction": str(one.direction),
                "plain_ms": _number(one.plain_ms),
                "wire_ms": _number(one.wire_ms),
                "encode_ms": _number(one.encode_ms),
                "decode_ms": _number(one.decode_ms),
                "quantized_ms": _number(one.quantized_ms),
                "limit": one.limit,
            }
            for one in times.collectives
        ],
    }


def _table(table: f.TableFigures) -> dict[str, Any]:
    planned = table.planned
    return {
        "name": planned.table.name,
        "module": planned.module,
        "rows": planned.table.rows,
        "dim": planned.table.dim,
        "features": list(planned.features),
        "pooling": _numbers(np.asarray(planned.pooling)),
        "pooled": planned.pooled,
        "weighted": planned.weighted,
        "payload": str(planned.payload).removeprefix("torch."),
        "sharding_type": planned.sharding_type,
        "shards": len(planned.ranks),
        "ranks": ranges(map(int, planned.ranks)),
        "codecs": {str(way): list(table.codecs[way]) for way in Direction},
        "before": {str(way): _number(table.before[way]) for way in Direction},
        "after": {str(way): _number(table.after[way]) for way in Direction},
        "across_hosts": _optional(table.across),
        "lookups": _number(table.lookups),
        "id_bytes": _number(table.id_bytes),
        "break_even_gb_per_s": _optional(table.break_even),
    }


def _exchange(after: ExchangeForecast, before: ExchangeForecast) -> dict[str, Any]:
    return {
        "module": after.module,
        "sharding_type": after.sharding_type,
        "hop": after.hop,
        "direction": str(after.direction),
        "before": _numbers(before.sent.sum(0)),
        "after": _numbers(after.sent.sum(0)),
        "encoded_values": {str(spec): _number(float(values.sum())) for spec, values in _by_name(after.encoded)},
        "decoded_values": {str(spec): _number(float(values.sum())) for spec, values in _by_name(after.decoded)},
        "tables": list(after.tables),
    }


def _by_name(values: Mapping[CodecSpec, np.ndarray]) -> list[tuple[CodecSpec, np.ndarray]]:
    return sorted(values.items(), key=lambda item: str(item[0]))


def _both(forecast: Forecast, plain: Forecast, arrays: Callable[[Forecast, Direction], np.ndarray]) -> dict[str, Any]:
    sides = {"before": plain, "after": forecast}
    return {name: {str(way): _numbers(arrays(side, way)) for way in Direction} for name, side in sides.items()}


def _host_matrix(forecast: Forecast, plain: Forecast) -> dict[str, Any]:
    machines = forecast.job.machines
    if machines.devices_per_host is None:
        return {"left_out": "it is not known how many ranks a host has"}
    if machines.hosts > MATRIX_HOSTS:
        return {"left_out": f"more than {MATRIX_HOSTS} hosts"}
    return _both(forecast, plain, lambda side, way: side.hosts((way,)))


def _rank_matrix(forecast: Forecast, plain: Forecast) -> dict[str, Any]:
    if forecast.job.machines.world_size > MATRIX_RANKS:
        return {"left_out": f"more than {MATRIX_RANKS} ranks"}
    return _both(forecast, plain, lambda side, way: side.rank_matrix((way,)))


def _number(value: float, places: int = 6) -> int | float | None:
    """A number of JSON: an integer if it is whole, ``None`` for infinity and NaN, which JSON does not have."""
    value = float(value)
    if not math.isfinite(value):
        return None
    return int(value) if value.is_integer() else round(value, places)


def _optional(value: float | None) -> int | float | None:
    return None if value is None else _number(value)


def _numbers(values: np.ndarray, places: int = 3) -> list[Any]:
    """Nested lists; of integers if all values are whole."""
    values = np.asarray(values, dtype=np.float64)
    if not np.isfinite(values).all():
        return [_numbers(row, places) if np.ndim(row) else _number(row, places) for row in values]
    if (values == np.rint(values)).all() and np.abs(values).max(initial=0) < 2**53:
        return list(values.astype(np.int64).tolist())
    return list(np.round(values, places).tolist())
