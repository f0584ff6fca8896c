"""`python -m hasten`."""

from hasten.cli.main import app

app(prog_name="hasten")
