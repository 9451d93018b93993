"""What remains when vectors have few bits: ids, a few wide tables, or nothing to gain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from torchrec_qcomm.planner import units as u
from torchrec_qcomm.planner.advice import reshard
from torchrec_qcomm.planner.advice.advised_job import AdvisedJob
from torchrec_qcomm.planner.findings.results import Advice

WIDE = 4
"""A table is wide above this times the median dim of the job's tables."""

WEIGHT = 0.1
"""A wide table is named if it has at least this share of the bytes that leave ranks."""

WORTH = 0.01
"""A gain of a smaller share of a step's exchange counts as none."""

_INT32 = 2**31


def ids_dominate(advised: AdvisedJob) -> list[Advice]:
    """Ids take longer than the vectors that they look up."""
    job, ids, vectors = advised.job, advised.times.ids_ms, advised.times.quantized_ms
    if ids <= vectors:
        return []
    because = f"Ids, lengths and weights take {u.time(ids)} of a step, vectors and their coding {u.time(vectors)}."
    otherwise = (
        "Other ways, whose gain depends on the data: fewer features or ids a sample; each id of a batch once "
        "(`EmbeddingCollectionSharder(use_index_dedup=True)` for sequences)."
    )
    largest = max((table.table.rows for table in job.tables), default=0)
    if job.index_bytes <= 4 or largest > _INT32:
        return [Advice("ids_dominate", "Ids now take longer than vectors: send fewer", f"{because} {otherwise}", "", 0.0)]
    gain = advised.step_ms - advised.ms(advised.predict(replace(job, index_bytes=4)))
    because = f"{because} Ids of {job.index_bytes} bytes can be 4: no table has more than {largest:,} rows. {otherwise}"
    setting = "KeyedJaggedTensor(..., values=ids.to(torch.int32))"
    return [Advice("ids_dominate", "Ids now take longer than vectors: send them as int32", because, setting, gain)]


def wide_vectors(advised: AdvisedJob) -> list[Advice]:
    """Tables whose vectors are much wider than those of others, and make up much of the bytes."""
    dims = np.array([table.table.dim for table in advised.job.tables])
    weights = np.array(advised.off_rank)
    if not weights.sum():
        return []
    found = []
    for index in advised.heaviest(np.where(dims > WIDE * np.median(dims), weights, 0.0), 3):
        table, share = advised.job.tables[index], float(weights[index] / weights.sum())
        narrow = reshard.narrower(table, 2)
        if share < WEIGHT or narrow is None:
            continue
        gain = advised.step_ms - advised.ms(advised.with_tables({index: narrow}))
        if gain <= 0:
            continue
        because = (
            f"Its {table.table.dim} columns are above {WIDE} x the median of {u.digits(float(np.median(dims)))}, and make up "
            f"{u.share(share)} of the bytes that leave ranks; the gain is that of "
            f"{narrow.table.dim} columns. Accuracy is not predicted."
        )
        found.append(Advice("wide_vectors", f"Fewer columns for {table.table.name}, in the model", because, "", gain))
    return found


def nothing_left(advised: AdvisedJob, found: Sequence[Advice]) -> list[Advice]:
    """That nothing is left to gain, if no other advice gains as much as `WORTH` of a step's exchange."""
    best = max((advice.gain_ms for advice in found), default=0.0)
    if best > WORTH * advised.step_ms:
        return []
    because = (
        f"The exchange takes {u.time(advised.step_ms)} of a step (vectors and coding {u.time(advised.times.quantized_ms)}, ids "
        f"{u.time(advised.times.ids_ms)}, gradients of data-parallel tables {u.time(advised.times.dense_ms)}, sync of replicas "
        f"{u.time(advised.times.sync_ms)}), and the best of all other advice gains {u.time(max(best, 0.0))}."
    )
    return [Advice("nothing_left", "Nothing left to gain here", because, "", 0.0)]
