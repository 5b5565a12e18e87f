"""boot: what a start of met's engine allocated, against the accounting of that engine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from metpipe.config import Run
from metpipe.errors import ConfigError
from metpipe.memory.devices import Device
from metpipe.memory.evaluate import evaluate
from metpipe.memory.impossible import refuse_load
from metpipe.memory.met.boot import Boot, at_boot, check_boot
from metpipe.memory.met.boot_toml import GB, ROUNDED, parse_boot
from metpipe.memory.point import Point
from metpipe.pipeline import StageContext
from metpipe.report.boot_section import boot_section
from metpipe.stages.live import Live, live_of
from metpipe.stages.met_plan import met_point

__all__ = ["boot_of", "check_load", "run_boot"]


def run_boot(context: StageContext) -> Mapping[str, object]:
    """Evaluate the serve at the boot's own pools, and compare every term that it itemizes."""
    live = live_of(context)
    boot = boot_of(live)
    point = met_point(live)
    _refuse_beyond_device(boot, point.device)
    check = check_boot(evaluate(at_boot(point, boot)), boot)
    return {"boot": boot_section(boot, check).model_dump(mode="json")}


def boot_of(live: Live) -> Boot:
    """The run's boot.

    Raises:
        ConfigError: the file breaks its schema, or the run is of another serve than the boot.
    """
    path = Path(str(live.run.ledger.boot))
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError(f"ledger.boot={path}: cannot be read ({problem})") from None
    boot = parse_boot(text, str(path))
    _refuse_another_serve(live.run, boot)
    return boot


def check_load(boot: str, point: Point) -> None:
    """A load that the boot's serve does not take; there is no flag to raise beside its file.

    Raises:
        ConfigError: the load is longer, or has more sequences.
    """
    lower = f" of ledger.boot={boot}; lower it"
    refuse_load(point, slots=lower, length=lower)


def _refuse_beyond_device(boot: Boot, device: Device) -> None:
    """A ledger lists what lay in the device's memory; its total is rounded."""
    if device.memory_bytes is not None and boot.total > device.memory_bytes + ROUNDED:
        raise ConfigError(
            f"{boot.source}: boot.ledger_total_gb={boot.total / GB:g}: is more than the "
            f"{device.memory_bytes / GB:.1f} GB of {device.id}; correct its unit, or the hardware"
        )


def _refuse_another_serve(run: Run, boot: Boot) -> None:
    """A boot proves nothing about other flags than its own.

    What is typed beside it was refused with the command line; a record that is run again was not.
    """
    stated = {
        "model.checkpoint_id": (run.model.checkpoint_id, boot.checkpoint),
        "hardware.id": (run.hardware.id, boot.hardware),
        "memory.met_version": (run.memory.met_version, boot.version),
        "slots": (run.slots, "auto" if boot.slots_follow else None),
        **{
            f"serve.{flag}": (getattr(run.serve, flag, None), value)
            for flag, value in boot.serve.items()
        },
    }
    for key, (found, booted) in stated.items():
        if found != booted:
            raise ConfigError(
                f"{key}: is {found!r}, and {boot.source} was booted with {booted!r}; leave it out, "
                "since ledger.boot=FILE sets all of them"
            )
