"""``torchrec-qcomm plan``: what the exchange of a plan costs, from a config alone, with no device and no data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from torchrec_qcomm.api import get_topology, plan_offline
from torchrec_qcomm.config import QCommConfig, load_config
from torchrec_qcomm.config.yaml_file import read_yaml
from torchrec_qcomm.errors import ConfigError, describe
from torchrec_qcomm.planner import Job, Replicas, machines_of, read_plan_or_stats
from torchrec_qcomm.planner.analysis import analyse
from torchrec_qcomm.planner.findings.speeds import Speeds, measured_speeds, specs_of
from torchrec_qcomm.report.html.page import report_html
from torchrec_qcomm.report.json import report_json
from torchrec_qcomm.report.text.compare import comparison_text
from torchrec_qcomm.report.text.page import report_text

WHAT_IF = "policy=FILE, hosts=N, 2d=N or 2d=N:strided, sync=N with 2d; several with commas"


@dataclass(frozen=True, slots=True)
class WhatIf:
    """What is to be other than in the config; ``None``: nothing.

    Attributes:
        policy: a config whose precision block is taken.
        hosts: of as many devices as before.
        group_size: ranks of a sharding group of 2D parallelism.
        strided: groups are strided, as TorchRec's are by default; else of neighbouring ranks (``use_inter_host_allreduce``).
        sync: with 2D parallelism, steps from one all-reduce of the weights to the next; ``None``: 1.
    """

    policy: QCommConfig | None = None
    hosts: int | None = None
    group_size: int | None = None
    strided: bool = False
    sync: int | None = None


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
        what_if: as `WHAT_IF` says; a column each.
        speeds: of codecs: ``measured``, ``none``, or a YAML file; by default measured if this machine has the job's device.
        tables: how many to list.

    Raises:
        QCommError: an input is wrong; names the place, the value and what is allowed.
    """
    config = load_config(path)
    cases = [(text, parse_what_if(text)) for text in what_if]
    jobs = list(jobs_of(config, plan, [WhatIf(), *(case for _, case in cases)]))
    taken = speeds_of(speeds, jobs)
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


def jobs_of(config: QCommConfig, plan: str | None, cases: Iterable[WhatIf]) -> Iterator[Job]:
    """The job of a config, or of a plan under the config's policy, changed as each case says.

    Another policy does not change the plan; other machines do, unless it was given.
    """
    made: dict[tuple[int | None, Replicas | None], Job] = {}
    for case in cases:
        replicas = None if case.group_size is None else Replicas(case.group_size, case.strided, case.sync or 1)
        machines = (case.hosts, replicas)
        if plan is not None:
            _refuse_other_machines(plan, case)
        if machines not in made:
            offline = plan is None
            made[machines] = (
                plan_offline(config, hosts=case.hosts, replicas=replicas) if offline else _loaded(config, str(plan))
            )
        job, precision = made[machines], case.policy or config
        names = {planned.table.name for planned in job.tables}
        precision.policy.check_matched(names, where=f"{precision.source}: precision.")
        yield job.under(precision.policy)


def _loaded(config: QCommConfig, plan: str) -> Job:
    """A plan on the config's machines, if it names any, with the config's settings as far as it has them."""
    machines = None if config.topology is None else machines_of(get_topology(config))[0]
    job = read_plan_or_stats(plan, machines, config.batch_size)
    if "hierarchical_row_wise" in config.model_fields_set:
        job = replace(job, hierarchical_row_wise=config.hierarchical_row_wise)
    return job


def parse_what_if(text: str) -> WhatIf:
    """One ``--what-if``.

    Raises:
        ConfigError: it is none, or a number or file in it is wrong.
    """
    case, seen = WhatIf(), set[str]()
    for part in text.split(","):
        key, given, value = part.partition("=")
        place = f"--what-if {part.strip()}"
        if key.strip() in seen:
            raise ConfigError(
                describe(place, f"{key.strip()} is changed twice", got=text, allowed="once; or a further --what-if")
            )
        seen.add(key.strip())
        if key.strip() == "policy" and value:
            case = replace(case, policy=load_config(value))
        elif key.strip() == "hosts" and given:
            case = replace(case, hosts=_count(value, place))
        elif key.strip() == "2d" and given:
            size, colon, kind = value.partition(":")
            if colon and kind != "strided":
                raise ConfigError(describe(place, "unknown kind of sharding groups", got=kind, allowed=["strided"]))
            case = replace(case, group_size=_count(size, place), strided=bool(colon))
        elif key.strip() == "sync" and given:
            case = replace(case, sync=_count(value, place))
        else:
            raise ConfigError(describe("--what-if", "nothing that can be changed", got=part, allowed=WHAT_IF))
    if case.sync is not None and case.group_size is None:
        wrong = "without 2D parallelism there are no weights to sync"
        raise ConfigError(describe(f"--what-if {text}", wrong, got=f"sync={case.sync}", allowed="2d=N,sync=N"))
    return case


def _count(text: str, place: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise ConfigError(describe(place, "not a number", got=text, allowed="1 or more"))
    return int(text)


def _refuse_other_machines(plan: str, case: WhatIf) -> None:
    for name, value in (("hosts", case.hosts), ("2d", case.group_size)):
        if value is not None:
            wrong = f"{plan} places shards on its own ranks, and where they would be on others is the planner's to say"
            todo = "Leave --plan out: then the config's tables are planned anew for those machines."
            raise ConfigError(describe(f"--what-if {name}", wrong, got=value, allowed="policy=FILE with --plan", todo=todo))


def speeds_of(given: str | None, jobs: list[Job]) -> Speeds | None:
    """Speeds of codecs, one source for all jobs; ``None``: the time of coding is left out.

    Raises:
        ConfigError: the file is not one of speeds.
        PlannerError: they are to be measured, and this machine does not have the device.
    """
    device = jobs[0].machines.device
    if given == "none":
        return None
    if given is None and not (device == "cpu" or (device == "cuda" and torch.cuda.is_available())):
        return None
    if given in (None, "measured"):
        return measured_speeds(dict.fromkeys(spec for job in jobs for spec in specs_of(job)), device=device or "cpu")
    data = read_yaml(given)
    if not isinstance(data, Mapping) or not data:
        allowed = "a mapping, as in int8: [40, 60]: encode and decode, GB/s of FP32 values"
        raise ConfigError(describe(given, "no speeds of codecs", got=data, allowed=allowed))
    return Speeds({str(name): _pair(given, name, pair) for name, pair in data.items()}, f"given in {given}")


def _pair(path: str, name: object, pair: object) -> tuple[float, float]:
    numbers = isinstance(pair, list) and len(pair) == 2 and all(type(each) in (int, float) and each > 0 for each in pair)
    if not isinstance(pair, list) or not numbers:
        allowed = "[encode, decode], GB/s of FP32 values, above 0"
        raise ConfigError(describe(f"{path}: {name}", "not two speeds", got=pair, allowed=allowed))
    return float(pair[0]), float(pair[1])


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        wrong = f"cannot be written ({error.strerror})"
        raise ConfigError(describe(path, wrong, got=path, allowed="a place for a file")) from error
