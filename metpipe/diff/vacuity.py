"""Comparisons that say nothing, because both sides were the same program."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from metpipe.diff.records import Disclosure, VacuousPair

__all__ = ["find_vacuous", "is_vacuous"]


def is_vacuous(reference: Disclosure, variant: Disclosure) -> bool:
    """Whether forward, plans that ran, kernels that ran and graph flag are all equal."""
    return (
        reference.forward == variant.forward
        and reference.plan_digests == variant.plan_digests
        and reference.kernel_digests == variant.kernel_digests
        and reference.graphs == variant.graphs
    )


def find_vacuous(
    disclosures: Mapping[str, Disclosure],
    pairs: Iterable[tuple[str, str]],
    *,
    allowed: Collection[str] = (),
) -> tuple[VacuousPair, ...]:
    """The vacuous ones among (reference, variant) pairs of names.

    `allowed` names the variants for which that is no reason against a PASS.
    Raises KeyError for a name without a disclosure: its comparison could not be vouched for.
    """
    return tuple(
        VacuousPair(reference, variant, variant in allowed, sentence(reference, variant))
        for reference, variant in pairs
        if is_vacuous(disclosures[reference], disclosures[variant])
    )


def sentence(reference: str, variant: str) -> str:
    return (
        f"{variant} against {reference} is vacuous: same forward, plans, kernels and graph flag. "
        "Set allow_vacuous: true in the variant if that is meant."
    )
