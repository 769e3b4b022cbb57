from collections.abc import Callable
from typing import Any

import pytest
import torch
from jetflow_core.few_rows import FewRowsLinear, multiply_few_rows_fast
from torch import nn


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(24, 40), (8, 200)])
@pytest.mark.parametrize("rows", [0, 1, 2, 7, 8, 9, 64, 65])
def test_it_is_the_layer_that_it_replaces(rows: int, shape: tuple[int, int], bias: bool) -> None:
    torch.manual_seed(0)
    plain = nn.Linear(*shape, bias=bias).double()
    fast = FewRowsLinear(plain)
    assert fast.weight is plain.weight
    assert fast.bias is plain.bias
    inputs = torch.randn(1, rows, shape[0], dtype=torch.float64)
    out = fast(inputs)
    assert out.shape == (1, rows, shape[1])
    torch.testing.assert_close(out, plain(inputs), rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("processor", "dtype", "replaced"),
    [
        ("AMD EPYC", torch.float32, True),
        ("AMD EPYC", torch.bfloat16, False),
        ("Intel Xeon", torch.float32, False),
    ],
)
def test_only_where_it_is_the_faster(
    processor: str,
    dtype: torch.dtype,
    replaced: bool,
    tiny_model: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"cpu_name": processor})
    model = tiny_model("qwen3", dtype=dtype, tie_word_embeddings=True)
    names = set(model.state_dict())
    multiply_few_rows_fast(model)
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    assert len(layers) == 4 * 7 + 1
    assert all(isinstance(layer, FewRowsLinear) == replaced for layer in layers)
    assert set(model.state_dict()) == names
    assert model.lm_head.weight is model.model.embed_tokens.weight
