"""What must hold between the serve flags of speculation and what reads them."""

from __future__ import annotations

from collections.abc import Iterator

from metpipe.config.problem import Problem, Rule
from metpipe.config.run import Run
from metpipe.nouns import number_of

__all__ = ["SERVE_RULES"]

KS = ("verify", "verify_batch_ks")
"""Lists of rows that a sequence verifies."""


def _drafts_of_the_serve(run: Run) -> Iterator[Problem]:
    """A serve never verifies more rows than its drafts and the committed token."""
    drafts = run.serve.num_drafts
    for key in KS:
        widest = max(getattr(run, key) or (0,))
        if drafts is not None and widest > drafts + 1:
            yield Problem(
                key,
                f"K={widest} verifies {number_of(widest - 1, 'draft')}, but serve.num_drafts="
                f"{drafts} makes {drafts} a step; raise it, lower K, or leave it out",
            )


def _sequences_of_the_serve(run: Run) -> Iterator[Problem]:
    """A batch verifies all its sequences at once."""
    most, widest = run.serve.mtp_max_seqs, max(run.verify_batch or (0,))
    if most is not None and widest > most:
        yield Problem(
            "serve.mtp_max_seqs",
            f"lets {number_of(most, 'sequence')} verify at once, but verify_batch asks for "
            f"{widest}; raise it, lower verify_batch, or leave it out",
        )


def _is_read(run: Run) -> Iterator[Problem]:
    """A flag of speculation that nothing in the run would look at."""
    serve, is_met = run.serve, run.memory.accounting == "met"
    speculates, verifies = serve.speculative or serve.dflash, any(getattr(run, key) for key in KS)
    if serve.num_drafts is not None and not (speculates or verifies):
        yield Problem(
            "serve.num_drafts",
            "is read with serve.speculative=true, or with a list of Ks (verify, verify_batch_ks); "
            "add one, or leave it out",
        )
    if serve.num_drafts is not None and serve.dflash and is_met and not verifies:
        yield Problem(
            "serve.num_drafts",
            "sizes nothing beside serve.dflash=true, whose drafts serve.dflash_gamma counts; leave "
            "it out",
        )
    if serve.mtp_max_seqs is not None and not (run.verify_batch or (is_met and speculates)):
        yield Problem(
            "serve.mtp_max_seqs",
            "is read with verify_batch, or with serve.speculative=true and memory.accounting=met; "
            "add them, or leave it out (the metpipe accounting verifies every sequence at once)",
        )
    if serve.dflash_gamma is not None and not serve.dflash:
        yield Problem(
            "serve.dflash_gamma", "is read with serve.dflash=true; add that, or leave it out"
        )


SERVE_RULES: tuple[Rule, ...] = (_drafts_of_the_serve, _sequences_of_the_serve, _is_read)
