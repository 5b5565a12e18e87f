"""An outside implementation computes the same logits: is the reference right, not only repeatable?

`transformers` is imported here alone, and only when an oracle was asked for.
"""

from __future__ import annotations

from metpipe.oracle.checkpoint_files import CheckpointFiles, files_for_transformers
from metpipe.oracle.judgement import Judgement, judge
from metpipe.oracle.library import quiet, require_oracle, transformers_version
from metpipe.oracle.outside_model import OutsideModel, check_free_memory

__all__ = [
    "CheckpointFiles",
    "Judgement",
    "OutsideModel",
    "check_free_memory",
    "files_for_transformers",
    "judge",
    "quiet",
    "require_oracle",
    "transformers_version",
]
