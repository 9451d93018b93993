"""The road of a row, as CONTRIBUTING.md lists it: the files exist, and are short enough to be read."""

from __future__ import annotations

import re
from pathlib import Path

import torchrec_qcomm

ROOT = Path(__file__).parent.parent
PACKAGE = Path(torchrec_qcomm.__file__).parent
MOST_LINES, MOST_LINES_BEFORE = 700, 220
ROOMS = ["sharding", "sharding", "collectives", "collectives", "wire", "wire", "codecs", "codecs"]
"""What a row goes through on its way to the wire."""


def road() -> list[Path]:
    """The files of the numbered list, in its order."""
    section = (ROOT / "CONTRIBUTING.md").read_text().split("## The road of a row")[1].split("\n## ")[0]
    return [Path(name) for name in re.findall(r"^\d+\. `(.+?)`", section, re.MULTILINE)]


def lines(*paths: Path) -> int:
    return sum(len(path.read_text().splitlines()) for path in paths)


def test_the_road_leads_through_every_room_and_can_be_read_at_one_sitting() -> None:
    assert [path.parts[0] for path in road()] == ROOMS
    assert lines(*(PACKAGE / path for path in road())) <= MOST_LINES


def test_each_room_of_the_road_uses_what_the_next_one_has() -> None:
    """So that no room on the way is left out of the list."""
    for path, room in zip(road(), ROOMS[1:], strict=False):
        assert path.parts[0] == room or re.search(
            rf"^from torchrec_qcomm\.{room}\b", (PACKAGE / path).read_text(), re.MULTILINE
        )


def test_what_is_read_before_it_is_short() -> None:
    assert lines(ROOT / "README.md", ROOT / "docs" / "concepts.md") <= MOST_LINES_BEFORE
