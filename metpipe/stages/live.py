"""The live objects of one process: checkpoint, prompts and model, opened when a stage first asks.

Models stay open from one job of a sweep to the next: weights load once per process.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from metpipe.circuit import Circuit, Select
from metpipe.config import Run, modes_of, reads_prompts
from metpipe.diff.prompt_file import read_prompts
from metpipe.diff.prompts import lengths, prompts, prompts_of_lengths
from metpipe.engine.checkpoints import (
    Checkpoint,
    ModelSource,
    PackageSource,
    open_checkpoint,
    require_tokenizer,
)
from metpipe.engine.kernel_sets import KernelSets
from metpipe.engine.model import Model
from metpipe.engine.opening import circuit_of, one_plus_of_config, open_model, shapes_of_config
from metpipe.engine.pool_sizes import PoolSizes
from metpipe.engine.selection import ForwardSelect
from metpipe.engine.serve_flags import ExecutedServe, executed_serve
from metpipe.errors import ConfigError
from metpipe.pipeline import Progress, StageContext
from metpipe.stages.invariance.plan import needed_cases
from metpipe.stages.invariance.table import Table
from metpipe.stages.modes.case import Case
from metpipe.stages.modes.cases import Facts, cases_of
from metpipe.stages.modes.needs import sizes_for

__all__ = ["LEGACY", "OPEN", "Live", "live_of"]

INVARIANCE_STEPS = 8
"""Steps of each leg of the invariance table: as deep as the deepest verify."""
LEGACY = ForwardSelect("legacy", "legacy", Select.reference())


@dataclass(slots=True)
class Live:
    """What one job's stages share. `sets` are loaded before the pipeline, for its content keys."""

    run: Run
    sets: KernelSets
    typed: frozenset[str] = frozenset()
    """keys that were typed, not brought by a recipe, a boot or a repeated run"""
    _checkpoint: Checkpoint | None = None
    _circuit: Circuit | None = None
    _prompts: tuple[tuple[int, ...], ...] | None = None
    _cases: dict[str, tuple[Case, ...]] = field(default_factory=dict)
    _model: Model | None = field(default=None)

    def checkpoint(self) -> Checkpoint:
        """The checkpoint of the run's model section: headers and config only."""
        if self._checkpoint is None:
            # a plan reads no weights
            shapes_of = shapes_of_config if self.executes else None
            self._checkpoint = open_checkpoint(
                model_source(self.run), shapes_of=shapes_of, one_plus_of=one_plus_of_config
            )
        return self._checkpoint

    @property
    def executes(self) -> bool:
        """Whether the job runs a forward."""
        pipeline = self.run.pipeline
        own_ledger = pipeline.ledger and self.run.ledger.boot is None
        return pipeline.diff or own_ledger or pipeline.rule

    def checkpoint_digest(self) -> str | None:
        """The weights' digest; that of the config alone when nothing runs; None without a model."""
        if self.run.pipeline.rule:
            return None
        checkpoint = self.checkpoint()
        if self.executes:
            return checkpoint.digest()
        text = json.dumps(checkpoint.config, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()

    def circuit(self) -> Circuit:
        """The circuit of the checkpoint's config."""
        if self._circuit is None:
            checkpoint = self.checkpoint()
            self._circuit = circuit_of(checkpoint.config, checkpoint.source)
        return self._circuit

    def serve(self) -> ExecutedServe:
        """The serve flags as executed; ConfigError names one that is not."""
        return executed_serve(self.run.serve.model_dump())

    def prompts(self) -> tuple[tuple[int, ...], ...]:
        """The run's prompts as token ids; none where no mode decodes them."""
        if self._prompts is None and not reads_prompts(self.run):
            self._prompts = ()
        elif self._prompts is None:
            self.check_lengths()  # a digit too many must not make them
            found = tuple(tuple(prompt) for prompt in self._make_prompts())
            self._check_lengths([len(prompt) for prompt in found])
            self._prompts = found
        return self._prompts

    def cases(self, mode: str) -> tuple[Case, ...]:
        """The cases of one of the run's modes."""
        if mode not in self._cases:
            self._cases[mode] = self._make_cases(mode)
        return self._cases[mode]

    def _make_cases(self, mode: str) -> tuple[Case, ...]:
        if mode == "invariance":
            return needed_cases(self.invariance_table())
        facts = Facts(self.prompts(), self.circuit().dims["vocab"], self.drafts_are_compared())
        return cases_of(mode, self.run, facts)

    def invariance_table(self) -> Table:
        """The prompts and lengths of the invariance table."""
        steps = min(self.run.steps, INVARIANCE_STEPS)
        vocab_size, drafts = self.circuit().dims["vocab"], self.drafts_are_compared()
        return Table.of(self.run.max_width, steps, vocab_size, drafts=drafts)

    def all_cases(self) -> tuple[Case, ...]:
        """Those of every mode of the run; plain decoding's when nothing else is run."""
        return tuple(case for mode in modes_of(self.run) for case in self.cases(mode))

    def drafts_are_compared(self) -> bool:
        """Whether the draft head runs too; `auto`: where there is one.

        Raises:
            ConfigError: it was asked for, and the model has none.
        """
        head = any(node.section == "draft" for node in self.circuit().nodes)
        if self.run.mtp is True and not head:
            raise ConfigError(
                f"mtp=true: the config of {self.checkpoint().source} declares no draft head "
                "(mtp_num_hidden_layers is 0 or missing); leave mtp out"
            )
        return head and bool(self.run.mtp)

    def check_lengths(self) -> None:
        """Refuse synthetic prompts that are longer than a sequence may be.

        Raises:
            ConfigError: naming the prompt and its length.
        """
        self._check_lengths(self.synthetic_lengths())

    def sizes(self) -> PoolSizes:
        """Pools and steps for every case of the run."""
        return sizes_for(self.all_cases(), self.serve(), self.run.num_slots)

    def model(self, progress: Progress | None = None) -> Model:
        """The loaded model; the previous job's when nothing that shapes it changed."""
        if self._model is None:
            self._model = OPEN.model(self, progress)
        return self._model

    def _make_prompts(self) -> Sequence[Sequence[int]]:
        run, vocab = self.run, self.circuit().dims["vocab"]
        if isinstance(run.prompts, str):
            checkpoint = self.checkpoint()

            def encode(text: str) -> list[int]:
                return require_tokenizer(checkpoint).encode(text)

            return read_prompts(Path(run.prompts), encode, vocab)
        if run.prompt_lengths:
            return prompts_of_lengths(run.prompt_lengths, vocab)
        return prompts(run.prompts, vocab)

    def synthetic_lengths(self) -> Sequence[int]:
        """The lengths of the prompts that are made, not read from a file."""
        if isinstance(self.run.prompts, str) or not reads_prompts(self.run):
            return ()
        return self.run.prompt_lengths or lengths(self.run.prompts)

    def _check_lengths(self, found: Sequence[int]) -> None:
        limit, steps = self.serve().max_seq_len, self.run.steps
        for index, length in enumerate(found):
            if length + steps > limit:
                raise ConfigError(
                    f"serve.max_seq_len={limit}: prompt {index} has {length} tokens, which with "
                    f"{steps} steps are {length + steps}; raise it, or lower steps, prompts or "
                    "prompt_lengths"
                )


class _OpenModels:
    """At most one model is open in a process."""

    def __init__(self) -> None:
        self._key: object = None
        self._model: Model | None = None

    def model(self, live: Live, progress: Progress | None) -> Model:
        """The open model when it is the one that `live` needs, else a fresh one in its place."""
        if self._model is None or _key_of(live) != self._key:
            self._model = None
            self._model = open_model(
                live.checkpoint(),
                live.circuit(),
                live.sets,
                live.sizes(),
                on_tensor=progress.advance if progress else lambda _: None,
            )
            self._key = _key_of(live)
        return self._model

    def let_others_go(self, live: Live) -> bool:
        """Make room for the model that `live` needs; False where it is the open one."""
        if self._model is not None and _key_of(live) == self._key:
            return False
        self.close()
        return True

    def close(self) -> None:
        """Let the open model go."""
        self._key = self._model = None


def _key_of(live: Live) -> object:
    """What two jobs must have in common to share a model."""
    run = live.run
    return (
        run.model.model_dump_json(),
        run.seed,
        live.checkpoint().digest(),
        live.sizes(),
        live.sets.digests,
    )


OPEN = _OpenModels()


def live_of(context: StageContext) -> Live:
    """The job's live objects behind a stage."""
    assert isinstance(context.live, Live)
    return context.live


def model_source(run: Run) -> ModelSource:
    """The model section as the checkpoint readers take it."""
    package = run.model.package
    return ModelSource(
        name=run.model.name,
        checkpoint=run.model.checkpoint,
        config=run.model.config,
        package=PackageSource(**package.model_dump()) if package else None,
        seed=run.seed,
        weights=run.model.weights,
    )
