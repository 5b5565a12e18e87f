"""Plans met's engine: reads its rules, its defaults and a checkpoint's headers, and prepares."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from metpipe.circuit import Circuit, read_library
from metpipe.engine.checkpoints import Checkpoint
from metpipe.engine.checkpoints.folder import HfFolder
from metpipe.engine.opening import circuit_of
from metpipe.errors import ConfigError
from metpipe.memory.met.behaviour import Behaviour, stated_outside
from metpipe.memory.met.behaviour_toml import parse_behaviour
from metpipe.memory.met.copies_toml import parse_copies, refuse_unknown_archs
from metpipe.memory.met.decision import decided
from metpipe.memory.met.flags import met_flags, met_serve
from metpipe.memory.met.outside import outside_bytes
from metpipe.memory.met.prepare import met_model, prepare
from metpipe.memory.met.side import MetModel, Outside, WhatIfs
from metpipe.memory.met.unread import refuse_unread
from metpipe.memory.met.versions import NEWEST, version
from metpipe.memory.planned import Planned
from metpipe.memory.point import Point, Workload
from metpipe.resources import kernels_dir
from metpipe.stages.devices import planned_device
from metpipe.stages.live import Live
from metpipe.stages.planned_model import planned_model

__all__ = ["met_point", "stored_sizes"]


def met_point(live: Live) -> Point:
    """The run's question to the accounting of met, its expert tables decided."""
    run, load = live.run, live.run.workload
    checkpoint, circuit = live.checkpoint(), live.circuit()
    number = run.memory.met_version or NEWEST
    model = _model(checkpoint, circuit, number)
    flags = run.serve.model_dump()
    asked = met_flags(flags)
    what_ifs = WhatIfs(run.tree_nodes, run.capture_rows, run.prompt_lookup)
    refuse_unread(model, asked, what_ifs)
    side = prepare(model, asked, _outside(live, circuit), what_ifs)
    point = Point(
        planned=_planned(checkpoint),
        device=planned_device(run),
        serve=met_serve(flags, model.kv_dtype),
        workload=Workload(load.isl, load.osl, load.concurrency),
        accounting="met",
        slots=run.num_slots,
        slots_follow=run.slots_follow,
        met=side,
    )
    return decided(point)


def stored_sizes(checkpoint: Checkpoint) -> dict[str, int] | None:
    """Bytes of each tensor of a folder's files, as their headers say; None without such files."""
    if not (isinstance(checkpoint, HfFolder) and checkpoint.stored):
        return None
    return {name: tensor.stop - tensor.start for name, tensor in checkpoint.stored.items()}


MODELS: dict[str, MetModel] = {}
"""The last model prepared, for a sweep's next job."""


def _model(checkpoint: Checkpoint, circuit: Circuit, number: int) -> MetModel:
    key = f"{number} {json.dumps(checkpoint.config, sort_keys=True, default=str)}"
    if key not in MODELS:
        MODELS.clear()
        engine = version(number)
        path = kernels_dir() / "circuits" / engine.copies
        rules = parse_copies(_text(path), str(path))
        refuse_unknown_archs(rules, read_library(kernels_dir()).descriptions, str(path))
        MODELS[key] = met_model(circuit, rules, _behaviours(), engine)
    return MODELS[key]


def _planned(checkpoint: Checkpoint) -> Planned:
    """Plans of the same model in bf16: rules match edges, and those have no declared formats."""
    config = {k: v for k, v in checkpoint.config.items() if k != "quantization_config"}
    return planned_model(config, circuit_of(config, checkpoint.source))


def _outside(live: Live, circuit: Circuit) -> Outside:
    """From the checkpoint's own headers, else as measured on the published files."""
    stored = stored_sizes(live.checkpoint())
    if stored is not None:
        return Outside(outside_bytes(circuit, stored), "from the headers of the checkpoint's files")
    checkpoint_id = live.run.model.checkpoint_id
    stated = stated_outside(_behaviours(), checkpoint_id)
    if stated is None:
        return Outside(None, "the checkpoint's files are not here, and nobody measured them")
    return Outside(stated, f"measured on the files of {checkpoint_id}")


def _behaviours() -> tuple[Behaviour, ...]:
    folder = kernels_dir() / "behaviour"
    return tuple(
        replace(parse_behaviour(_text(path), str(path)), source=f"behaviour/{path.name}")
        for path in sorted(folder.glob("*.toml"))
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise ConfigError(f"{path}: cannot be read ({problem})") from None
