"""Products of a weight with a few rows, in the order that is fast on the processor at hand."""

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

# Measured on an EPYC: up to here the other order is never the slower one, for the weights of a
# layer and for the tall ones of a vocabulary.
_MOST_ROWS = 8
_MOST_ROWS_OF_TALL = 64
_TALL = 16


class FewRowsLinear(nn.Linear):
    """A linear layer that multiplies its weight by a few rows, not the rows by its weight.

    The numbers are the same up to rounding. A single row, and many, take the usual order.
    """

    def __init__(self, plain: nn.Linear) -> None:
        """Share the parameters of `plain`."""
        nn.Module.__init__(self)
        self.in_features, self.out_features = plain.in_features, plain.out_features
        self.weight, self.bias = plain.weight, plain.bias
        tall = self.out_features >= _TALL * self.in_features
        self.most_rows = _MOST_ROWS_OF_TALL if tall else _MOST_ROWS

    def forward(self, rows: Tensor) -> Tensor:
        """`[..., out]` of `[..., in]`."""
        flat = rows.flatten(0, -2)
        if not 1 < len(flat) <= self.most_rows:
            return linear(rows, self.weight, self.bias)
        product = (self.weight @ flat.t()).t()
        if self.bias is not None:
            product = product + self.bias
        return product.reshape(*rows.shape[:-1], self.out_features)


def output_layer(weight: Tensor) -> nn.Module:
    """`weight` `[out, in]` as a layer without bias, in the order that is fast for few rows."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    layer.weight = nn.Parameter(weight, requires_grad=False)
    holder = nn.ModuleList([layer])
    if weight.device.type == "cpu":
        multiply_few_rows_fast(holder)
    return holder[0]


def multiply_few_rows_fast(model: nn.Module) -> None:
    """Replace the linear layers of `model`, where `FewRowsLinear` is the faster.

    That is float32 on a processor of AMD: there a product of 4 rows costs 2.2 times one of a
    single row in the usual order, and 1.3 times in the other. On Intel's the usual order is the
    faster, and bfloat16 needs neither.
    """
    if not torch.cpu.get_capabilities().get("cpu_name", "").startswith("AMD"):
        return
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and child.weight.dtype == torch.float32:
                setattr(parent, name, FewRowsLinear(child))
