"""``torchrec-qcomm plan``: what the exchange of a plan costs, from a config alone, with no device and no data."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from torchrec_qcomm.api import jobs_of
from torchrec_qcomm.config import load_config
from torchrec_qcomm.config.speeds import read_speeds
from torchrec_qcomm.config.what_if import WhatIf, parse_what_if
from torchrec_qcomm.errors import ConfigError, describe
from torchrec_qcomm.planner import Job
from torchrec_qcomm.planner.analysis import analyse
from torchrec_qcomm.planner.findings.speeds import Speeds, has_device, speeds_of
from torchrec_qcomm.report.html.page import report_html
from torchrec_qcomm.report.json import report_json
from torchrec_qcomm.report.text.compare import comparison_text
from torchrec_qcomm.report.text.page import report_text


def plan_text(
    path: str,
    plan: str | None = None,
    json: str | None = None,
    html: str | None = None,
    what_if: Iterable[str] = (),
    speeds: str | None = None,
    tables: int = 20,
) -> str:
    """What ``plan`` prints.

    Args:
        path: of the config.
        plan: a plan from a real run, or TorchRec's planner statistics; by default one is made from the config.
        json: write the JSON report there.
        html: write the page there.
        what_if: as `parse_what_if` takes it; a column each.
        speeds: of codecs: ``measured``, ``none``, or a YAML file; by default measured if this machine has the job's device.
        tables: how many to list.

    Raises:
        QCommError: an input is wrong; names the place, the value and what is allowed.
    """
    config = load_config(path)
    cases = [(text, parse_what_if(text)) for text in what_if]
    jobs = list(jobs_of(config, plan, [WhatIf(), *(case for _, case in cases)]))
    taken = _speeds(speeds, jobs)
    base, *others = [analyse(job, speeds=taken) for job in jobs]
    title = config.source if plan is None else f"{config.source}, plan of {Path(plan).name}"
    parts = [report_text(base, title, tables)]
    if cases:
        parts.append(comparison_text([("as it is", base), *((text, a) for (text, _), a in zip(cases, others, strict=True))]))
    for file, text in ((json, lambda: report_json(base, title)), (html, lambda: report_html(base, title))):
        if file is not None:
            _write(file, text())
            parts.append(f"written: {file}")
    return "\n\n".join(parts)


def _speeds(given: str | None, jobs: list[Job]) -> Speeds | None:
    """Speeds of codecs, one source for all jobs; ``None``: the time of coding is left out."""
    device = jobs[0].machines.device
    if given == "none" or (given is None and not has_device(device)):
        return None
    return speeds_of(jobs, device or "cpu") if given in (None, "measured") else read_speeds(given)


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        wrong = f"cannot be written ({error.strerror})"
        raise ConfigError(describe(path, wrong, got=path, allowed="a place for a file")) from error
