"""Writes docs/reports: forecasts of DLRM-DCNv2 on several numbers of hosts, and of a real plan under several codecs.

    python tests/report/document.py --write docs/reports

No device is needed, and no speeds of codecs are assumed: times are those of the bytes alone, and the reports say so.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from torchrec_qcomm.api import plan_offline
from torchrec_qcomm.planner import Job, Machines
from torchrec_qcomm.planner.analysis import analyse
from torchrec_qcomm.planner.findings.results import Analysis
from torchrec_qcomm.planner.search.topology import DEFAULT_RATES
from torchrec_qcomm.planner.sources.plan_file import read_plan_or_stats
from torchrec_qcomm.policy import Policy
from torchrec_qcomm.report.html.page import report_html
from torchrec_qcomm.report.text.compare import comparison_text
from torchrec_qcomm.report.text.page import report_text

ROOT = Path(__file__).parent.parent.parent
DLRM = "configs/dlrm_dcnv2_mixed.yaml"
HOSTS = (2, 4, 8)
PLAN = "tests/planner/data/torchrec_example_tables.csv"
POLICIES = {"int8": Policy("int8", "int8"), "fp8": Policy("fp8_e4m3", "fp8_e5m2"), "int4": Policy("int4", "int4")}
TABLES = 10

MACHINES = Machines(96, 8, 1, *DEFAULT_RATES)
ASSUMED = "8 ranks a host, and the rates that TorchRec takes by default: the statistics do not say what the plan ran on"


def real_plan() -> Job:
    """The plan of 96 ranks that TorchRec publishes as an example, with no codecs."""
    job = read_plan_or_stats(ROOT / PLAN, MACHINES)
    return replace(job, assumptions=(*job.assumptions, ASSUMED))


def write(folder: Path) -> list[str]:
    """Write all reports; the names of the files."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []

    def put(name: str, text: str) -> None:
        (folder / name).write_text(text.rstrip() + "\n", encoding="utf-8")
        written.append(name)

    hosts: dict[str, Analysis] = {}
    for count in HOSTS:
        analysis = analyse(plan_offline(ROOT / DLRM, hosts=count))
        hosts[f"{count} hosts"] = analysis
        put(f"dlrm_dcnv2_{count}_hosts.txt", report_text(analysis, f"{DLRM}, {count} hosts of 8", TABLES))
    put("dlrm_dcnv2_hosts.txt", comparison_text(list(hosts.items())))
    job, codecs = real_plan(), {}
    for name, policy in POLICIES.items():
        codecs[name] = analysis = analyse(job.under(policy))
        put(f"real_plan_{name}.txt", report_text(analysis, f"the real plan, {name}", TABLES))
    put("real_plan_codecs.txt", comparison_text(list(codecs.items())))
    put("real_plan_fp8.html", report_html(codecs["fp8"], "the real plan, fp8", tables=50))
    return written


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, required=True, metavar="FOLDER")
    for name in write(parser.parse_args().write):
        print(name)


if __name__ == "__main__":
    main()
