"""How good a head is: tau of its trees, walked offline over what the target wrote."""
