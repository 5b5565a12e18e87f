"""Which single change would make a refused configuration fit, each tried before it is named."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from metpipe.circuit import element_bytes
from metpipe.memory.evaluate import headroom_at
from metpipe.memory.inverse import Inverse, Question, Value
from metpipe.memory.overheads import graphs_term
from metpipe.memory.point import Point
from metpipe.memory.reboot import with_kv_dtype, without_block_drafter, without_drafts
from metpipe.memory.report import SEVERITY, Answer, answer_of

__all__ = ["Fix", "fixes", "switches"]

KV_DTYPES = ("fp8", "bf16", "f32")
"""From the narrowest."""
KV_FORMAT = "{kv_cache_dtype}"


@dataclass(frozen=True, slots=True)
class Fix:
    """One change, the rest as it is: what the answer would be, and the room that is left.

    `override` is all that must be typed behind the line for it, with spaces between.
    """

    override: str
    answer: Answer
    headroom_low: int
    headroom_high: int


def fixes(
    answer: Answer, questions: Sequence[Question], answers: Sequence[Inverse]
) -> tuple[Fix, ...]:
    """The changes that turn `answer` into a better one; none where it fits already.

    `answers` are those of the questions, in their order.

    Raises:
        ConfigError: as `evaluate` at a changed point.
    """
    if answer == "fits":
        return ()
    tried = (_fix(question, given) for question, given in zip(questions, answers, strict=True))
    found = [fix for fix in tried if fix is not None and _is_better(fix.answer, answer)]
    return tuple(fix for fix in found if not any(_does_as_well(other, fix) for other in found))


def switches(point: Point) -> Iterator[Question]:
    """Settings beside the inverse queries that may be changed: a dtype, graphs, speculation."""
    now = point.serve.kv_cache_dtype
    if any(group.format == KV_FORMAT for group in point.planned.states):
        narrower = [one for one in KV_DTYPES if element_bytes(one) < element_bytes(now)]
        yield Question(
            "kv_cache_dtype",
            "most",
            (*narrower, now),
            lambda value: with_kv_dtype(point, str(value)),
            lambda value: f"serve.kv_cache_dtype={value}",
            now=now,
        )
    if point.met is None and graphs_term(point).high:
        yield Question(
            "graphs",
            "most",
            ("false", "true"),
            lambda value: replace(point, serve=replace(point.serve, graphs=value == "true")),
            lambda value: f"serve.graphs={value}",
            now="true",
        )
    yield from _proposers(point)


OFF_HEAD = ("serve.speculative=false",)
OFF_DRAFTER = ("serve.dflash=false", "serve.dflash_gamma=null")


def _proposers(point: Point) -> Iterator[Question]:
    """Each one that drafts, to be left out; and both, where there are two."""
    has_drafter = point.met is not None and point.met.flags.dflash
    if point.serve.speculative:
        yield _proposer(point, without_drafts(point), OFF_HEAD)
    if has_drafter:
        yield _proposer(point, without_block_drafter(point), OFF_DRAFTER)
    if point.serve.speculative and has_drafter:
        neither = without_drafts(without_block_drafter(point))
        yield _proposer(point, neither, (*OFF_HEAD, *OFF_DRAFTER))


def _proposer(point: Point, without: Point, off: tuple[str, ...]) -> Question:
    typed = " ".join((*off, *_unread(point, without)))
    return Question(
        off[0].partition("=")[0].removeprefix("serve."),
        "most",
        ("false", "true"),
        lambda value: point if value == "true" else without,
        lambda value: typed if value == "false" else "",  # as it is: nothing to type
        now="true",
    )


def _unread(point: Point, without: Point) -> Iterator[str]:
    """Keys of speculation that are given and that the changed serve would refuse as unread."""
    if point.serve.num_drafts is not None and without.serve.num_drafts is None:
        yield "serve.num_drafts=null"
    if point.met is None or without.met is None:
        return
    if point.met.flags.mtp_max_seqs is not None and without.met.flags.mtp_max_seqs is None:
        yield "serve.mtp_max_seqs=null"
    if point.met.what_ifs.tree_nodes is not None and without.met.what_ifs.tree_nodes is None:
        yield "tree_nodes=null"


def _fix(question: Question, given: Inverse) -> Fix | None:
    """The answer's value, where it asks for less than the point does."""
    value = given.surely if given.surely is not None else given.possibly
    if value is None or not _asks_for_less(question, given, value):
        return None
    low, high = headroom_at(question.at(value))
    return Fix(question.typed(value), answer_of(low, high), low, high)


def _asks_for_less(question: Question, given: Inverse, value: Value) -> bool:
    """Whether the value is a change towards less; of a device, whether it is another one."""
    now = question.now
    if now is None:
        return False
    if isinstance(now, str) or isinstance(value, str):
        return now not in question.values or _place(question, value) < _place(question, now)
    return value < now if given.sense == "most" else value > now


def _place(question: Question, value: Value) -> int:
    return question.values.index(value)


def _does_as_well(fix: Fix, than: Fix) -> bool:
    """Whether a part of what must be typed for the other one is enough."""
    part = set(fix.override.split()) < set(than.override.split())
    return part and not _is_better(than.answer, fix.answer)


def _is_better(answer: Answer, than: Answer) -> bool:
    return SEVERITY.index(answer) < SEVERITY.index(than)
