"""What the package says about itself is what it does."""

import jetflow_kernels
from jetflow_kernels import backends


def test_only_the_reference_is_claimed_to_be_usable() -> None:
    found = {backend.name: backend for backend in backends()}
    assert [name for name, backend in found.items() if backend.usable] == ["reference"]
    assert hasattr(jetflow_kernels, "tree_attention_reference")
    for name in ("triton", "sm90"):
        assert "not part of this version" in found[name].detail
