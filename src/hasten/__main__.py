"""`python -m hasten`."""

from hasten.cli.main import main

main()
