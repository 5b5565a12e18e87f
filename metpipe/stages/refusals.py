"""What a job refuses before anything is loaded or decoded.

What a number makes large is looked at before it is made: prompts, then cases, then pools.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from metpipe.config import modes_of
from metpipe.engine.opening import check_executed
from metpipe.engine.promises import parse_promises
from metpipe.errors import ConfigError
from metpipe.stages.live import OPEN, Live
from metpipe.stages.modes.needs import check_fits, check_passes, check_widths
from metpipe.stages.room import Room

__all__ = ["check"]


def check(live: Live) -> None:
    """Refuse what this engine, its kernel set or this machine cannot run.

    Raises:
        ConfigError: what is wrong, and what would fit.
    """
    serve, run = live.serve(), live.run
    live.check_lengths()
    check_executed(live.checkpoint(), live.circuit(), live.sets)
    for key, lengths in _lengths(live).items():
        Room.empty(live).check_prompt(key, max(lengths))
    check_widths(_widths(live), live.sets.rules)
    live.prompts()  # of a file as well
    cases = live.all_cases()
    check_passes(cases, serve.max_prefill_tokens)
    check_fits(cases, serve.max_seq_len, run.num_slots)
    _check_promises(live)
    if OPEN.let_others_go(live):
        Room.free(live).check_cases(cases, run.num_slots)


def _check_promises(live: Live) -> None:
    """A set that speaks of no axis of the family would have a table that judges nothing."""
    builtin, arch = live.sets.builtin, live.circuit().arch
    if "invariance" not in modes_of(live.run):
        return
    source = builtin.folder / "INVARIANCE.toml"
    promises = parse_promises(builtin.texts[source.name], str(source))
    if arch not in {promise.arch for promise in promises}:
        raise ConfigError(
            f"{source}: promises nothing of the family {arch}, so that diff=invariance judges "
            "nothing; add its axes, with bitwise = false where the set does not promise one"
        )


def _lengths(live: Live) -> Mapping[str, Sequence[int]]:
    """Key -> tokens of the prompts that it makes."""
    run = live.run
    made = {
        "prompt_lengths" if run.prompt_lengths else "prompts": live.synthetic_lengths(),
        "prefill": run.prefill or (),
    }
    return {key: lengths for key, lengths in made.items() if lengths}


def _widths(live: Live) -> Mapping[str, Sequence[int]]:
    """Key -> sequences of the batches that it makes."""
    return {"batch": live.run.batch or (), "verify_batch": live.run.verify_batch or ()}
