"""The command line: reads options, calls `m2dr.tasks` and prints; click is used here alone."""

from m2dr.cli import commands
from m2dr.cli.main import main

__all__ = ["commands", "main"]
