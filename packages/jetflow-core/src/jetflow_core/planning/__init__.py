"""How deep to draft and how large a tree to verify."""
