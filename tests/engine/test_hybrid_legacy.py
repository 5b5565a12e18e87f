"""The hybrids' hand-written forward: beside transformers, and byte for byte beside the circuit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from metpipe.engine.legacy.class_defaults import EXPERTS, HYBRID, OUTER, ROPE
from metpipe.engine.legacy.hybrid import HybridShape
from metpipe.engine.rope_tables import rope_spec
from metpipe.errors import ConfigError
from metpipe.oracle import quiet
from metpipe.oracle.judgement import judge
from tests.engine.hybrid_models import CONFIGS, DraftHead, save_hybrid
from tests.engine.hybrid_rig import Rig

pytest.importorskip("transformers.models.qwen3_5_moe.modeling_qwen3_5_moe")

Make = Callable[[str, int], Path]
TOKENS = torch.randint(211, (44,), generator=torch.Generator().manual_seed(5)).tolist()
BLOCKS = [3, 1, 7, 5, 9, 11]


@pytest.fixture(autouse=True)
def _one_torch_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """The folder of a config and a seed, saved once."""
    made: dict[tuple[str, int], Path] = {}

    def make(name: str, seed: int) -> Path:
        if (name, seed) not in made:
            made[name, seed] = save_hybrid(tmp_path_factory.mktemp("hybrid"), name, seed)
        return made[name, seed]

    return make


def theirs(folder: Path, name: str) -> Any:
    """The model of the folder, opened by transformers, in bf16."""
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    nested = "text_config" in CONFIGS[name]
    auto = AutoModelForImageTextToText if nested else AutoModelForCausalLM
    with quiet():
        model, found = auto.from_pretrained(
            folder,
            dtype=torch.bfloat16,
            attn_implementation="eager",
            experts_implementation="eager",
            output_loading_info=True,
        )
    assert not found["missing_keys"]
    return model


def assert_near(ours: list[torch.Tensor], fp32: torch.Tensor, bf16: torch.Tensor) -> None:
    """As near to their fp32 as their bf16 is; and a good deal nearer than another model."""
    judged = judge(ours, fp32, list(bf16))
    assert judged.difference is not None
    assert judged.difference.max_abs <= judged.tolerance.max_abs
    assert judged.difference.rms <= judged.tolerance.rms
    assert judged.difference.rms < 0.15 * float(fp32.std())
    assert judged.agreements > 0.6 * judged.positions
    assert judged.clear_flips == 0


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("name", CONFIGS)
def test_logits_are_those_of_transformers(saved: Make, name: str, seed: int) -> None:
    """A prefill in two pieces, then decode steps, between the rows of another sequence."""
    folder = saved(name, seed)
    rig = Rig(folder)
    one, other = rig.open(2, BLOCKS), rig.open(0, [20, 22, 21, 25])
    rig.legacy_step("prefill", [(one, TOKENS[:11])])
    ours = [rig.legacy_step("prefill", [(one, TOKENS[11:17])])["logits"][0]]
    for at in range(17, len(TOKENS)):
        step = rig.legacy_step("multi_seq", [(other, [TOKENS[-at]]), (one, [TOKENS[at]])])
        assert step["tokens"].flatten().tolist() == step["logits"].float().argmax(-1).tolist()
        ours.append(step["logits"][1])
    model, found = theirs(folder, name), {}
    for dtype in (torch.bfloat16, torch.float32):
        with torch.inference_mode():
            out = model.to(dtype)(input_ids=torch.tensor([TOKENS]), use_cache=False)
        found[dtype] = out.logits[0][16:]
    assert_near(ours, found[torch.float32], found[torch.bfloat16])


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", CONFIGS)
def test_the_draft_head_is_transformers_modules_put_together(
    saved: Make, name: str, seed: int
) -> None:
    """Drafts of two sequences in one step, token by token, over hidden rows that are given."""
    folder = saved(name, seed)
    rig = Rig(folder)
    draws = torch.Generator().manual_seed(seed)
    hidden_TD = torch.randn(20, rig.shape.hidden, generator=draws).to(torch.bfloat16)
    one, other, ours = rig.open(1, BLOCKS), rig.open(3, [33, 30, 31]), []
    for at in range(20):
        rig.hidden[0], rig.hidden[1] = hidden_TD[19 - at], hidden_TD[at]
        step = rig.legacy_step("draft", [(other, [TOKENS[at + 1]]), (one, [TOKENS[at]])])
        ours.append(step["logits"][1])
    model, found = theirs(folder, name), {}
    config = model.config.get_text_config()
    head = DraftHead(config)
    stored = {
        key.removeprefix("mtp."): rig.checkpoint.read(key)
        for key in rig.checkpoint.tensors
        if key.startswith("mtp.")
    }
    head.load_state_dict(stored)
    for dtype in (torch.bfloat16, torch.float32):
        model, head = model.to(dtype), head.to(dtype)
        with torch.inference_mode():
            embedded = model.get_input_embeddings()(torch.tensor(TOKENS[:20]))
            found[dtype] = model.lm_head(head(embedded, hidden_TD.to(dtype)))
    assert_near(ours, found[torch.float32], found[torch.bfloat16])


def assert_equal(ours: dict[str, torch.Tensor], circuits: dict[str, torch.Tensor]) -> None:
    assert ours.keys() == circuits.keys()
    for name, value in ours.items():
        wide = torch.int16 if value.dtype == torch.bfloat16 else torch.int32
        assert torch.equal(value.view(wide), circuits[name].view(wide)), name
        assert bool(value.float().isfinite().all())


@pytest.mark.parametrize("name", CONFIGS)
def test_every_step_has_the_bytes_of_the_circuit_s_reference_rules(saved: Make, name: str) -> None:
    folder = saved(name, 1)
    legacy, circuit = Rig(folder), Rig(folder)
    a, b = (rig.open(2, BLOCKS) for rig in (legacy, circuit))
    c, d = (rig.open(0, [20, 22, 21]) for rig in (legacy, circuit))
    for first, last in ((0, 17), (17, 18)):
        tokens = TOKENS[first:last]
        ours = legacy.legacy_step("prefill", [(a, tokens)])
        assert_equal(ours, circuit.circuit_step("prefill", [(b, tokens)]))
    ours = legacy.legacy_step("decode", [(a, [5])])
    assert_equal(ours, circuit.circuit_step("decode", [(b, [5])]))
    ours = legacy.legacy_step("multi_seq", [(c, [9]), (a, [6])])
    assert_equal(ours, circuit.circuit_step("multi_seq", [(d, [9]), (b, [6])]))
    verify = [7, 8, 9, 10], [4, 1, 3, -1]
    ours = legacy.legacy_step("verify", [(a, verify[0])], verify[1])
    assert_equal(ours, circuit.circuit_step("verify", [(b, verify[0])], verify[1]))
    assert legacy.state_of(a) == circuit.state_of(b)
    assert legacy.state_of(c) == circuit.state_of(d)
    for state, kept in legacy.snapshots.items():
        assert torch.equal(kept.view(torch.int32), circuit.snapshots[state].view(torch.int32))
        assert kept.isfinite().all(-1).tolist() == [False, True, False, True, True, False]


@pytest.mark.parametrize("name", CONFIGS)
def test_a_draft_step_has_the_bytes_of_the_circuit_s(saved: Make, name: str) -> None:
    folder = saved(name, 2)
    legacy, circuit = Rig(folder), Rig(folder)
    draws = torch.Generator().manual_seed(3)
    hidden = torch.randn(legacy.hidden.shape, generator=draws).to(torch.bfloat16)
    tenants = [[rig.open(1, [33, 30]), rig.open(3, [35, 31])] for rig in (legacy, circuit)]
    for at in range(12):
        for rig in (legacy, circuit):
            rig.hidden.copy_(hidden.roll(at))
        runs = [[(one, [TOKENS[at]]), (two, [TOKENS[-at]])] for one, two in tenants]
        assert_equal(legacy.legacy_step("draft", runs[0]), circuit.circuit_step("draft", runs[1]))
    for one, two in zip(*tenants, strict=True):
        assert legacy.state_of(one) == circuit.state_of(two)


def test_a_snapshot_is_the_state_of_as_many_decode_steps(saved: Make) -> None:
    folder = saved("dense", 1)
    verified, decoded = Rig(folder), Rig(folder)
    one, two = verified.open(2, BLOCKS), decoded.open(0, [20, 22, 21])
    verified.legacy_step("verify", [(one, TOKENS[:3])], [5, 0, -1])
    for count, row in ((1, 5), (2, 0)):
        decoded.legacy_step("decode", [(two, [TOKENS[count - 1]])])
        for state, kept in verified.snapshots.items():
            assert torch.equal(kept[row], decoded.states[state][0])


def test_hidden_rows_stay_readable_through_a_draft_step(saved: Make) -> None:
    rig = Rig(saved("experts", 1))
    one = rig.open(2, BLOCKS)
    step = rig.legacy.bind("verify", rig.fill([(one, TOKENS[:5])]))
    for launch in step.launches:
        launch()
    before = [step.hidden_RD.clone(), step.logits_SV.clone()]
    rig.hidden.copy_(step.hidden_RD[:4])
    drafter = rig.open(1, [30])
    rig.legacy_step("draft", [(drafter, [3])])
    assert torch.equal(step.hidden_RD, before[0])
    assert torch.equal(step.logits_SV, before[1])


def test_closing_gives_every_buffer_back(saved: Make) -> None:
    rig = Rig(saved("experts", 1))
    before = rig.allocator.bytes_by_tag()
    rig.legacy.bind("multi_seq", 7)
    rig.legacy.bind("draft", 2)
    assert rig.allocator.bytes_by_tag()["legacy"] > 0
    rig.legacy.close()
    assert rig.allocator.bytes_by_tag() == before


@pytest.mark.parametrize("name", CONFIGS)
def test_the_rope_table_is_the_circuit_s(saved: Make, name: str) -> None:
    """One spec, so that a model makes one table for both forwards."""
    rig = Rig(saved(name, 1))
    specs = {
        rope_spec(json.loads(node.params["rope"]), int(node.params["rotary_dim"]))
        for node in rig.circuit.nodes
        if node.op == "rope"
    }
    assert specs == {rig.shape.rope(rig.config)}


def test_absent_keys_take_the_defaults_of_transformers_classes() -> None:
    from transformers import AutoConfig

    for model_type in ("qwen3_5_text", "qwen3_5_moe_text"):
        given = {
            "model_type": model_type, "hidden_size": 64, "num_hidden_layers": 9, "vocab_size": 9,
            "num_attention_heads": 4, "num_key_value_heads": 2,
        }  # fmt: skip
        if model_type == "qwen3_5_moe_text":
            given["num_experts"] = 11  # a count that is never guessed
        shape, config = HybridShape.from_config(given), AutoConfig.for_model(**given)
        assert shape.head_dim == config.head_dim
        assert shape.rotary_dim == int(config.head_dim * 0.25)
        assert (shape.k_heads, shape.k_dim) == (
            config.linear_num_key_heads, config.linear_key_head_dim,
        )  # fmt: skip
        assert (shape.v_heads, shape.v_dim) == (
            config.linear_num_value_heads, config.linear_value_head_dim,
        )  # fmt: skip
        assert [kind == "full_attention" for kind in config.layer_types] == list(shape.attends)
        assert shape.eps == config.rms_norm_eps
        if shape.experts is not None:
            assert shape.experts.experts == config.num_experts
            assert shape.experts.top_k == config.num_experts_per_tok
            assert shape.experts.inter == config.moe_intermediate_size
            assert shape.experts.shared_inter == config.shared_expert_intermediate_size
        assert (shape.experts is None) == (model_type == "qwen3_5_text")
        stated = {**HYBRID, **OUTER, **(EXPERTS if shape.experts else {})}
        del stated["full_attention_interval"]  # by the layers' kinds, above
        assert stated.pop("mtp_num_hidden_layers") == 0  # a class has no such key
        assert stated == {key: getattr(config, key) for key in stated}
        assert {key: config.rope_parameters[key] for key in ROPE} == ROPE


@pytest.mark.parametrize("absent", ["hidden_size", "num_hidden_layers", "num_key_value_heads"])
def test_a_key_without_a_default_is_named_when_it_is_missing(absent: str) -> None:
    config = {key: value for key, value in CONFIGS["dense"].items() if key != absent}
    with pytest.raises(ConfigError, match=f"the key '{absent}' is missing, and there is no def"):
        HybridShape.from_config(config)


def test_a_model_that_does_not_draft_binds_no_draft(saved: Make) -> None:
    rig = Rig(saved("dense", 1))
    rig.legacy.drafter_hidden = None
    with pytest.raises(ValueError, match="without its draft head"):
        rig.legacy.bind("draft", 1)
