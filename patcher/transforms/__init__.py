"""Reusable LibCST transforms, one a module: a source goes in, an outcome comes out, and nothing touches the disk.

Import them inside a patch's rewrite function, not at its top: `check` reads every patch file and never needs LibCST.
"""
