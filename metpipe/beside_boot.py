"""What may not be typed beside ledger.boot=FILE, which stands for a whole serve."""

from __future__ import annotations

import re
from collections.abc import Sequence

from metpipe.errors import ConfigError

__all__ = ["refuse_beside_a_boot"]

BOOT = "ledger.boot"
DEMANDS = ("hardware.strict", "hardware.require_calibrated")
"""What may be asked of a plan whatever the serve: neither is a fact of it."""
TABLES = ("model", "hardware", "serve")
"""The load is none of them: the plan beside the boot may be at any."""
KEYS = (
    "memory.accounting",
    "memory.met_version",
    "slots",
    "tree_nodes",
    "capture_rows",
    "prompt_lookup",
)


def refuse_beside_a_boot(said: Sequence[tuple[str, str]]) -> None:
    """Refuse every override of what a boot's file stands for, whatever its value.

    `said`: each override as it is composed, and the argument that it came from: itself where it was
    typed, else the boot, a recipe or a run that is repeated. One at its default, or equal to the
    boot's own, is refused as well: it says that something was chosen.

    Raises:
        ConfigError: naming the override; or two boots.
    """
    boots = [pair for pair in said if _key(pair[0]) == BOOT and pair[0] != f"{BOOT}=null"]
    if not boots:
        return
    boot, whose = boots[-1]
    if len(boots) > 1:
        raise ConfigError(f"{boots[0][0]}: {boot} is a boot as well; give one of them")
    brought = boot if boot == whose else f"{boot} of {whose}"
    for line, arg in said:
        if arg != whose and _is_of_a_serve(_key(line)):
            of = "" if _key(arg) == _key(line) else f" of {arg}"
            raise ConfigError(
                f"{line}{of}: {brought} stands for the model, the device and the whole serve; "
                "leave it out"
            )


def _is_of_a_serve(key: str) -> bool:
    table = key.partition(".")[0]
    return key in KEYS or (table in TABLES and key not in DEMANDS)


def _key(line: str) -> str:
    """`+a.b@c=1` -> `a.b`."""
    return re.split("[=@]", line.lstrip("+~"), maxsplit=1)[0].replace("/", ".")
