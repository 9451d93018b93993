"""``torchrec-qcomm check``: a config in words and one table."""

from __future__ import annotations

from torchrec_qcomm.config import load_config
from torchrec_qcomm.config.in_words import facts
from torchrec_qcomm.report.text.policy import notes, resolved_text, rules_text


def check_text(path: str) -> str:
    """What ``check`` prints for a valid config.

    Raises:
        ConfigError: it is not valid.
    """
    config = load_config(path)
    parts = [f"{config.source}: valid", "\n".join(facts(config)), rules_text(config.policy)]
    if config.tables:
        resolved = config.policy.resolve(table.build() for table in config.tables)
        parts += [resolved_text(resolved), "\n".join(notes(config.policy, resolved))]
    else:
        parts.append(
            "The file has no `tables` block, so it cannot be checked here that its globs match tables, nor shown what each\n"
            "table gets. Both happen once the model is there (get_planner)."
        )
    return "\n\n".join(part for part in parts if part)
