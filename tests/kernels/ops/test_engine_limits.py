"""What core refuses for these operations before any work is what they refuse, no more, no less."""

from jetflow_core import limits
from jetflow_kernels.attention import plan
from jetflow_kernels.round import packed


def test_core_knows_what_the_steps_take() -> None:
    assert limits.ROUND_PAGES == plan.PAGES
    assert limits.ROUND_HEAD_DIMS == plan.HEAD_DIMS
    assert limits.ROUND_SLOTS == packed.MOST_REQUESTS
