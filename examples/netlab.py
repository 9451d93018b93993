#!/usr/bin/env python3
"""Run a torch.distributed job on several emulated hosts of this one machine.

Every host is a network namespace with its own address. A link of limited rate
joins it to a switch, so bytes that cross hosts take as long as on a real network
of that rate. Ranks of one host talk over that host's loopback, unlimited.

    python examples/netlab.py --hosts 2 --ranks-per-host 1 --rate 1gbit -- python train.py ...

Each rank runs COMMAND with RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE,
GROUP_RANK, MASTER_ADDR, MASTER_PORT, GLOO_SOCKET_IFNAME and OMP_NUM_THREADS set,
as torchrun would. Rank 0 prints to the terminal; the others to --logs DIR.
Bytes that left each host are printed last, from the kernel's own link counters.
Exit status: the first failing rank's, else 0.

Needs root, and `ip` and `tc` (Debian package iproute2).
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

IFACE = "eth0"


class LabError(Exception):
    """A host or a link cannot be made, or does not answer."""


def sh(*args: str) -> str:
    done = subprocess.run(args, capture_output=True, text=True)
    if done.returncode:
        raise LabError(f"{' '.join(args)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


class Lab:
    """Namespaces <tag>h0..<tag>hN-1 and the switch <tag>sw; removed on exit."""

    def __init__(self, hosts: int, rate: str | None, burst: str) -> None:
        self.tag = f"nl{os.getpid() % 100000}"
        self.hosts = [f"{self.tag}h{i}" for i in range(hosts)]
        self.switch = f"{self.tag}sw"
        self.rate, self.burst = rate, burst

    def __enter__(self) -> Lab:
        try:
            sh("ip", "netns", "add", self.switch)
            sh("ip", "-n", self.switch, "link", "add", "br0", "type", "bridge")
            sh("ip", "-n", self.switch, "link", "set", "br0", "up")
            for i, host in enumerate(self.hosts):
                sh("ip", "netns", "add", host)
                port = f"p{i}"
                sh("ip", "link", "add", IFACE, "netns", host, "type", "veth", "peer", "name", port, "netns", self.switch)
                sh("ip", "-n", host, "addr", "add", f"{self.address(i)}/24", "dev", IFACE)
                for link in ("lo", IFACE):
                    sh("ip", "-n", host, "link", "set", link, "up")
                sh("ip", "-n", self.switch, "link", "set", port, "master", "br0")
                sh("ip", "-n", self.switch, "link", "set", port, "up")
                if self.rate:  # both directions: from the host, and from the switch to it
                    for ns, dev in ((host, IFACE), (self.switch, port)):
                        sh(
                            "ip",
                            "netns",
                            "exec",
                            ns,
                            "tc",
                            "qdisc",
                            "add",
                            "dev",
                            dev,
                            "root",
                            "tbf",
                            "rate",
                            self.rate,
                            "burst",
                            self.burst,
                            "latency",
                            "50ms",
                        )
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        for ns in [*self.hosts, self.switch]:
            subprocess.run(["ip", "netns", "del", ns], capture_output=True)

    @staticmethod
    def address(i: int) -> str:
        return f"10.99.0.{i + 1}"

    def sent(self, i: int) -> int:
        return int(sh("ip", "netns", "exec", self.hosts[i], "cat", f"/sys/class/net/{IFACE}/statistics/tx_bytes"))


def run_ranks(lab: Lab, args: argparse.Namespace, command: list[str], logs: Path) -> int:
    """Start the ranks, wait for all of them, print the bytes that left each host; the exit status."""
    world = args.hosts * args.ranks_per_host
    procs: list[subprocess.Popen[bytes]] = []
    with ExitStack() as files:
        before = [lab.sent(i) for i in range(args.hosts)]
        try:
            for rank in range(world):
                host, local = divmod(rank, args.ranks_per_host)
                env = dict(
                    os.environ,
                    RANK=str(rank),
                    LOCAL_RANK=str(local),
                    GROUP_RANK=str(host),
                    WORLD_SIZE=str(world),
                    LOCAL_WORLD_SIZE=str(args.ranks_per_host),
                    MASTER_ADDR=lab.address(0),
                    MASTER_PORT=str(args.port),
                    GLOO_SOCKET_IFNAME=IFACE,
                    TP_SOCKET_IFNAME=IFACE,
                    OMP_NUM_THREADS=os.environ.get("OMP_NUM_THREADS", "1"),
                )
                out = None if rank == 0 else files.enter_context(open(logs / f"rank{rank}.log", "wb"))
                procs.append(
                    subprocess.Popen(
                        ["ip", "netns", "exec", lab.hosts[host], *command],
                        env=env,
                        stdout=out,
                        stderr=subprocess.STDOUT if out else None,
                        start_new_session=True,
                    )
                )
            deadline, status = time.monotonic() + args.timeout, 0
            while any(p.poll() is None for p in procs):
                bad = next((p.returncode for p in procs if p.returncode), 0)
                if bad or time.monotonic() > deadline:
                    status = bad or 124
                    time.sleep(2)  # let the others print their own errors
                    break
                time.sleep(0.05)
            status = status or next((p.returncode for p in procs if p.returncode), 0)
        finally:
            for p in procs:
                if p.poll() is None:
                    os.killpg(p.pid, signal.SIGKILL)
                p.wait()
        for i, b in enumerate(before):
            print(f"netlab: host {i} sent {lab.sent(i) - b} bytes over its link", flush=True)
    if status:
        print(f"netlab: a rank failed with {status}", file=sys.stderr)
    return status


def main() -> int:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--hosts", type=int, default=2)
    ap.add_argument("--ranks-per-host", type=int, default=1)
    ap.add_argument("--rate", default="1gbit", help="link rate as tc spells it; 'none' for no limit")
    ap.add_argument("--burst", default="256kb")
    ap.add_argument("--port", type=int, default=29500)
    ap.add_argument("--timeout", type=float, default=540.0, help="seconds, then every rank is ended")
    ap.add_argument("--logs", help="folder for the other ranks' output (default: a temporary one, kept if a rank fails)")
    ap.add_argument("command", nargs=argparse.REMAINDER)
    args = ap.parse_args()
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        ap.error("no COMMAND")
    for tool in ("ip", "tc"):
        if not shutil.which(tool):
            ap.error(f"{tool} not found: apt-get install iproute2")
    if os.geteuid():
        ap.error("needs root")
    rate = None if args.rate == "none" else args.rate
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        if args.logs:
            Path(args.logs).mkdir(parents=True, exist_ok=True)
        with Lab(args.hosts, rate, args.burst) as lab:
            logs = Path(args.logs or tempfile.mkdtemp(prefix="netlab-"))
            status = 1
            try:
                status = run_ranks(lab, args, command, logs)
            finally:
                if status:
                    print(f"netlab: the other ranks' output is in {logs}", file=sys.stderr)
                elif not args.logs:
                    shutil.rmtree(logs)
    except (LabError, OSError) as error:
        print(f"netlab: {error}", file=sys.stderr)
        return 2
    return status


if __name__ == "__main__":
    sys.exit(main())
