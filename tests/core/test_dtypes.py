import pytest
import torch
from jetflow_core.dtypes import default_dtype


def test_a_gpu_runs_in_bfloat16() -> None:
    assert default_dtype("cuda:1") == torch.bfloat16


@pytest.mark.parametrize(("tiles", "dtype"), [(True, torch.bfloat16), (False, torch.float32)])
def test_a_cpu_runs_in_bfloat16_only_with_tile_instructions(
    tiles: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": tiles})
    assert default_dtype("cpu") == dtype
