"""transformers on the shape of a config beside ours: eager, and its static cache compiled."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

import torch

from benchmarks.clock import measured

__all__ = ["outside"]

RUNS = 5


@torch.inference_mode()
def outside(shape: str, config: Mapping[str, Any], context: int, bandwidth: float) -> None:
    """Time transformers on the same shape, one row: eager, then its static cache compiled."""
    import transformers

    transformers.logging.set_verbosity_error()
    made = transformers.AutoConfig.for_model(**dict(config))
    with torch.device("cuda"):
        model = transformers.AutoModelForCausalLM.from_config(
            made, dtype=torch.bfloat16, attn_implementation="sdpa"
        ).eval()
    read = sum(p.numel() * 2 for p in model.parameters())
    if not config.get("tie_word_embeddings", False):
        read -= model.get_input_embeddings().weight.numel() * 2
    kv_dim = made.num_key_value_heads * made.head_dim
    read += 4 * kv_dim * made.num_hidden_layers * context
    prompt = torch.randint(0, made.vocab_size, (1, context), device="cuda")
    token = prompt[:, :1].clone()

    def line(name: str, seconds: float) -> None:
        print(
            f"{shape:<11} context {context:>5} rows   1 {name:<17} {seconds * 1e3:8.3f} ms "
            f"{read / seconds / bandwidth:6.1%}",
            flush=True,
        )

    cache = model(prompt, use_cache=True).past_key_values
    for _ in range(3):
        model(token, past_key_values=cache, use_cache=True)
    eager = [
        measured(lambda: model(token, past_key_values=cache, use_cache=True), 8) for _ in range(3)
    ]
    line(f"transformers {transformers.__version__} eager", statistics.median(eager))
    static = transformers.StaticCache(config=made, max_cache_len=context + 256)
    model(prompt, past_key_values=static, use_cache=True)
    compiled = torch.compile(model.forward, mode="reduce-overhead", fullgraph=True)
    place = torch.tensor([context], device="cuda")

    def one() -> None:
        compiled(token, past_key_values=static, use_cache=True, cache_position=place)

    for _ in range(4):
        one()
    times = [measured(one, 8) for _ in range(RUNS)]
    line("its static cache, compiled", statistics.median(times))
