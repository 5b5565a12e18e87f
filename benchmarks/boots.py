"""What a boot takes of a GPU beside what the engine's allocator handed out.

`python -m benchmarks.boots SHAPE [graphs=true]`, one boot a process: weights, pools and every
program of a decode, a batch of 16 and a prefill; then one step of each. Shapes as in
`benchmarks.decode`. Taken = the device's memory less what is free, so nobody else may use it.
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")  # as the program

import torch

from benchmarks.decode import Case, config_of, opened, sequences, step
from metpipe.circuit import Select
from metpipe.engine.selection import ForwardSelect


def main() -> None:
    """Print one line."""
    shape, graphs = sys.argv[1], "graphs=true" in sys.argv[2:]
    free, total = torch.cuda.mem_get_info()
    context = total - free
    case = Case(shape, config_of(shape), 512, 16)
    model = opened(case)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    loaded = torch.cuda.mem_get_info()[0]
    forward = model.forward(ForwardSelect("boot", "circuit", Select.all(), graphs=graphs))
    forward.bind_all()
    batch = sequences(model, case)
    step(forward, batch[:1], [1])
    step(forward, batch, [1] * case.rows)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    tagged = model.allocator.bytes_by_tag()
    ours = sum(tagged.values())
    reserved = torch.cuda.memory_reserved()
    print(f"{shape} graphs={graphs}: total {total}, taken {total - free}, tagged {ours}")
    beside = total - free - ours
    print(
        f"  beside them {beside} ({beside / ours:.3%}): context {context}, torch's rounding "
        f"{reserved - ours}, since loading {loaded - free}"
    )
    print("  " + ", ".join(f"{tag} {size}" for tag, size in sorted(tagged.items())))


if __name__ == "__main__":
    main()
