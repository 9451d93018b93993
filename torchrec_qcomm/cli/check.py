"""``torchrec-qcomm check``: a config in words and one table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torchrec_qcomm import codecs
from torchrec_qcomm.config import QCommConfig
from torchrec_qcomm.policy import Direction, Link, Policy, ResolvedPolicy, Rule, Table
from torchrec_qcomm.report.columns import aligned


def describe_config(config: QCommConfig) -> str:
    """What ``check`` prints for a valid config."""
    parts = [f"{config.source}: valid", "\n".join(_facts(config)), "\n".join(_rules(config.policy))]
    if config.tables:
        resolved = config.policy.resolve(table.build() for table in config.tables)
        parts += [resolved_text(resolved), "\n".join(_notes(config, resolved))]
    else:
        parts.append(
            "The file has no `tables` block, so it cannot be checked here that its globs match tables, nor shown what each\n"
            "table gets. Both happen once the model is there (get_planner)."
        )
    return "\n\n".join(part for part in parts if part)


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


def _facts(config: QCommConfig) -> Iterator[str]:
    size = "TorchRec's default" if config.batch_size is None else f"{config.batch_size:,} per rank"
    yield f"batch size: {size}"
    if (block := config.topology) is None:
        yield "topology:   that of the running job"
    else:
        rates = [
            f"{rate:g} GB/s {where}"
            for rate, where in ((block.intra_host_gb_per_s, "inside a host"), (block.inter_host_gb_per_s, "between hosts"))
            if rate is not None
        ]
        shape = f"{block.hosts} x {block.devices_per_host} {block.device or 'devices'}"
        rates += [] if block.memory_gb is None else [f"{block.memory_gb:g} GB of memory"]
        yield "topology:   " + ", ".join([f"{shape} = {block.world_size} ranks", *rates])
    if config.hierarchical_row_wise:
        yield "row-wise:   summed inside each host before it crosses hosts"
    if config.tables:
        rows = sum(table.rows for table in config.tables)
        yield f"tables:     {len(config.tables)}, {rows:,} rows"


def _rules(policy: Policy) -> Iterator[str]:
    yield "rules (the first match wins, forward and backward apart):"
    lines = [[str(index), _matches(rule), *_codecs(rule)] for index, rule in enumerate(policy.rules)]
    lines.append(["-", "default", f"forward {policy.forward}", f"backward {policy.backward}"])
    yield aligned(lines, left=None, indent="  ")


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


def _notes(config: QCommConfig, resolved: ResolvedPolicy) -> Iterator[str]:
    """What the table does not say, and what is valid and yet probably not meant."""
    names = [table.name for table in config.tables]
    found = {resolved.codec(name, direction, link) for name in names for direction in Direction for link in Link}
    for spec, size in sorted((str(spec), codecs.get(spec).range_header_bytes) for spec in found):
        if size:
            yield f"note: {spec} also sends {size} bytes once for each table and pair of ranks: the range of its rows"
    deciding = {resolved.decided_by(name, direction, link) for name in names for direction in Direction for link in Link}
    for index in range(len(config.policy.rules)):
        if index not in deciding:
            yield f"note: rule {index} decides nothing: it matches no table, or earlier rules have decided all that it says"
