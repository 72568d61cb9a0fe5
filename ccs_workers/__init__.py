"""What exists only while a worker lives: consuming, executing, engines, publishing."""

from importlib.metadata import version

__version__ = version("ccs-workers")
