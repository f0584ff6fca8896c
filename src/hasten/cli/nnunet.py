"""`hasten nnunet`: nnU-Net's own commands, with its trainers of Hasten."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from hasten.cli.terminal import echo
from hasten.nnunet import check_version

_VARIABLE = "nnUNet_extTrainer"
_TRAINER = "nnUNetTrainerHasten"


def nnunet(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="WORD", help="nnU-Net's command and its arguments, such as: train 4 3d_fullres 0."),
    ] = None,
) -> None:
    """Run nnUNetv2_COMMAND with Hasten's trainers to be found; `train` takes nnUNetTrainerHasten unless -tr is given.

    Without a command: say how nnU-Net's own commands find them.
    """
    folder = trainer_folder()
    check_version()
    if not command:
        echo(f'export {_VARIABLE}="{folder}"\nnnUNetv2_train DATASET CONFIGURATION FOLD -tr {_TRAINER}')
        return
    verb, *arguments = command
    program = shutil.which(f"nnUNetv2_{verb}", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if program is None:
        raise ValueError(
            f"nnunet {verb}: there is no command nnUNetv2_{verb}; install nnU-Net (pip install 'hasten[nnunet]'), or "
            "correct the name, such as train or predict"
        )
    if verb == "train" and "-tr" not in arguments:
        arguments += ["-tr", _TRAINER]
    others = os.environ.get(_VARIABLE)
    variables = {_VARIABLE: f"{folder}{os.pathsep}{others}" if others else str(folder)}
    raise typer.Exit(subprocess.run([program, *arguments], env={**os.environ, **variables}).returncode)


def trainer_folder() -> Path:
    """The folder that nnUNet_extTrainer has to name."""
    import hasten.nnunet

    return Path(hasten.nnunet.__file__).parent / "trainers"
