"""The diff's part of the report."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from metpipe.diff.records import ControlVerdict
from metpipe.report.record import Record

__all__ = [
    "CaseRow",
    "Check",
    "Comparison",
    "Control",
    "Coverage",
    "DiffSection",
    "Difference",
    "Digests",
    "InvarianceCell",
    "Launched",
    "Localized",
    "Moved",
    "Overhead",
    "Prompt",
    "Severity",
    "Speculation",
    "StateDifference",
    "Timing",
    "Vacuous",
    "VariantRow",
]


class Severity(Record):
    """How far apart the differing rows are; never part of the verdict."""

    elements: int
    unequal_elements: int
    nan_elements: int
    max_abs: float | None
    max_ulp: int
    argmax_flips: int


class Difference(Record):
    """One step that differs: null for the prefill; the bytes null while only digests differ."""

    step: int | None
    unequal_bytes: int | None
    first_byte: int | None
    rows: tuple[int, ...]
    note: str | None = None
    severity: Severity | None = None


class StateDifference(Record):
    """A step after which state that sequences own differs."""

    step: int
    sequences: tuple[int, ...]


class Comparison(Record):
    """A run against the reference, byte for byte."""

    variant: str
    prefill_equal: bool
    steps: int = Field(description="compared steps")
    mismatched_steps: int
    first_mismatch: int | None
    max_mismatched_bytes: int | None
    prefill_first_diff: int | None
    expect: Literal["equal", "report"] = "equal"
    top1_agreement: float | None = None
    severity: Severity | None = None
    differences: tuple[Difference, ...] = ()
    num_states: int = 0
    state_diff: tuple[str, ...] = ()
    state_steps: tuple[StateDifference, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether nothing that was compared differs."""
        states = self.state_diff or self.state_steps
        return self.prefill_equal and not self.mismatched_steps and not states


class Timing(Record):
    """Medians over a run's steps but the first; null where no such step was timed."""

    variant: str
    enqueue_ms_median: float | None
    step_ms_median: float | None
    cached: bool = Field(default=False, description="from an earlier run: not to be compared")


class Digests(Record):
    """What the reference gave, so that a later run can be compared offline."""

    prefill: tuple[str, ...] = Field(description="of each row before the first step")
    steps: tuple[tuple[str, ...], ...] = Field(description="of each row of each step")
    states: dict[str, str] = Field(default={}, description="label -> hex, at the run's end")


class Prompt(Record):
    """One prompt: its length in tokens, and each variant's comparison and times."""

    tokens: int
    comparisons: tuple[Comparison, ...]
    timings: tuple[Timing, ...]
    digests: Digests | None = None


class CaseRow(Record):
    """One case of a mode other than plain decoding: what ran, and each variant's comparison."""

    mode: Literal["batch", "verify", "verify_batch", "prefill", "swap"]
    name: str
    tokens: tuple[int, ...] = Field(description="prompt length of each sequence")
    steps: int
    rows: int = Field(description="rows of logits compared in a step")
    path: Literal["Single"] | dict[str, int] | None = Field(
        default=None, description="of a prefill: Single, or {Chunked: tokens of a pass}"
    )
    restored: int = Field(default=0, description="prompt tokens restored, not computed")
    ks: tuple[int, ...] = Field(default=(), description="verify rows of each sequence")
    accepted: tuple[tuple[int, ...], ...] = Field(
        default=(), description="drafts accepted, by step and sequence"
    )
    slots: tuple[int, ...] = Field(description="the state slot of each sequence")
    fragment_slots: bool = False
    drafter: bool = Field(default=False, description="the draft head ran and was compared")
    comparisons: tuple[Comparison, ...]
    timings: tuple[Timing, ...]
    changed_row: int | None = Field(default=None, description="of the last variant's first control")
    detection_control: Comparison | None = Field(default=None, description="that control's run")
    digests: Digests


class InvarianceCell(Record):
    """The same logical row on two ways; equal, or where it differs on the second."""

    variant: str
    axis: str
    name: str
    points: int = Field(description="rows compared")
    promised: bool = Field(description="the kernel set says that it holds; others are not judged")
    step: int | None = Field(description="-1: before the first step")
    row: int | None
    byte: int | None
    differing: int = Field(description="rows that differ")
    severity: Severity | None = None
    state_diff: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether nothing that was compared differs."""
        return not self.differing and not self.state_diff


class Overhead(Record):
    """What the diff cost beside its forwards."""

    forward_seconds: float = Field(
        description="inside the steps of every run, and making their plans and programs"
    )
    total_seconds: float = Field(description="of every stage that ran a forward")

    @property
    def ratio(self) -> float | None:
        """Total over forwards; null where no forward ran."""
        return self.total_seconds / self.forward_seconds if self.forward_seconds else None


class Speculation(Record):
    """Decoding with the draft head's drafts: what was accepted, and what a token cost."""

    variant: str
    k: int = Field(description="rows of a verify: the committed token and its drafts")
    drafted: int
    accepted: int
    rate: float
    by_place: tuple[float, ...] = Field(
        description="share of steps that accepted at least 1, 2, ... drafts"
    )
    tokens_per_step: float
    ms_per_token: float | None = Field(description="verify and drafts, without the first step")
    plain_ms_per_token: float | None
    speedup: float | None


class Launched(Record):
    """The slots that a variant's steps of one width saw, each layout once."""

    variant: str
    mode: str
    steps: int = Field(description="such steps")
    slots: tuple[tuple[int, ...], ...]


class VariantRow(Record):
    """A forward, as it really ran; a forward without plans has no digest and no launches."""

    name: str
    plan_digest: str | None
    launches_per_step: int | None
    forward: Literal["legacy", "circuit"]
    graphs: bool = False
    expect: Literal["equal", "report"] = "equal"
    rules: tuple[str, ...] = Field(default=(), description="ids of the rules that the plans use")


class Control(Record):
    """A control, judged."""

    name: str
    variant: str
    changed_step: int | None
    changed_row: int | None
    first_mismatch: int | None
    verdict: ControlVerdict
    sentence: str
    mode: str = "single"


class Check(Record):
    """One check of the comparer's own test."""

    name: str
    passed: bool
    sentence: str


class Coverage(Record):
    """How much of a plan that ran is rules that claim equal bits."""

    variant: str
    mode: str
    rows: int
    groups: int
    bit_identical: int = Field(description="groups under such a rule; 0: none applies there")


class Vacuous(Record):
    """Two forwards that were the same program, so their equality says nothing."""

    reference: str
    variant: str
    allowed: bool
    sentence: str


class Moved(Record):
    """State that no step owned, and that moved."""

    case: str
    variant: str
    labels: tuple[str, ...]


class Localized(Record):
    """Where a difference starts."""

    variant: str
    mode: str
    case: str = Field(description="prompt 0, width 8, K=3, ...")
    prompt: int | None = Field(description="of plain decoding, which prompt")
    step: int | None
    layer: int | None
    node: str
    op: str
    rule: str | None
    sentence: str


class DiffSection(Record):
    """Are the bits the same?"""

    mode: str = Field(description="single, batch, verify, ..., or all")
    graphs: Literal["eager", "graphed"]
    steps: int
    variants: tuple[VariantRow, ...]
    prompts: tuple[Prompt, ...]
    detection_control: Comparison | None = Field(description="the last judged variant's control")
    controls: tuple[Control, ...]
    repeat: tuple[Control, ...]
    self_test: tuple[Check, ...]
    coverage: tuple[Coverage, ...] = ()
    vacuous: tuple[Vacuous, ...] = ()
    moved: tuple[Moved, ...] = ()
    unexercised: tuple[str, ...] = ()
    localized: tuple[Localized, ...] = ()
    cases: tuple[CaseRow, ...] = Field(default=(), description="of modes beside plain decoding")
    launched: tuple[Launched, ...] = ()
    speculation: tuple[Speculation, ...] = ()
    invariance: tuple[InvarianceCell, ...] = ()
    invariance_steps: int | None = Field(
        default=None, description="decode steps of each leg of the table: `steps`, at most 8"
    )
    overhead: Overhead | None = Field(default=None, description="null where a run was cached")

    @property
    def repeat_variants(self) -> frozenset[str]:
        """What the reference's repeats are called; in the invariance table each forward repeats."""
        return frozenset(c.variant for c in self.repeat if c.mode != "invariance")
