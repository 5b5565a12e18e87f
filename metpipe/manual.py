"""`--help`: what metpipe does, how to ask for it, and what the exit status says."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from textwrap import wrap
from types import UnionType
from typing import Literal, Union, get_args, get_origin

from omegaconf import DictConfig, ListConfig, OmegaConf
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from metpipe import __version__
from metpipe.config import Run, Serve
from metpipe.resources import conf_dir

__all__ = ["answer", "keys", "text"]

INTRODUCTION = """\
metpipe compares LLM forwards byte for byte and plans every byte of a serve.

It decodes the same tokens under a reference forward and under an optimised one, compares each
step's logits and states bit by bit, runs controls that show whether the comparison could have
seen a difference, and plans the memory of a serve, term by term. It ends in a verdict.

usage: metpipe [GROUP=CHOICE ...] [KEY=VALUE ...]        (python -m metpipe is the same program)

Try these
  metpipe                                           a small model, on this machine, in seconds
  metpipe model=smollm2 variant=all hardware=b200   trained weights; memory planned for a B200
  metpipe model.checkpoint=/path/to/folder          your own: a Hugging Face folder or a .gguf
  metpipe pipeline=memory model=qwen3_8b hardware=b200 workload.isl=3000 workload.concurrency=8
  metpipe -m pipeline=memory slots=1,4,16 hardware=h200_sxm,b200   a sweep of six: a table, a plot
  metpipe kernels=my_kernels                        your own rules and kernels, judged
  metpipe recipe=recipes/smollm2_quick.toml steps=8 a ready run; later arguments win
  metpipe rerun=runs/2026-12-01/12-00-00-000001     the same run again; says if its id is the same
"""

ENDING = """\
A choice of hardware is a device's id; - and _ are both accepted. A list key takes one number too:
prompt_lengths=[15,16,17] or prompt_lengths=64. `+variants.NAME.forward=circuit
+variants.NAME.rules=[ID,ID]` adds a variant of your own.

Also: recipe=FILE (.toml or .yaml) and rerun=DIR expand to arguments; resume=DIR takes the stage
results of a run that was killed; sweep=DIR shows a sweep's report again. With -m,
hydra/launcher=joblib, submitit_local, submitit_slurm or ray runs the jobs in other processes.
--detail and --per-node are short for report.detail=true and report.per_node=true.
--cfg job --resolve shows the composed config, --info defaults-tree where it comes from,
--hydra-help Hydra's own options.
Tab completion: eval "$(metpipe -sc install=bash)"

Each run leaves report.json, run.json (config, id, versions) and its stage results in
runs/DATE/TIME; a sweep leaves sweep.json and a folder per job in sweeps/DATE/TIME.

Exit status
  0    PASS          every judged comparison was equal, and every control behaved
  1    FAIL          a judged difference, a byte moved that its step does not own, a control leaked
  2    wrong input   the configuration or a file is wrong; one line says what and where
  3    died          a run died
  4    INCONCLUSIVE  nothing was proven: no repeat, a blind control, a vacuous comparison
  130  interrupted   Ctrl-C or SIGTERM; finished stages are kept
A sweep exits with the first of 130, 3, 2, 1, 4, 0 that a job has.
"""

WIDTH, INDENT = 100, " " * 13
"""Columns of the lists of choices, and where they start."""
GROUPS = {
    "model": "the checkpoint to run or to plan for",
    "hardware": "the device that memory is planned for",
    "serve": "what an engine would be started with (keys below)",
    "variant": "the forwards to compare with the reference; variant=[a,b] works too",
    "pipeline": "which parts run",
    "diff": "the mode of the diff; auto: as the list that is given says",
}


def answer(argv: Sequence[str]) -> str | None:
    """What a command line that asks for help or for the version is told; else None."""
    if "--help" in argv or "-h" in argv:
        return text()
    if "--version" in argv:
        return f"metpipe {__version__}"
    return None


def text() -> str:
    """The whole help text."""
    conf = conf_dir()
    composed = (*GROUPS, "variants")
    own = [key for key in keys(Run) if key[0].partition(".")[0] not in composed]
    return "\n".join(
        [
            INTRODUCTION,
            "Groups (GROUP=CHOICE)",
            *_groups(conf),
            "\nKeys, with their defaults (KEY=VALUE)",
            *_rows(own, OmegaConf.load(conf / "config.yaml")),
            "\nServe flags (serve.KEY=VALUE); the diff refuses those that its engine cannot honour",
            *_rows(keys(Serve), OmegaConf.load(conf / "serve" / "default.yaml")),
            "",
            ENDING.rstrip(),
        ]
    )


def _groups(conf: Path) -> Iterator[str]:
    for name, said in GROUPS.items():
        yield f"  {name:<10} {said}"
        choices = sorted(file.stem for file in (conf / name).glob("*.yaml"))
        yield from wrap(", ".join(choices), WIDTH, initial_indent=INDENT, subsequent_indent=INDENT)


def keys(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Each key below a table of the config, dotted, with its meaning."""
    for name, info in model.model_fields.items():
        inner = _table(info)
        if inner is not None:
            yield from keys(inner, f"{prefix}{name}.")
        else:
            allowed = "|".join(_allowed(info.annotation))
            yield prefix + name, f"{info.description}{allowed and f' ({allowed})'}"


def _allowed(kind: object) -> Iterator[str]:
    """The words that a field takes, if it takes only some."""
    if get_origin(kind) is Literal:
        yield from map(str, get_args(kind))
    elif get_origin(kind) in (Union, UnionType):
        for part in get_args(kind):
            yield from _allowed(part)


def _table(info: FieldInfo) -> type[BaseModel] | None:
    kind = info.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _rows(meanings: Iterable[tuple[str, str]], defaults: DictConfig | ListConfig) -> Iterator[str]:
    """A line a key."""
    for key, meaning in meanings:
        yield f"  {f'{key}={_default(defaults, key)}':<30} {meaning}"


def _default(defaults: DictConfig | ListConfig, key: str) -> str:
    value = OmegaConf.select(defaults, key)
    return value if isinstance(value, str) else json.dumps(value)
