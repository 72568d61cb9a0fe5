"""Lets `python -m ccs_broker.cli` stand for `ccs`, where the script isn't on the path."""

from ccs_broker.cli import main

main()
