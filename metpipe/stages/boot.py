"""boot: what a start of met's engine allocated, against the accounting of that engine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from omegaconf import OmegaConf

from metpipe.config import Run
from metpipe.errors import ConfigError
from metpipe.memory.evaluate import evaluate
from metpipe.memory.met.boot import Boot, at_boot, check_boot
from metpipe.memory.met.boot_toml import parse_boot
from metpipe.pipeline import StageContext
from metpipe.report.boot_section import boot_section
from metpipe.resources import conf_dir
from metpipe.stages.live import Live, live_of
from metpipe.stages.met_plan import met_point

__all__ = ["boot_of", "run_boot"]


def run_boot(context: StageContext) -> Mapping[str, object]:
    """Evaluate the serve at the boot's own pools, and compare every term that it itemizes."""
    live = live_of(context)
    boot = boot_of(live)
    check = check_boot(evaluate(at_boot(met_point(live), boot)), boot)
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


def _refuse_another_serve(run: Run, boot: Boot) -> None:
    """A boot proves nothing about other flags than its own; what it leaves out had its default."""
    stated = {
        "model.checkpoint_id": (run.model.checkpoint_id, boot.checkpoint),
        "hardware.id": (run.hardware.id, boot.hardware),
        "memory.met_version": (run.memory.met_version, boot.version),
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
    for key, (found, default) in _unstated(run, boot).items():
        if found != default:
            raise ConfigError(
                f"{key}: is {found!r}, and {boot.source} does not state it, which means "
                f"{default!r}; leave it out, since ledger.boot=FILE stands for the whole serve"
            )


def _unstated(run: Run, boot: Boot) -> Mapping[str, tuple[object, object]]:
    """Key -> (its value, its default) of what sizes a serve and stands in no line of the file."""
    path = conf_dir() / "serve" / "default.yaml"
    flags = {str(flag): value for flag, value in OmegaConf.load(path).items()}
    return {
        **{
            f"serve.{flag}": (getattr(run.serve, flag), default)
            for flag, default in flags.items()
            if flag not in boot.serve
        },
        "slots": (run.slots, None),
        "tree_nodes": (run.tree_nodes, None),
        "capture_rows": (run.capture_rows, 0),
        "prompt_lookup": (run.prompt_lookup, False),
    }
