"""rule: one rule alone, against the chain it replaces; no model is loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import Any

from metpipe.circuit import Circuit, node_weight_shapes
from metpipe.engine.kernel_sets import KernelSets
from metpipe.engine.microtest import (
    AWKWARD,
    KINDS,
    Bench,
    Candidate,
    Place,
    at_realistic_size,
    candidate_of,
    find_places,
    refuse_nowhere,
    time_both,
)
from metpipe.engine.opening import check_environment, circuit_of
from metpipe.nouns import number_of
from metpipe.pipeline import StageContext
from metpipe.report.rule_section import RuleSection
from metpipe.stages.live import live_of
from metpipe.stages.rule_cases import Cases

__all__ = ["judge_rule", "run_rule"]

OF_THE_MODEL = "the model's"
KINDS_ON_THE_MODEL = ("normal", "cancelling")
LARGEST_WEIGHTS = 1 << 25
"""Elements that a group of the run's own model may bind; larger ones are timed by the diff."""


def run_rule(context: StageContext) -> Mapping[str, object]:
    """Judge the rule that the run names.

    Raises:
        ConfigError: there is no such rule, it applies nowhere, or its kernel cannot be run.
    """
    params: Mapping[str, Any] = context.params
    progress = context.progress
    section = judge_rule(
        live_of(context).sets,
        params["rule"],
        seed=params["seed"],
        model_config=params["model"]["config"],
        on_start=progress.total,
        on_place=progress.advance,
    )
    return {"rule": section.model_dump(mode="json")}


def judge_rule(
    sets: KernelSets,
    rule_id: str,
    *,
    seed: int = 0,
    model_config: Mapping[str, object] | None = None,
    on_start: Callable[[int], object] = lambda _: None,
    on_place: Callable[[], object] = lambda: None,
) -> RuleSection:
    """Try a rule everywhere it applies, then time it.

    Raises:
        ConfigError: see `run_rule`, or the process is not as the set needs it.
    """
    check_environment(sets)
    candidate = candidate_of(sets, rule_id)
    configs = dict(AWKWARD) | ({OF_THE_MODEL: model_config} if model_config else {})
    circuits = {name: circuit_of(config, name) for name, config in configs.items()}
    places = tuple(_tried(find_places(candidate, circuits)))
    if not places:
        raise refuse_nowhere(candidate, circuits)
    on_start(len(places))
    cases = Cases()
    for place in places:
        bench = Bench(candidate, place, seed)
        for kind in KINDS_ON_THE_MODEL if place.circuit_name == OF_THE_MODEL else KINDS:
            cases.add(bench.trial(kind))
        on_place()
    timed = _timed_bench(candidate, configs[places[0].circuit_name], places[0])
    return _section(candidate, cases, places, timed)


def _tried(places: tuple[Place, ...]) -> Iterator[Place]:
    """All but the costly: of the model's circuit only small groups, at fewest and most rows."""
    of_model = [place for place in places if place.circuit_name == OF_THE_MODEL]
    ends = {choose(place.rows for place in of_model) for choose in (min, max) if of_model}
    for place in places:
        is_small = place.rows in ends and _weight_elements(place) <= LARGEST_WEIGHTS
        if place.circuit_name != OF_THE_MODEL or is_small:
            yield place


def _weight_elements(place: Place) -> int:
    shapes = [shape for node in place.nodes for _, shape in node_weight_shapes(place.circuit, node)]
    return sum(prod(shape) for shape in shapes)


def _timed_bench(candidate: Candidate, config: Mapping[str, object], place: Place) -> Bench:
    """At a realistic size, in the mode and rows of the first place: its heaviest group."""
    circuit: Circuit = circuit_of(at_realistic_size(config), "the sizes that are timed")
    found = find_places(candidate, {"timed": circuit})
    alike = [one for one in found if (one.mode, one.rows) == (place.mode, place.rows)]
    return Bench(candidate, max(alike, key=_weight_elements, default=place))


def _section(
    candidate: Candidate, cases: Cases, places: tuple[Place, ...], timed: Bench
) -> RuleSection:
    extent = _extent(cases, places)
    refuted = _refuted(candidate, cases)
    unexercised = () if refuted else tuple(cases.unexercised)
    if unexercised:
        sentence = f"nothing is shown: {' and '.join(unexercised)} had no finite number but 0 in "
    else:
        sentence = _holds(candidate, cases)
    times = time_both(timed)
    return RuleSection(
        id=candidate.rule.id,
        numerics=candidate.rule.numerics.text,
        kernels=tuple(kernel.name for kernel in candidate.rule.kernels),
        cases=cases.shown(),
        fused_launches=len(timed.rule.launches),
        chain_launches=len(timed.chain.launches),
        fused_ms_median=times.rule_ms,
        chain_ms_median=times.chain_ms,
        passed=not refuted and not unexercised,
        unexercised=unexercised,
        sentence=f"rule {candidate.rule.id}: {refuted or sentence + extent}",
    )


def _refuted(candidate: Candidate, cases: Cases) -> str | None:
    """What no rule of its class may do, in a sentence."""
    if cases.faults:
        return "; ".join(cases.faults[:3])
    if cases.differences and candidate.rule.numerics.kind != "differs":
        return (
            f"refuted, its bytes are not those of {_chain_text(candidate)}: {cases.num_differing} "
            f"of {cases.num_cases} cases differ; first with {cases.differences[0]}"
        )
    return None


def _holds(candidate: Candidate, cases: Cases) -> str:
    """What was shown of a rule that passed, up to the extent that ends the sentence."""
    if candidate.rule.numerics.kind == "differs":
        return f"it may differ, which is reported and not judged; {_how_far(cases)} of "
    if candidate.is_definition:
        return (
            "its class is reference, so its kernel defines the bits and is compared with itself "
            "(both times are its own); it repeated them in "
        )
    return f"the same bits as {_chain_text(candidate)} in "


def _chain_text(candidate: Candidate) -> str:
    chain = " -> ".join(element.text for element in candidate.rule.pattern)
    claimed = candidate.rule.numerics.kind == "reference"
    note = " (its class reference counts as a claim: legacy never runs a user's rule)"
    return f"{chain} one by one{note if claimed else ''}"


def _how_far(cases: Cases) -> str:
    severity = cases.severity
    if severity is None:
        return "no byte did in any"
    return (
        f"{cases.num_differing} did, in {severity.unequal_elements} elements, by at most "
        f"{severity.max_ulp} ULP and {severity.max_abs:.3g},"
    )


def _extent(cases: Cases, places: tuple[Place, ...]) -> str:
    modes = list(dict.fromkeys(mode for place in places for mode in place.modes))
    circuits = {place.circuit_name for place in places}
    return (
        f"{number_of(cases.num_cases, 'case')} ({number_of(cases.trials, 'trial')}, "
        f"{cases.exercised_trials} of them with "
        f"numbers in every output; {number_of(len(circuits), 'circuit')}, modes {', '.join(modes)})"
    )
