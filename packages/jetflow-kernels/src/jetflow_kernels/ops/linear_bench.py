"""Times products of few rows on a GPU: ``python -m jetflow_kernels.ops.linear_bench --out FILE``.

Every configuration is held against float64 first. Then torch's product and ours are replayed in
turns, in graphs over matrices that no cache holds. The last entries are the products and norms of
some layers in one graph, as a pass runs them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from jetflow_kernels import timing
from jetflow_kernels.ops.gate import silu_mul_reference
from jetflow_kernels.ops.layer_steps import LayerSteps
from jetflow_kernels.ops.linear_choice import MEMORY_RATES, Choice, Product, Products
from jetflow_kernels.ops.linear_measure import apart, by_config, measure

Result = dict[str, object]
ROWS = (1, 16, 64, 128, 256)
_TYPE = torch.bfloat16
_DEVICE = "cuda"
_RATE = MEMORY_RATES["H200"]
_COUNTERS = 2**17
_CHECKED = 2048
"""Columns at either end of a result that are held against float64."""
_LAYERS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Sizes of a model's products."""

    name: str
    hidden: int
    qkv: int
    inner: int
    vocabulary: int

    def products(self) -> dict[str, tuple[int, int, bool]]:
        """Rows and columns of each matrix, and whether its product is gated."""
        return {
            "qkv": (self.qkv, self.hidden, False),
            "output": (self.hidden, self.hidden, False),
            "gate_up": (2 * self.inner, self.hidden, False),
            "gate_up, gated": (2 * self.inner, self.hidden, True),
            "down": (self.hidden, self.inner, False),
            "lm_head": (self.vocabulary, self.hidden, False),
        }


MODELS = (
    Model(name="qwen3-8b", hidden=4096, qkv=6144, inner=12288, vocabulary=151_936),
    Model(name="smollm2-135m", hidden=576, qkv=960, inner=1536, vocabulary=49_152),
)


def measure_product(
    weight: Tensor, rows: Sequence[int], *, gated: bool, arrived: Tensor
) -> list[Result]:
    """Checks and times one matrix with all numbers of rows.

    Args:
        weight: [out, in].
        rows: numbers of rows.
        gated: whether results are gated.
        arrived: counters, as ``linear`` takes them.
    """
    outs, ins = weight.shape
    wanted = [Product(count, outs, ins, gated) for count in rows]
    timed = measure(
        [(each.rows, list(each.configs(_TYPE).values())) for each in wanted],
        [weight], gated=gated, arrived=arrived,
    )  # fmt: skip
    results: list[Result] = []
    for product, one in zip(wanted, timed, strict=True):
        configs = product.configs(_TYPE)
        wrong = wrong_ones(weight, product, arrived)
        choice = Choice.of(product, {n: c for n, c in configs.items() if n not in wrong}, one)
        shares = {name: product.bytes(_TYPE) / us / 1e-6 / _RATE for name, us in one.us.items()}
        results.append({**choice.line(), "wrong": wrong, "share_of_memory_rate": shares})
    return results


def wrong_ones(weight: Tensor, product: Product, arrived: Tensor) -> dict[str, str]:
    """The configurations that float64 refutes, at both ends of the result's columns."""
    x = torch.randn(product.rows, product.ins, device=weight.device).to(_TYPE)
    outs = product.outs // 2 if product.gated else product.outs
    ends = sorted({*range(min(outs, _CHECKED)), *range(max(0, outs - _CHECKED), outs)})
    columns = torch.tensor(ends, device=weight.device)
    exact = [x.double() @ weight[columns + at].double().T for at in (0, outs)[: 1 + product.gated]]
    wanted = torch.cat(exact, dim=1).to(_TYPE)
    if product.gated:
        wanted = silu_mul_reference(wanted)
    found = {}
    for name, config in product.configs(_TYPE).items():
        # Whatever a kernel that cannot be compiled or started raises, the others go on.
        try:
            got = by_config(x, weight, config, gated=product.gated, arrived=arrived)
            reason = apart(got[:, columns], wanted, gated=product.gated)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"[:300]
        if reason is not None:
            found[name] = reason
    return found


def measure_layers(model: Model, rows: int) -> Result:
    """Products and norms of some layers in one graph: torch's, the chosen, and those placed early.

    Args:
        model: whose layers.
        rows: of the pass.
    """
    shapes = {name: shape for name, shape in model.products().items() if name != "lm_head"}
    del shapes["gate_up"]
    layers = [
        {name: _matrix(outs, ins) for name, (outs, ins, _) in shapes.items()}
        for _ in range(_LAYERS)
    ]
    plain = [each[name] for each in layers for name in ("qkv", "output", "down")]
    gated = [each["gate_up, gated"] for each in layers]
    x = torch.randn(rows, model.hidden, device=_DEVICE).to(_TYPE)
    norm = torch.ones(model.hidden, device=_DEVICE, dtype=_TYPE)
    chosen = Products()
    ways = {
        "torch": LayerSteps(overlapped=False),
        "chosen": LayerSteps(chosen, overlapped=False),
        "chosen, placed early": LayerSteps(chosen),
    }
    ways["chosen"].prepare([rows], plain, gated)

    def run(steps: LayerSteps) -> Tensor:
        # By a kernel: only one that is ahead can let the next one in early.
        state = x * 1
        normed = steps.rms_norm(state, norm, 1e-6)
        for each in layers:
            qkv = steps.linear(normed, each["qkv"])
            change = steps.linear(qkv[:, : model.hidden], each["output"])
            normed = steps.add_rms_norm(state, change, norm, 1e-6, state)
            inner = steps.gate_up_silu(normed, each["gate_up, gated"])
            change = steps.linear(inner, each["down"])
            normed = steps.add_rms_norm(state, change, norm, 1e-6, state)
        return normed

    replays = [timing.capture([partial(run, steps)]) for steps in ways.values()]
    spreads = timing.in_turns(replays, _LAYERS)
    floor = sum(matrix.numel() * 2 for matrix in layers[0].values()) / _RATE * 1e6
    return {
        "model": model.name, "layers": _LAYERS, "rows": rows, "floor_us": floor,
        "us_per_layer": {n: asdict(s) for n, s in zip(ways, spreads, strict=True)},
        "share_of_floor": {
            n: floor / s.median_us for n, s in zip(ways, spreads, strict=True)
        },
    }  # fmt: skip


def run(rows: Sequence[int], models: Sequence[Model], report: Callable[[Result], None]) -> None:
    """Measures everything and tells each result as soon as it exists.

    Args:
        rows: numbers of rows.
        models: whose products.
        report: gets the results.
    """
    torch.manual_seed(0)
    arrived = torch.zeros(_COUNTERS, dtype=torch.int32, device=_DEVICE)
    with torch.no_grad():
        for model in models:
            for name, (outs, ins, gated) in model.products().items():
                weight = _matrix(outs, ins)
                for result in measure_product(weight, rows, gated=gated, arrived=arrived):
                    report({"model": model.name, "product": name, **result})
                del weight
                torch.cuda.empty_cache()
            for count in rows:
                report(measure_layers(model, count))
                torch.cuda.empty_cache()


def line(result: Result) -> str:
    """One result for people."""
    shares = result.get("share_of_memory_rate") or result["share_of_floor"]
    assert isinstance(shares, dict)
    if "layers" in result:
        told = "  ".join(f"{name} {share:.0%}" for name, share in shares.items())
        return f"{result['model']:<13} a layer, {result['rows']:>3} rows: of the floor: {told}"
    us, best = result["us"], str(result["runs"])
    assert isinstance(us, dict)
    beside = "" if best == "torch" else f", torch {us['torch']:.1f} us {shares['torch']:.0%}"
    refused, wrong = (cast(dict[str, str], result[kind]) for kind in ("refused", "wrong"))
    bad = "".join(f"\n  NOT TIMED {name}: {why}" for name, why in refused.items())
    bad += "".join(f"\n  WRONG {name}: {why}" for name, why in wrong.items())
    return (
        f"{result['model']:<13} {result['product']:<15} {result['rows']:>3} rows: {best} "
        f"{us[best]:.1f} us {shares[best]:.0%}{beside}{bad}"
    )


def main(argv: list[str] | None = None) -> None:
    """Measures and writes one JSON file, anew after every result.

    Raises:
        SystemExit: wrong arguments, no CUDA device, or a configuration that float64 refutes.
    """
    parser = argparse.ArgumentParser(prog="jetflow_kernels.ops.linear_bench", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS))
    parser.add_argument("--models", nargs="+", default=[each.name for each in MODELS])
    options = parser.parse_args(argv)
    if not all(1 <= count <= 256 for count in options.rows):
        parser.error(f"rows {options.rows} are out of range: 1 to 256")
    models = [each for each in MODELS if each.name in options.models]
    if len(models) != len(options.models):
        parser.error(f"models must be of {', '.join(each.name for each in MODELS)}")
    if not torch.cuda.is_available():
        parser.error("needs a CUDA device; there is none here")
    results: list[Result] = []
    environment = {"format": "jetflow-bench-products/1", **timing.environment()}

    def report(result: Result) -> None:
        results.append(result)
        print(line(result), flush=True)
        timing.write_json(options.out, {**environment, "results": results})

    run(options.rows, models, report)
    wrong = sum(bool(result.get("wrong")) for result in results)
    if wrong:
        raise SystemExit(f"{wrong} of {len(results)} products have a configuration that is wrong")


def _matrix(outs: int, ins: int) -> Tensor:
    return (ins**-0.5 * torch.randn(outs, ins, device=_DEVICE)).to(_TYPE)


if __name__ == "__main__":
    main()
