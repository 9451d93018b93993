"""A policy as text: its rules in words, and the codec that each table gets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torchrec_qcomm import codecs
from torchrec_qcomm.policy import Direction, Link, Policy, ResolvedPolicy, Rule, Table
from torchrec_qcomm.report.columns import aligned


def rules_text(policy: Policy) -> str:
    """The rules in words, a line each, and the default."""
    lines = [[str(index), _matches(rule), *_codecs(rule)] for index, rule in enumerate(policy.rules)]
    lines.append(["-", "default", f"forward {policy.forward}", f"backward {policy.backward}"])
    return "\n".join(["rules (the first match wins, forward and backward apart):", aligned(lines, left=None, indent="  ")])


def resolved_text(resolved: ResolvedPolicy) -> str:
    """The codec of every site and the bytes of its rows, one line per table where all links get the same.

    ``rule`` is the number of the rule that decided, ``-`` the default. Bytes are those of one FP32 row, whole tables.
    """
    header = ["table", "rows", "dim", "fp32 B/row", "link"]
    for direction in Direction:
        header += [str(direction), "rule", "B/row", "ratio"]
    lines: list[Sequence[str]] = [header]
    for table in resolved.tables:
        head = [table.name, f"{table.rows:,}", str(table.dim), f"{4 * table.dim:,}"]
        for links, cells in _by_link(resolved, table):
            lines.append([*head, links, *cells])
            head = [""] * len(head)
    return aligned(lines, left={"table", "link", *Direction})


def notes(policy: Policy, resolved: ResolvedPolicy) -> Iterator[str]:
    """What `resolved_text` does not show, and which rules decide nothing: those are valid, but probably not meant."""
    names = [table.name for table in resolved.tables]
    found = {resolved.codec(name, direction, link) for name in names for direction in Direction for link in Link}
    for spec, size in sorted((str(spec), codecs.get(spec).range_header_bytes) for spec in found):
        if size:
            yield f"note: {spec} also sends {size} bytes once for each table and pair of ranks: the range of its rows"
    deciding = {resolved.decided_by(name, direction, link) for name in names for direction in Direction for link in Link}
    for index in range(len(policy.rules)):
        if index not in deciding:
            yield f"note: rule {index} decides nothing: it matches no table, or earlier rules have decided all that it says"


def _by_link(resolved: ResolvedPolicy, table: Table) -> Iterator[tuple[str, list[str]]]:
    """The cells of each group of links that get the same."""
    groups: dict[tuple[str, ...], list[Link]] = {}
    for link in Link:
        cells: list[str] = []
        for direction in Direction:
            codec = codecs.get(resolved.codec(table.name, direction, link))
            rule = resolved.decided_by(table.name, direction, link)
            size = codec.row_bytes(table.dim)
            cells += [str(codec.spec), "-" if rule is None else str(rule), f"{size:,}", f"{4 * table.dim / size:.2f}x"]
        groups.setdefault(tuple(cells), []).append(link)
    for key, links in groups.items():
        yield "all" if len(links) == len(Link) else ", ".join(links), list(key)


def _matches(rule: Rule) -> str:
    parts = [", ".join(rule.globs)] if rule.globs else []
    if rule.where is not None:
        w = rule.where
        for what, low, high in (("rows", w.min_rows, w.max_rows), ("dim", w.min_dim, w.max_dim)):
            parts += [f"{what} >= {low:,}"] if low is not None else []
            parts += [f"{what} <= {high:,}"] if high is not None else []
    parts += [f"link {rule.link}"] if rule.link is not None else []
    return "; ".join(parts) or "everything"


def _codecs(rule: Rule) -> list[str]:
    return ["" if (spec := rule.codec(direction)) is None else f"{direction} {spec}" for direction in Direction]
