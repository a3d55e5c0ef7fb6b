"""For loops of one's own."""

from importlib.metadata import version

__version__ = version("pipe-train")
