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
    except BrokenPipeError:  # the reader, `head` perhaps, has seen enough
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
    return parser


def _check(arguments: argparse.Namespace) -> str:
    from torchrec_qcomm.cli.check import describe_config  # late: torch takes seconds to import
    from torchrec_qcomm.config import load_config

    return describe_config(load_config(arguments.config))
