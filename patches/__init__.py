"""The catalog: one patch a file."""
