"""From a job to all that a report prints of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torchrec_qcomm.planner import units as u
from torchrec_qcomm.planner.advice import AdvisedJob, advise
from torchrec_qcomm.planner.findings.crossing import crossing
from torchrec_qcomm.planner.findings.loads import loads
from torchrec_qcomm.planner.findings.lookups import LookupProfile
from torchrec_qcomm.planner.findings.results import Analysis, Times
from torchrec_qcomm.planner.findings.speeds import Speeds
from torchrec_qcomm.planner.findings.timing import times, uncounted
from torchrec_qcomm.planner.forecast.predict import predict
from torchrec_qcomm.planner.forecast.results import Forecast
from torchrec_qcomm.planner.job import Job
from torchrec_qcomm.policy import Policy

GivenSpeeds = Speeds | Mapping[str, tuple[float, float]]


def analyse(job: Job, *, speeds: GivenSpeeds | None = None, profile: LookupProfile | None = None) -> Analysis:
    """Forecast a job, and judge what comes out.

    Args:
        job: the job.
        speeds: of codecs: `measured_speeds`, or ``{codec's short name: (encode, decode)}`` in GB/s of FP32 values. With
            ``None``, or if they were measured on another kind of device than the job's, the time of coding is left out, and a
            note says so.
        profile: counted lookups. They are shown beside the assumed ones, and advice goes by them.

    Raises:
        PlannerError: the job cannot be forecast, the speeds are not speeds, or the profile is of another plan.
    """
    given = speeds if isinstance(speeds, Speeds) else Speeds(dict(speeds or {}))
    usable = given if _fits(given, job) else Speeds({})
    forecast, plain = predict(job), predict(job.under(Policy()))
    estimate = times(forecast, plain, usable)
    found = loads(forecast, predict, profile)
    return Analysis(
        forecast=forecast,
        plain=plain,
        loads=found,
        crossing=crossing(forecast),
        times=estimate,
        advice=advise(AdvisedJob(forecast, plain, estimate, found, usable, predict, profile)),
        notes=tuple(_notes(forecast, estimate, given, usable, profile)),
    )


def _fits(speeds: Speeds, job: Job) -> bool:
    return speeds.device is None or job.machines.device in (None, speeds.device)


def _notes(forecast: Forecast, estimate: Times, given: Speeds, usable: Speeds, profile: LookupProfile | None) -> Iterator[str]:
    job, machines = forecast.job, forecast.job.machines
    yield from job.assumptions
    if machines.devices_per_host is None:
        yield (
            "It is not known how many ranks a host has: nothing is said of what crosses hosts, and times are those of ranks "
            "that are each on a host of their own."
        )
    if missing := uncounted(forecast, usable):
        why = "no speed of it is known"
        if usable is not given:
            why = f"speeds were {given.how}, which says nothing about {machines.device}"
        coding = f"the time to encode and decode {', '.join(missing)}"
        yield f"Not counted: {coding}; {why}. The policy looks faster than it will be."
    elif estimate.codec_speeds and given.device is not None and machines.device is None:
        yield (
            f"Codec speeds were {given.how}. The job does not say what it runs on; if that is not {given.device}, times to "
            "encode and decode, break-even bandwidths and all advice that goes by them do not hold."
        )
    if estimate.slower:
        yield (
            f"The policy is predicted to slow the exchange down: {u.time(estimate.quantized_ms)} a step with coding, "
            f"{u.time(estimate.plain_ms)} without codecs."
        )
    yield (
        "Times are estimates from bandwidths alone: links are full-duplex, a host's NIC is shared by its ranks, and traffic "
        "inside hosts overlaps with that between them. Left out: latency, contention, waiting for the slowest rank's lookups, "
        "the sums of reduce-scatters, and the copying of values that no codec touches."
    )
    if profile is not None:
        mean = profile.samples / profile.batches if profile.batches else 0.0
        yield (
            f"Lookups were counted over {profile.batches} batches of {u.digits(mean)} samples on average, and scaled to "
            f"{job.batch_size} samples a rank; counts say nothing of the steps that were not among them."
        )
        if bounded := [entry for entry in profile.tables if entry.missed]:
            worst = max(bounded, key=lambda entry: entry.missed)
            yield (
                f"Counts of single ids are lower bounds for {len(bounded)} tables with more ids than are kept; of "
                f"{worst.shards.table} by at most {worst.missed} lookups. What shards get is exact."
            )
