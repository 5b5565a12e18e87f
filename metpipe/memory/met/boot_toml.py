"""Reads a boot's file, schema 1: what one start of met's engine allocated (section 23.2)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from metpipe.errors import ConfigError
from metpipe.memory.bounds import MEMORY, MOST
from metpipe.memory.met.boot import RESERVES, TERMS, Boot, Measured
from metpipe.memory.met.side import BootPools
from metpipe.memory.met.versions import VERSIONS
from metpipe.memory.toml_model import Schema1, Strict, parse_model

__all__ = ["GB", "ROUNDED", "parse_boot"]

GB = 10**9
"""The ledger's totals are decimal."""

MIB = 2**20
ROUNDED = GB // 20
"""Half of the last place of a total with one decimal."""
TOKENS = 2**40
"""Of a cache: with a kilobyte each it would fill the largest memory."""


def pair(value: list[float]) -> list[float]:
    """MiB that fit in a memory, and a share of them."""
    if len(value) != 2:
        raise ValueError("must be two numbers, [MiB, tolerance in percent]")
    mib, percent = value
    if not 0 <= mib <= MEMORY // MIB:
        raise ValueError(f"MiB must be 0 to {MEMORY // MIB}, more than any memory has")
    if not 0 <= percent <= 100:
        raise ValueError("the tolerance must be 0 to 100 percent")
    return value


Reserved = Annotated[int, Field(ge=0, le=MEMORY // MIB)]
Pair = Annotated[list[float], AfterValidator(pair)]
SLOTS = "max_batch_size"
AUTO = "auto"
"""The value of SLOTS that asks for as many as there are sequences."""


class _Boot(Strict):
    kv_blocks: int = Field(gt=0, le=MOST)
    draft_kv_blocks: int = Field(ge=0, le=MOST)
    capture_rows: int = Field(ge=0, le=MOST)
    outside_bytes: int = Field(ge=0, le=MEMORY)
    chunk_slack_gb: float = Field(ge=0, le=MEMORY // GB)
    ledger_total_gb: float = Field(gt=0, le=MEMORY // GB)
    slots: int | None = Field(default=None, gt=0, le=MOST)


class _File(Strict):
    schema_version: Schema1 = Field(alias="schema")
    accounting: Literal["met"]
    checkpoint: str = Field(min_length=1)
    hardware: str = Field(min_length=1)
    copies_version: int
    engine_version: int | None = None
    serve: dict[str, bool | int | float | str]
    boot: _Boot
    measured_mib: dict[str, Pair] = Field(min_length=1)
    reserve_mib: dict[str, Reserved] = Field(default_factory=dict)


def parse_boot(text: str, source: str) -> Boot:
    """The boot in a TOML text; `source` names it in messages.

    `engine_version` (memory/met/versions.py) is needed only where it is not the first one with
    these copy rules.

    Raises:
        ConfigError: broken TOML, an unknown or missing key, a value out of its range, no term, a
            term or reserve line that the accounting does not know, slots that are said twice, a
            total below the sum of its terms, a cache or a flag beyond any machine.
    """
    file = parse_model(_File, text, source)
    _known(file.measured_mib, tuple(TERMS), f"{source}: measured_mib")
    _known(file.reserve_mib, RESERVES, f"{source}: reserve_mib")
    _sized_flags(file, source)
    _whole_total(file, source)
    return Boot(
        checkpoint=file.checkpoint,
        hardware=file.hardware,
        version=_version(file, source),
        serve={flag: value for flag, value in file.serve.items() if (flag, value) != (SLOTS, AUTO)},
        pools=BootPools(file.boot.kv_blocks, file.boot.draft_kv_blocks),
        capture_rows=file.boot.capture_rows,
        outside_bytes=file.boot.outside_bytes,
        chunk_slack=round(file.boot.chunk_slack_gb * GB),
        total=round(file.boot.ledger_total_gb * GB),
        measured={term: Measured(*pair) for term, pair in file.measured_mib.items()},
        reserve=file.reserve_mib,
        source=source,
        slots_follow=_slots_follow(file, source),
        slots=file.boot.slots,
    )


def _slots_follow(file: _File, source: str) -> bool:
    """Whether the boot found out by itself how many slots it has."""
    follows = file.serve.get(SLOTS) == AUTO
    if file.boot.slots is not None and not follows:
        raise ConfigError(
            f'{source}: boot.slots is what serve.{SLOTS} = "{AUTO}" came to, and the file says '
            f"otherwise (serve.{SLOTS}); leave one of them out"
        )
    return follows


def _sized_flags(file: _File, source: str) -> None:
    """Numbers of flags that no serve has, which would else be blamed on what they size."""
    for flag, value in file.serve.items():
        if isinstance(value, int | float) and not (math.isfinite(value) and abs(value) <= MOST):
            raise ConfigError(f"{source}: serve.{flag}: must be at most {MOST}, got {value}")
    block = file.serve.get("block_size")
    for key in ("kv_blocks", "draft_kv_blocks"):
        blocks = getattr(file.boot, key)
        if isinstance(block, int) and blocks * block > TOKENS:
            raise ConfigError(
                f"{source}: boot.{key}: {blocks} blocks of serve.block_size={block} tokens are "
                "more than any memory holds; correct either"
            )


def _whole_total(file: _File, source: str) -> None:
    """A ledger's terms are parts of its total; both are rounded."""
    terms, total = sum(mib for mib, _ in file.measured_mib.values()), file.boot.ledger_total_gb
    if total * GB + ROUNDED < terms * MIB - ROUNDED:
        raise ConfigError(
            f"{source}: boot.ledger_total_gb={total}: is below its own terms; measured_mib adds up "
            f"to {terms:.1f} MiB ({terms * MIB / GB:.1f} GB); correct the unit of one of them"
        )


def _version(file: _File, source: str) -> int:
    number = file.copies_version if file.engine_version is None else file.engine_version
    if file.copies_version not in (1, 2) or number not in VERSIONS:
        raise ConfigError(
            f"{source}: copies_version is 1 or 2, engine_version one of "
            f"{', '.join(map(str, VERSIONS))}; it gives {file.copies_version} and {number}"
        )
    return number


def _known(table: Mapping[str, object], names: tuple[str, ...], where: str) -> None:
    if unknown := sorted(set(table) - set(names)):
        raise ConfigError(f"{where}.{unknown[0]}: not known here; known are {', '.join(names)}")
