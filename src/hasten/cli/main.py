"""The command line: `hasten VERB ...`. It starts without torch; each verb imports what it needs when it runs."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

import hasten
from hasten.cli.cache import app as cache
from hasten.cli.cache import warm
from hasten.cli.doctor import DoctorCommand, doctor, profile, tune
from hasten.cli.evaluate import evaluate
from hasten.cli.launch import launch, slurm
from hasten.cli.nnunet import nnunet
from hasten.cli.plan import plan, settings
from hasten.cli.predict import export, predict
from hasten.cli.ranks import leave, text_for_rank
from hasten.cli.recipe import app as recipe
from hasten.cli.recipe import phantom
from hasten.cli.scale import app as scale
from hasten.cli.terminal import Verbs, complain, echo, guard_messages, mistake_text
from hasten.cli.train import train
from hasten.cli.view import report, view, watch
from hasten.config.words import field_called


class _Guarded(Verbs):
    """Turns a user's mistake into one line and an interruption into its exit code, for every verb."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            if str(stop):
                echo(str(stop), err=True)
            raise typer.Exit(getattr(stop, "exit_code", 130)) from None
        except Exception as error:
            if hasattr(error, "possibilities"):  # click's NoSuchOption, of which typer may have its own copy
                field = field_called(getattr(error, "option_name", ""))
                error.possibilities = [f"{field}=VALUE"] if field is not None else error.possibilities
            text = mistake_text(error)
            if text is None or os.environ.get("HASTEN_DEBUG") == "1":
                raise
            complain(f"error: {text_for_rank(error, text)}")
            raise typer.Exit(2) from None


app = typer.Typer(
    cls=_Guarded,
    help="Train biomedical image segmentation networks in the least wall-clock time, and show where the time went.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for verb in (train, launch, watch, plan, predict, evaluate, view, export, report, profile, tune, settings, phantom):
    app.command()(verb)
app.command()(warm)
app.command(cls=DoctorCommand)(doctor)
app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})(nnunet)
app.add_typer(recipe, name="recipe")
app.add_typer(cache, name="cache")
app.add_typer(slurm, name="slurm")
app.add_typer(scale, name="scale")


def _print_version(requested: bool) -> None:
    if requested:
        echo(f"hasten {hasten.__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """What the command `hasten` and `python -m hasten` run."""
    guard_messages()
    try:
        app(prog_name="hasten")
    except SystemExit as end:
        leave(end.code)
        raise
