"""What mypy has to accept: the operations are what core's Protocols ask for."""

from jetflow_core.rounds import RoundOps
from jetflow_core.stacks import LayerOps
from jetflow_kernels.ops import LayerSteps, RoundSteps, layer_steps, round_steps

rounds: RoundOps = round_steps
by_request: RoundOps = RoundSteps(attention="triton", cut="by_request")
layers: LayerOps = layer_steps
fresh: LayerOps = LayerSteps()
