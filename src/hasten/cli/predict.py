"""`hasten predict` and `hasten export`: what a trained run is used for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from hasten.cli.source import Quiet, TrustChangedCode
from hasten.cli.terminal import counted, echo

_Inputs = Annotated[
    list[Path],
    typer.Argument(
        metavar="INPUT|infer.a=value",
        help="Images, or folders of images; and settings of the section infer that differ from the run's.",
    ),
]
_Ensemble = Annotated[
    list[Path] | None,
    typer.Option(metavar="RUN", help="A further run, whose probabilities are averaged with RUN's; repeatable."),
]
_OVERRIDE = re.compile(r"[a-z_]+(\.[a-z_]+)*=")


def predict(
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="Folder of a run, cross-validation or shared model, or hf://OWNER/NAME."),
    ],
    inputs: _Inputs,
    out: Annotated[Path, typer.Option(help="Folder for the label maps.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace label maps that exist already.")] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Leave label maps that were written with these settings; write the others.")
    ] = False,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Write CASE.npz with the probabilities of each class, too.")
    ] = False,
    ending: Annotated[
        str | None,
        typer.Option(
            help="Kind of the label maps, such as .mha; default .nii.gz (pictures .png, nnU-Net's its file_ending)."
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda[:N], mps or xpu[:N].")] = "auto",
    ensemble: _Ensemble = None,
    postprocessing: Annotated[
        bool,
        typer.Option(
            "--postprocessing/--no-postprocessing", help="Clean label maps as a cross-validation found to be better."
        ),
    ] = True,
    quiet: Quiet = False,
    trust_changed_code: TrustChangedCode = False,
) -> None:
    """Segment images with a trained run's best weights; label maps lie on the images' own voxels.

    Of a cross-validation: with the mean of all its folds' probabilities, and its post-processing.

    Of slides, by a run on slides: heat maps and detections.
    """
    overrides = [str(word) for word in inputs if _OVERRIDE.match(str(word)) and not word.exists()]
    inputs = [word for word in inputs if str(word) not in overrides]
    if not inputs:
        raise ValueError("INPUT: no image is named; name images, or folders of images")

    from hasten.pathology.config import is_detection_run

    if is_detection_run(run):
        from hasten.pathology.compose import predict_slides

        if any((trust_changed_code, probabilities, resume, ending, ensemble, not postprocessing, overrides)):
            raise ValueError(f"{run}: is a run on slides, which takes --out, --overwrite and --device only")
        detections = predict_slides(run, inputs, out, overwrite=overwrite, device=device)
        echo(f"{len(inputs)} heat map{'' if len(inputs) == 1 else 's'} in {out}, detections in {detections}")
        return

    from hasten.prediction.predict import predict as segment

    written = segment(
        [run, *ensemble] if ensemble else run,
        inputs,
        out,
        overrides=overrides,
        overwrite=overwrite,
        resume=resume,
        probabilities=probabilities,
        ending=ending,
        device=device,
        trust_changed_code=trust_changed_code,
        postprocess=postprocessing,
        tick=counted(quiet),
    )
    beside = ", and probabilities" if probabilities else ""
    echo(f"{len(written)} label map{'' if len(written) == 1 else 's'} in {out}{beside}")


def export(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN",
            help="Folder of a training run, or its best.pt; for a folder of --format onnx also of a cross-validation.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="File to write, .safetensors or .onnx; or a folder.")],
    format: Annotated[
        str | None,
        typer.Option(
            help="Of a folder: onnx (with a predict.py that needs no torch and no Hasten), hub (for Hugging Face's "
            "hub, with a model card), bundle (MONAI's), nnunet (its model folder). Of a file: safetensors, where its "
            "ending is another."
        ),
    ] = None,
    ensemble: _Ensemble = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that exists already.")] = False,
    trust_changed_code: TrustChangedCode = False,
) -> None:
    """Write a run's best weights for other programs, and check that they give the same scores."""
    from hasten.prediction.export import export_weights

    exported = export_weights(
        [run, *ensemble] if ensemble else run,
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
    elif exported.format == "hub":
        checked = f"set the licence in README.md (an earlier one is kept), then: hf upload OWNER/NAME {exported.path}"
    elif exported.difference is None:
        checked = "not checked, as onnxruntime is missing (pip install 'hasten[export]')"
    elif exported.format == "safetensors":
        checked = "the same weights, bit for bit"
    else:
        checked = f"differs from PyTorch by at most {exported.difference:.1e} (scores up to {exported.scale:.1e})"
    if exported.path.is_dir() and exported.format == "onnx":
        checked += f"\npython {exported.path}/predict.py IMAGE... --out LABELS"
    echo(f"{exported.path}: {checked}")
