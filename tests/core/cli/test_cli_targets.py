"""Folders that are no target: one line that names the folder, and no code of theirs runs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from jetflow_core.loading import TargetLoadError, load_tokenizer
from jetflow_core.target import Target
from safetensors.torch import load_file, save_file

Call = Callable[..., tuple[int, str, str]]
Damage = Callable[[Path], object]


@pytest.fixture
def copy(tiny_folder: Path, tmp_path: Path) -> Path:
    """A target of one's own to damage."""
    return Path(shutil.copytree(tiny_folder, tmp_path / "target"))


def _generate(jetflow: Call, target: Path) -> tuple[int, str, str]:
    return jetflow(
        "generate", "hi", "--target", target, "--device", "cpu", "--dtype", "float32",
        "--budget", 1, "--max-new-tokens", 2,
    )  # fmt: skip


def _text(name: str, text: str) -> Damage:
    return lambda folder: (folder / name).write_text(text)


def _json(name: str, **changes: Any) -> Damage:
    def edit(folder: Path) -> None:
        raw = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(raw | changes))

    return edit


def _config(**changes: Any) -> Damage:
    return _json("config.json", **changes)


def _tensors(edit: Callable[[dict[str, Any]], object]) -> Damage:
    def damage(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        edit(tensors)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    return damage


def _poison_head(tensors: dict[str, Any]) -> None:
    tensors["lm_head.weight"][3] = float("nan")


DAMAGES: dict[str, Damage] = {
    "tokenizer junk": _text("tokenizer.json", "junk"),
    "tokenizer empty": _text("tokenizer.json", ""),
    "tokenizer settings junk": _text("tokenizer_config.json", "{"),
    "template raises": _json("tokenizer_config.json", chat_template="{{ raise_exception('no') }}"),
    "template no jinja": _json("tokenizer_config.json", chat_template="{% for %}"),
    "other shape": _tensors(lambda t: t.update({"model.norm.weight": torch.ones(7)})),
    "missing tensor": _tensors(lambda t: t.pop("model.layers.1.mlp.up_proj.weight")),
    "unexpected tensor": _tensors(lambda t: t.update({"model.extra.weight": torch.ones(3)})),
    "lm_head not finite": _tensors(_poison_head),
    "vocabulary": _config(vocab_size=300),
    "heads": _config(num_attention_heads=3),
    "no heads": _config(num_attention_heads=0),
    "hidden size text": _config(hidden_size="64"),
    "hidden size negative": _config(hidden_size=-64),
    "no layers": _config(num_hidden_layers=0),
    "more layers": _config(num_hidden_layers=5, layer_types=None),
    "fewer layers": _config(num_hidden_layers=3, layer_types=None),
    "layers text": _config(num_hidden_layers="4"),
    "activation": _config(hidden_act="zzz"),
    "dtype": _config(dtype="zzz"),
    "rope": _config(rope_parameters="x"),
    "end token": _json("generation_config.json", eos_token_id="x"),
    "config a list": _text("config.json", "[]"),
    "config nested": _text("config.json", "[" * 100_000),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGES)
def test_a_broken_target_gives_one_line(name: str, copy: Path, jetflow: Call) -> None:
    DAMAGES[name](copy)
    before = sorted(copy.parent.rglob("*"))
    code, out, err = _generate(jetflow, copy)
    assert code == 2, err
    assert len(err.splitlines()) == 1, err
    assert str(copy) in err
    assert out == ""
    assert sorted(copy.parent.rglob("*")) == before


@pytest.mark.parametrize("name", ["tokenizer junk", "template raises", "config a list"])
def test_the_lossless_benchmark_names_the_folder_too(name: str, copy: Path, jetflow: Call) -> None:
    DAMAGES[name](copy)
    code, out, err = jetflow(
        "bench", "lossless", "--target", copy, "--device", "cpu", "--drafters", "oracle"
    )
    assert (code, out, len(err.splitlines())) == (2, "", 1), err
    assert str(copy) in err


def test_a_matrix_that_is_not_finite_is_the_targets(copy: Path) -> None:
    DAMAGES["lm_head not finite"](copy)
    with pytest.raises(TargetLoadError, match="its lm_head hold values that are not finite"):
        Target.load(copy, dtype=torch.float32)


@pytest.mark.parametrize("model_type", ["evil", "qwen3"])
def test_code_in_a_target_never_runs(
    model_type: str, copy: Path, jetflow: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even where somebody would say yes."""
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    trap = copy.parent / "trap"
    (copy / "evil.py").write_text(f"open({str(trap)!r}, 'w').close()\nclass C: pass\n")
    places = {"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.C"}
    _config(model_type=model_type, auto_map=places)(copy)
    code, out, err = _generate(jetflow, copy)
    assert (code, out, trap.exists()) == (2, "", False)
    assert len(err.splitlines()) == 1
    assert str(copy) in err


def test_code_of_a_tokenizer_never_runs(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    trap = copy.parent / "trap"
    (copy / "evil.py").write_text(f"open({str(trap)!r}, 'w').close()\nclass C: pass\n")
    _json("tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.C", "evil.C"]})(copy)
    with pytest.raises(TargetLoadError, match="tokenizer"):
        load_tokenizer(copy)
    assert not trap.exists()


def test_loading_leaves_the_libraries_switches_as_they_were(tiny_folder: Path) -> None:
    from transformers.utils import logging

    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    Target.load(tiny_folder, dtype=torch.float32)
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before


@pytest.mark.parametrize("option", ["--target", "--head"])
def test_a_name_of_any_length_gives_one_line(option: str, tiny_folder: Path, jetflow: Call) -> None:
    words = {"--target": tiny_folder} | {option: "a" * 300}
    code, out, err = jetflow(
        "generate", "hi", "--device", "cpu", *(word for pair in words.items() for word in pair)
    )
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert len(err) < 600


def test_checkpoints_with_tied_matrices_may_hold_both(
    tmp_path: Path, tiny_model: Callable[..., Any]
) -> None:
    model = tiny_model("llama", dtype=torch.float32, tie_word_embeddings=True)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.save_pretrained(tmp_path)
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert Target.load(tmp_path, dtype=torch.float32).vocab_size == 128
