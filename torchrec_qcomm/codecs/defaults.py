"""What most codecs answer alike."""

from __future__ import annotations

from typing import ClassVar

from torchrec_qcomm.codecs.spec import CodecSpec, spec_of


class CodecDefaults:
    """Mixed into a codec that is a frozen dataclass whose fields are its parameters."""

    __slots__ = ()
    name: ClassVar[str]

    @property
    def spec(self) -> CodecSpec:
        return spec_of(self, self.name)

    @property
    def stochastic(self) -> bool:
        """Whether `encode` needs noise."""
        return False

    @property
    def range_header_bytes(self) -> int:
        """None: a row has all that decoding needs."""
        return 0
