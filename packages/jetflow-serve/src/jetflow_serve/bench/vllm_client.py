"""``vllm bench serve`` as a module that runs several loads.

The command ``vllm`` does not start where vLLM is a build for CPUs, whose distribution has another
name; its subcommand consists of the functions called here.
"""

from __future__ import annotations

import sys
from pathlib import Path

from jetflow_serve.bench.drive import run_loads


def main() -> None:
    """Runs the plan that the command line names."""
    # Only here: this takes many seconds, and not every installation has it.
    from vllm.benchmarks.serve import add_cli_args
    from vllm.benchmarks.serve import main as bench
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser()
    add_cli_args(parser)
    run_loads(Path(sys.argv[1]), lambda arguments: bench(parser.parse_args(arguments)))


if __name__ == "__main__":
    main()
