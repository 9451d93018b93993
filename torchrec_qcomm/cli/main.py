"""``torchrec-qcomm``: one subcommand per question that can be asked before a run.

Exit codes: 0, all is well; 1, the input is wrong (the reason on stderr); 2, the command line is wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from torchrec_qcomm.errors import QCommError
from torchrec_qcomm.version import __version__


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: the arguments; by default those of the process.

    Returns:
        The exit code. Help, and a wrong command line, raise ``SystemExit`` as argparse does.
    """
    arguments = _parser().parse_args(argv)
    try:
        text: str = arguments.run(arguments)
    except QCommError as error:
        print(error, file=sys.stderr)
        return 1
    try:
        print(text, flush=True)
    except BrokenPipeError:  # the reader of the output, such as `head`, has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="torchrec-qcomm", description="Quantized embedding exchange for TorchRec.")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    check = commands.add_parser(
        "check",
        help="validate a config and print which codec each table gets",
        description="Validates a config file and prints which codec each table gets, and what a row costs on the wire.",
    )
    check.add_argument("config", metavar="CONFIG", help="a YAML file")
    check.set_defaults(run=_check)
    _add_plan(commands)
    learn = commands.add_parser(
        "learn-levels",
        help="learn the levels of a lookup-table codec from a sample of rows",
        description="Prints the levels of lut4 or lut2 with the least error on a sample of rows, as YAML to paste.",
    )
    learn.add_argument("file", metavar="FILE", help="a float tensor [..., dim], or a dict of them, written by torch.save")
    learn.add_argument("--bits", type=int, choices=(4, 2), default=4, help="of a value (default: 4)")
    learn.set_defaults(run=_learn)
    measure = commands.add_parser(
        "codecs",
        help="measure what each codec costs a row, how much error it makes, and how fast it is here",
        description="Prints bytes, errors and speed of every codec on random rows, or on rows of a file.",
    )
    measure.add_argument("--dim", type=_dim, metavar="D", help="values in a random row (default: 128)")
    measure.add_argument(
        "--dist",
        default="normal",
        metavar="normal|laplace|zipf-rows|FILE.pt",
        help="of random rows, or a file with a float tensor [..., dim], or a dict of them, written by torch.save",
    )
    measure.set_defaults(run=_codecs)
    return parser


def _add_plan(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    plan = commands.add_parser(
        "plan",
        help="forecast what the exchange of a plan costs, who is overloaded, and what to do next",
        description="Plans the tables of a config with TorchRec's planner, or reads a plan, and prints what a step's exchange "
        "costs: bytes saved, hosts crossed, uneven ranks, time, advice. Needs neither devices nor data.",
    )
    plan.add_argument("config", metavar="CONFIG", help="a YAML file, with tables and topology unless --plan is given")
    plan.add_argument("--plan", metavar="FILE", help="of a real run: QCommStats(export=FILE), or TorchRec's statistics as CSV")
    plan.add_argument("--json", metavar="FILE", help="write the report there as JSON")
    plan.add_argument("--html", metavar="FILE", help="write the report there as a page that needs nothing else")
    plan.add_argument(
        "--what-if",
        action="append",
        default=[],
        metavar="CHANGE",
        help="a further column: policy=FILE (its precision block), hosts=N, 2d=N (sharding groups of N neighbouring ranks; "
        "2d=N:strided: as TorchRec's are by default; with sync=N: weights all-reduced every N steps), or several with commas; "
        "may come several times",
    )
    plan.add_argument(
        "--speeds",
        metavar="measured|none|FILE",
        help="of codecs: measured here, left out, or a YAML file with `int8: [ENCODE, DECODE]` in GB/s of FP32 values "
        "(default: measured if this machine has the config's device)",
    )
    plan.add_argument("--tables", type=_number, default=20, metavar="N", help="tables to list (default: 20)")
    plan.set_defaults(run=_plan)


def _number(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"not a number: {text!r}; allowed: 0 or more")
    return int(text)


def _dim(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"not a number of values: {text!r}; allowed: 1 or more")
    return int(text)


def _check(arguments: argparse.Namespace) -> str:
    from torchrec_qcomm.cli.check import check_text  # late: torch takes seconds to import

    return check_text(arguments.config)


def _plan(arguments: argparse.Namespace) -> str:
    from torchrec_qcomm.cli.plan import plan_text

    a = arguments
    return plan_text(a.config, a.plan, a.json, a.html, a.what_if, a.speeds, a.tables)


def _learn(arguments: argparse.Namespace) -> str:
    from torchrec_qcomm.cli.learn import learned_text

    return learned_text(arguments.file, arguments.bits)


def _codecs(arguments: argparse.Namespace) -> str:
    from torchrec_qcomm.cli.codecs import codecs_text

    return codecs_text(arguments.dist, arguments.dim)
