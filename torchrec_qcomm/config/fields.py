"""The types of the fields of a config: closed sets, sizes, globs and codecs, each with an error that lists what is allowed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import torch
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator
from pydantic_core import PydanticCustomError

from torchrec_qcomm import codecs
from torchrec_qcomm.codecs.spec import CodecSpec
from torchrec_qcomm.planner.kinds import KINDS
from torchrec_qcomm.policy import Link

SHARDING_TYPES = tuple(kind.name for kind in KINDS)
"""The values of TorchRec's ``ShardingType``. The sharder decides which of them it can exchange."""

COMPUTE_KERNELS = ("dense", "fused", "fused_uvm", "fused_uvm_caching", "key_value")
"""Training kernels among the values of TorchRec's ``EmbeddingComputeKernel``."""

DEVICES = ("cpu", "cuda", "mtia")
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
COLLECTIONS = ("ebc", "ec")
"""``EmbeddingBagCollection`` (pooled) and ``EmbeddingCollection`` (sequence)."""


class Strict(BaseModel):
    """A block of the YAML: unknown keys are refused, and nothing is converted: neither ``true`` to 1 nor ``"8"`` to 8."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def allowed_error(wrong: str, allowed: object) -> PydanticCustomError:
    """A validation error that carries what is allowed, a list or a sentence. `wording` makes the message of it."""
    return PydanticCustomError("qcomm", "{wrong}", {"wrong": wrong, "allowed": allowed})


def _choice(what: str, names: tuple[str, ...]) -> PlainValidator:
    def check(value: Any) -> str:
        if value not in names:
            raise allowed_error(f"unknown {what}", names)
        return str(value)

    return PlainValidator(check)


def _codec(value: Any) -> CodecSpec:
    if not isinstance(value, (str, Mapping)):
        raise allowed_error("not a codec", [*codecs.names(), "{codec: name, parameter: value}"])
    return codecs.spec(value)


def _globs(value: Any) -> tuple[str, ...]:
    globs = [value] if isinstance(value, str) else value
    if not isinstance(globs, (list, tuple)) or not globs or not all(isinstance(glob, str) and glob for glob in globs):
        raise allowed_error("not a table name", "a glob over table names, or a list of them")
    return tuple(globs)


def as_tuple(value: Any) -> Any:
    """YAML has lists, a frozen model has tuples."""
    return tuple(value) if isinstance(value, list) else value


def _not_empty(value: tuple[Any, ...]) -> tuple[Any, ...]:
    if not value:
        raise allowed_error("an empty list", "one value or more; leave the key out to say nothing")
    return value


Codec = Annotated[CodecSpec, PlainValidator(_codec)]
Globs = Annotated[tuple[str, ...], PlainValidator(_globs)]
LinkName = Annotated[str, _choice("link", tuple(Link))]
ShardingTypeName = Annotated[str, _choice("sharding type", SHARDING_TYPES)]
ComputeKernelName = Annotated[str, _choice("compute kernel", COMPUTE_KERNELS)]
Device = Annotated[str, _choice("device", DEVICES)]
Dtype = Annotated[str, _choice("dtype", tuple(DTYPES))]
Collection = Annotated[str, _choice("collection", COLLECTIONS)]

Name = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=1)]
Bound = Annotated[int, Field(ge=0)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
LIST = (BeforeValidator(as_tuple), AfterValidator(_not_empty))
"""Turns a YAML list into a tuple that has at least one item."""
Names = Annotated[tuple[Name, ...], *LIST]
Rates = Annotated[tuple[Rate, ...], *LIST]
