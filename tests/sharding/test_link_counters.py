"""The kernel's own counters of the links between emulated hosts agree with what this package counts."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
    pytest.mark.skipif(not (shutil.which("ip") and shutil.which("tc")), reason="needs ip and tc (iproute2)"),
]


def run(steps: int) -> tuple[list[int], list[list[int]]]:
    """Bytes that left each host over its link, and the counted matrix, of ``steps`` exchanges of mixed codecs."""
    lab = [sys.executable, "examples/netlab.py", "--hosts", "2", "--rate", "none", "--port", str(29600 + steps), "--"]
    bench = [sys.executable, "examples/bench_exchange.py", "--arms", "mixed", "--exchange-only", str(steps)]
    done = subprocess.run([*lab, *bench], cwd=PROJECT, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stdout + done.stderr
    counted = next(json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))
    sent = [int(n) for n in re.findall(r"netlab: host \d sent (\d+) bytes", done.stdout)]
    return sent, counted["wire_bytes"]


def test_links_carry_what_was_counted() -> None:
    """Ids, rendezvous and the other fixed costs cancel in the difference between N and 2N steps."""
    once, counted_once = run(20)
    twice, counted_twice = run(40)
    for host, other in ((0, 1), (1, 0)):
        counted = counted_twice[host][other] - counted_once[host][other]
        assert counted > 5 * 10**7
        assert twice[host] - once[host] == pytest.approx(counted, rel=0.03)
