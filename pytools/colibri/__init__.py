"""Colibri: Mixture-of-Experts language models with one answer on every target.

The package is thin over the C core: what the core can compute, Python asks the core for.
"""

from __future__ import annotations


def __getattr__(name: str) -> str:
    """`__version__` comes from the C header; reading it costs nothing until somebody asks."""
    if name == "__version__":
        from .library import version

        return version()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
