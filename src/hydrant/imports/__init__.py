"""How modules are imported, and which installed packages they are from."""
