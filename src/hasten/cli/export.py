"""`hasten export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hasten.cli.source import TrustChangedCode
from hasten.cli.terminal import echo


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a training run, or its best.pt.")],
    out: Annotated[Path, typer.Option(help="File to write, .safetensors or .onnx; or a folder.")],
    format: Annotated[
        str | None,
        typer.Option(
            help="bundle (MONAI's), nnunet (its model folder); safetensors or onnx where the file's ending is another."
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that exists already.")] = False,
    trust_changed_code: TrustChangedCode = False,
) -> None:
    """Write a run's best weights for other programs, and check that they give the same scores."""
    from hasten.prediction.export import export_weights

    exported = export_weights(
        run,
        out,
        format,  # type: ignore[arg-type]
        overwrite=overwrite,
        trust_changed_code=trust_changed_code,
    )
    if exported.format == "bundle":
        command = f"python -m monai.bundle run --config_file {exported.path}/configs/inference.json"
        checked = f"a MONAI bundle\n{command} --bundle_root {exported.path} --dataset_dir IMAGES --output_dir LABELS"
    elif exported.format == "nnunet":
        command = f"nnUNetv2_predict_from_modelfolder -m {exported.path} -f 0 -i IMAGES -o LABELS"
        checked = f"a model folder of nnU-Net 2\n{command}"
    elif exported.difference is None:
        checked = "not checked, as onnxruntime is missing (pip install 'hasten[export]')"
    elif exported.format == "safetensors":
        checked = "the same weights, bit for bit"
    else:
        checked = f"differs from PyTorch by at most {exported.difference:.1e} (scores up to {exported.scale:.1e})"
    echo(f"{exported.path}: {checked}")
