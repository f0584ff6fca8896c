"""A trained network as a folder: with a predictor of its own, as a MONAI bundle, or as nnU-Net's for its predictor."""

from __future__ import annotations

import hashlib
import io
import json
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch import nn

import hasten
from hasten.cases.regions import resolve_regions
from hasten.config.networks import NETWORKS, is_own
from hasten.config.regions import painted_values
from hasten.config.scalings import Scaling, scalings
from hasten.config.settled import PlannedRun
from hasten.nets.build import NNUNET, monai_network
from hasten.nets.nnunet import dynunet_settings, dynunet_weights
from hasten.prediction.infer import WINDOW_BATCH, Inference
from hasten.prediction.postprocess import Cleanings

_UNIT = "{1: 1e3, 3: 1e-3}.get(int(x.meta.get('xyzt_units', 0)) % 8, 1.0)"
_IN_MM = (
    "$lambda x: monai.data.MetaTensor(x, meta={k: v for k, v in x.meta.items() if k != 'affine'}, "
    f"affine=x.affine * torch.tensor([[{_UNIT}]] * 3 + [[1.0]], dtype=x.affine.dtype))"
)
"""Expression of an image whose affine is in mm, whatever unit of length its NIfTI header states (meter, micron)."""


def onnx_files(
    network: bytes, content: dict[str, Any], config: PlannedRun, how: Inference, cleanings: Cleanings
) -> dict[str, bytes]:
    """The files of a folder whose predict.py needs neither torch nor Hasten. network: an ONNX file.

    content, config: of a best.pt. how: of that network, which may be several as one.
    """
    regions = {name: tuple(members) for name, members in content.get("regions", {}).items()}
    model = {
        "form": 1,
        "hasten": hasten.__version__,
        "sha256": hashlib.sha256(network).hexdigest(),
        "spatial_dims": content["spatial_dims"],
        "channels": content["channels"],
        "labels": content["labels"],
        "regions": painted_values(regions, content.get("region_values", {})),
        "prepare": {
            **{name: getattr(config.prepare, name) for name in ("orientation", "spacing", "crop_foreground", "dtype")},
            "scaling": [asdict(scaling) for scaling in scalings(config.prepare, len(content["channels"]))],
        },
        "infer": {name: getattr(how, name) for name in ("window", "divisor", "overlap", "flip_axes")},
        "postprocessing": {str(value): asdict(cleaning) for value, cleaning in cleanings.items()},
    }
    script = Path(__file__).with_name("predict.py.txt").read_bytes()
    return {"network.onnx": network, "model.json": _json_bytes(model), "predict.py": script}


def bundle_files(content: dict[str, Any], config: PlannedRun, network: nn.Module, *, where: str) -> dict[str, bytes]:
    """The files of a bundle by their paths in its folder. content: of a best.pt, `where`, as `read_model` gives it.

    Volumes go through windows in float32; scores are interpolated linearly to the image's grid. Raises ValueError for
    networks, images and preparations that MONAI alone can't do.
    """
    scaling, *others = scalings(config.prepare, len(content["channels"]))
    if any(other != scaling for other in others):
        _refuse(where, "its channels are scaled apart (prepare.intensity, prepare.window), which a bundle does not do")
    if is_own(config.network):
        _refuse(where, f"network.name={config.network.name} is not in MONAI, so a bundle can't build it")
    try:
        dynunet = dynunet_settings(config.network) if config.network.name in NNUNET else None
    except ValueError as problem:
        _refuse(where, f"{problem}, so a bundle can't build it")
    if content["spatial_dims"] != 3 or config.prepare.orientation is None:
        why = "of pictures" if content["spatial_dims"] != 3 else "with prepare.orientation=null"
        _refuse(where, f"a run {why} can't be a bundle")
    import monai.networks.nets

    classes = len(content.get("regions") or content["labels"])
    target, arguments = monai_network(dynunet or config.network, len(content["channels"]), classes, 3)
    weights = network.state_dict()
    if dynunet is not None:
        arguments["trans_bias"] = True
        monai_dynunet = getattr(monai.networks.nets, target)(**arguments)
        # DynUNet has some weights under two names, one of which is missing here.
        loaded = monai_dynunet.load_state_dict(dynunet_weights(weights), strict=False)
        assert not loaded.unexpected_keys
        weights = monai_dynunet.state_dict()
    network_def = {"_target_": target, **arguments}
    return {
        "configs/metadata.json": _json_bytes(_metadata(content, config)),
        "configs/inference.json": _json_bytes(_inference(content, config, scaling, where, network_def)),
        "models/model.pt": _saved({name: tensor.contiguous() for name, tensor in weights.items()}),
    }


def _refuse(where: str, why: str) -> NoReturn:
    raise ValueError(f"{where}: {why}; export it as .onnx or .safetensors")


def _json_bytes(tree: dict[str, Any]) -> bytes:
    return f"{json.dumps(tree, indent=4)}\n".encode()


def _saved(tree: dict[str, Any]) -> bytes:
    data = io.BytesIO()
    torch.save(tree, data)
    return data.getvalue()


def _inference(
    content: dict[str, Any], config: PlannedRun, scaling: Scaling, where: str, network_def: dict[str, Any]
) -> dict[str, Any]:
    infer = config.infer
    return {
        "imports": [f"$import {name}" for name in ("functools", "glob", "monai", "numpy", "torch")],
        "bundle_root": ".",
        "dataset_dir": "$@bundle_root + '/images'",
        "output_dir": "$@bundle_root + '/labels'",
        "device": "$torch.device('cuda' if torch.cuda.is_available() else 'cpu')",
        "datalist": _datalist(len(content["channels"])),
        "network_def": network_def,
        "network": "$@network_def.to(@device)",
        "preprocessing": {"_target_": "Compose", "transforms": _preprocessing(config, scaling)},
        "dataset": {"_target_": "Dataset", "data": "@datalist", "transform": "@preprocessing"},
        "dataloader": {"_target_": "DataLoader", "dataset": "@dataset", "batch_size": 1, "num_workers": 0},
        "inferer": {
            "_target_": "SlidingWindowInferer",
            "roi_size": infer.patch,
            "sw_batch_size": infer.batch_size or WINDOW_BATCH,
            "overlap": infer.overlap,
            "mode": "gaussian",
        },
        "postprocessing": {"_target_": "Compose", "transforms": _postprocessing(content, where)},
        "handlers": [
            {
                "_target_": "CheckpointLoader",
                "load_path": "$@bundle_root + '/models/model.pt'",
                "load_dict": {"model": "@network"},
                "map_location": "@device",
            }
        ],
        "evaluator": {
            "_target_": "SupervisedEvaluator",
            "device": "@device",
            "val_data_loader": "@dataloader",
            "network": "@network",
            "inferer": "@inferer",
            "postprocessing": "@postprocessing",
            "val_handlers": "@handlers",
        },
        "run": ["$@evaluator.run()"],
    }


def _datalist(num_channels: int) -> str:
    """An expression: each file is a case, or with several channels CASE_0000, CASE_0001 ... are those of one."""
    if num_channels == 1:
        return "$[{'image': path} for path in sorted(glob.glob(@dataset_dir + '/*.nii.gz'))]"
    channels = f"[path[:-11] + f'{{channel:04d}}.nii.gz' for channel in range({num_channels})]"
    return f"$[{{'image': {channels}}} for path in sorted(glob.glob(@dataset_dir + '/*_0000.nii.gz'))]"


def _preprocessing(config: PlannedRun, scaling: Scaling) -> list[dict[str, Any]]:
    """Axes are D, H, W as in Hasten: those of the orientation, last one first."""
    prepare = config.prepare
    assert prepare.orientation is not None
    transforms: list[dict[str, Any]] = [
        {"_target_": "LoadImaged", "keys": "image", "ensure_channel_first": True},
        {"_target_": "Lambdad", "keys": "image", "func": _IN_MM},
        {"_target_": "Orientationd", "keys": "image", "axcodes": prepare.orientation[::-1], "labels": None},
    ]
    if prepare.crop_foreground:
        low = scaling.window[0] if scaling.window else "x.flatten(1).min(1).values.reshape(-1, 1, 1, 1)"
        crop = {"select_fn": f"$lambda x: x > {low}", "allow_smaller": True}
        transforms.append({"_target_": "CropForegroundd", "keys": "image", "source_key": "image", **crop})
    if prepare.spacing and any(prepare.spacing):
        transforms.append({"_target_": "Spacingd", "keys": "image", "pixdim": prepare.spacing, "scale_extent": True})
    match scaling.kind:
        case "zscore":
            transforms.append({"_target_": "NormalizeIntensityd", "keys": "image", "channel_wise": True})
        case "window":
            assert scaling.window is not None
            window = {"a_min": scaling.window[0], "a_max": scaling.window[1], "b_min": 0, "b_max": 1, "clip": True}
            transforms.append({"_target_": "ScaleIntensityRanged", "keys": "image", **window})
    # As the training saw it, which keeps prepared images in this type.
    transforms += [
        {"_target_": "CastToTyped", "keys": "image", "dtype": f"$torch.{dtype}"}
        for dtype in dict.fromkeys([prepare.dtype, "float32"])
    ]
    return transforms


def _postprocessing(content: dict[str, Any], where: str) -> list[dict[str, Any]]:
    labels = {int(value): name for value, name in content["labels"].items()}
    values = sorted(labels)
    transforms: list[dict[str, Any]] = [
        {
            "_target_": "Invertd",
            "keys": "pred",
            "transform": "@preprocessing",
            "orig_keys": "image",
            "nearest_interp": False,
        },
    ]
    if content.get("regions"):
        regions = resolve_regions(content["regions"], content["region_values"], labels, f"{where}: regions")
        painted = [values[region.painted] for region in regions]
        step = "lambda label, at: torch.where(x[at[0] : at[0] + 1] > 0, float(at[1]), label)"
        paint = f"$lambda x: functools.reduce({step}, enumerate({painted}), torch.zeros_like(x[:1]))"
        transforms.append({"_target_": "Lambdad", "keys": "pred", "func": paint})
    else:
        transforms.append({"_target_": "AsDiscreted", "keys": "pred", "argmax": True})
        if values != list(range(len(values))):
            maps = {"orig_labels": list(range(len(values))), "target_labels": values}
            transforms.append({"_target_": "MapLabelValued", "keys": "pred", **maps})
    dtype = np.min_scalar_type(values[-1]).name
    save = {"output_dir": "@output_dir", "output_postfix": "", "separate_folder": False, "resample": False}
    return [*transforms, {"_target_": "SaveImaged", "keys": "pred", "output_dtype": f"$numpy.{dtype}", **save}]


def _metadata(content: dict[str, Any], config: PlannedRun) -> dict[str, Any]:
    import monai

    channels, names = content["channels"], list(content.get("regions") or content["labels"].values())

    def described(of: list[str], **kind: str) -> dict[str, Any]:
        return {
            "type": "image",
            "spatial_shape": config.infer.patch,
            "dtype": "float32",
            "is_patch_data": True,
            **kind,
            "num_channels": len(of),
            "value_range": [],
            "channel_def": {str(number): name for number, name in enumerate(of)},
        }

    return {
        "schema": "https://github.com/Project-MONAI/MONAI-extra-test-data/releases/download/0.8.1/"
        "meta_schema_20240725.json",
        "version": "0.1.0",
        "changelog": {"0.1.0": f"exported by Hasten {hasten.__version__} on {date.today().isoformat()}"},
        "monai_version": monai.__version__,
        "pytorch_version": torch.__version__.split("+")[0],
        "numpy_version": np.__version__,
        "required_packages_version": {"nibabel": "5.3", "pytorch-ignite": "0.5"},
        "name": "Segmentation",
        "task": f"Segmentation of {', '.join(names)}",
        "description": "Weights, preparation and inference of a network trained with Hasten",
        "authors": "unknown",
        "copyright": "unknown",
        "network_data_format": {
            "inputs": {"image": described(channels, format="magnitude", modality=", ".join(channels))},
            "outputs": {"pred": described(names, format="segmentation")},
        },
    }


_ACTIVATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "leakyrelu": ("LeakyReLU", {"negative_slope": 0.01, "inplace": True}),
    "relu": ("ReLU", {"inplace": True}),
    "prelu": ("PReLU", {}),
}
_SCHEMES = {"zscore": "ZScoreNormalization", "window": "CTNormalization", "none": "NoNormalization"}
_READERS = {"RAS": "NibabelIOWithReorient", None: "NibabelIO"}
"""Readers of nnU-Net, by prepare.orientation."""
_CONFIGURATION = "3d_fullres"
_RESAMPLING = {"is_seg": False, "order": 1, "order_z": 0, "force_separate_z": None}


def nnunet_files(content: dict[str, Any], config: PlannedRun, network: nn.Module, *, where: str) -> dict[str, bytes]:
    """The files of a model folder by their paths in it. content: of a best.pt, `where`, as `read_model` gives it.

    They are those of nnU-Net 2.8: plans.json, dataset.json and fold_0/checkpoint_final.pth. Raises ValueError for
    networks, images and preparations that nnU-Net does not have.
    """
    mistake = _mistake(content, config)
    if mistake is not None:
        _refuse(where, mistake)
    checkpoint = {
        "network_weights": {name: tensor.contiguous() for name, tensor in network.state_dict().items()},
        "trainer_name": "nnUNetTrainer",
        "current_epoch": content["step"],
        "init_args": {"configuration": _CONFIGURATION, "fold": 0},
        "inference_allowed_mirroring_axes": tuple(config.infer.flip_axes) or None,
        "optimizer_state": None,
        "grad_scaler_state": None,
        "logging": {},
        "_best_ema": None,
    }
    return {
        "plans.json": _json_bytes(_plans(content, config)),
        "dataset.json": _json_bytes(_dataset(content)),
        "fold_0/checkpoint_final.pth": _saved(checkpoint),
    }


def _mistake(content: dict[str, Any], config: PlannedRun) -> str | None:
    values, orientation = sorted(map(int, content["labels"])), config.prepare.orientation
    if is_own(config.network) or config.network.name not in NNUNET:
        return f"network.name={config.network.name} is not nnU-Net's ({' and '.join(NNUNET)} are)"
    if content["spatial_dims"] != 3:
        return "nnU-Net's folder is written of 3-D runs"
    if orientation not in _READERS:
        return f"nnU-Net turns images to RAS or leaves them as they are, not to prepare.orientation={orientation}"
    if values != list(range(len(values))):
        return f"nnU-Net needs label values without gaps, and these are {', '.join(map(str, values))}"
    spacing = config.prepare.spacing
    if spacing is None or (0 in spacing and not content.get("spacing")):
        return (
            "prepare.spacing leaves a side to each image, and the run does not state the spacing of its training cases"
        )
    return None


def _plans(content: dict[str, Any], config: PlannedRun) -> dict[str, Any]:
    patch, scaled = list(config.infer.patch), scalings(config.prepare, len(content["channels"]))
    median = content.get("spacing", {}).get("median", [1.0, 1.0, 1.0])
    assert config.prepare.spacing is not None
    spacing = [side or usual for side, usual in zip(config.prepare.spacing, median, strict=True)]
    configuration = {
        "data_identifier": f"nnUNetPlans_{_CONFIGURATION}",
        "preprocessor_name": "DefaultPreprocessor",
        "batch_size": config.sample.batch_size,
        "patch_size": patch,
        "median_image_size_in_voxels": patch,
        "spacing": spacing,
        "normalization_schemes": [_SCHEMES[scaling.kind] for scaling in scaled],
        "use_mask_for_norm": [False] * len(scaled),
        "batch_dice": False,
        "architecture": _architecture(config),
    }
    for what, changed in (("data", {"order": 3}), ("seg", {"is_seg": True}), ("probabilities", {})):
        configuration[f"resampling_fn_{what}"] = "resample_data_or_seg_to_shape"
        configuration[f"resampling_fn_{what}_kwargs"] = {**_RESAMPLING, **changed}
    return {
        "dataset_name": "Dataset000_Hasten",
        "plans_name": "nnUNetPlans",
        "original_median_spacing_after_transp": median,
        "original_median_shape_after_transp": patch,
        "image_reader_writer": _READERS[config.prepare.orientation],
        "transpose_forward": [0, 1, 2],
        "transpose_backward": [0, 1, 2],
        "configurations": {_CONFIGURATION: configuration},
        "experiment_planner_used": "ExperimentPlanner",
        "label_manager": "LabelManager",
        "foreground_intensity_properties_per_channel": {
            str(channel): _intensities(scaling) for channel, scaling in enumerate(scaled)
        },
    }


def _intensities(scaling: Scaling) -> dict[str, float]:
    """Statistics from which CTNormalization derives the window's 0 to 1; nothing else uses them."""
    low, high = scaling.window or (0.0, 1.0)
    return {"mean": low, "std": high - low, "percentile_00_5": low, "percentile_99_5": high}


def _architecture(config: PlannedRun) -> dict[str, Any]:
    """Arguments with which dynamic-network-architectures builds the network whose weights these are."""
    network, levels = config.network, len(config.network.channels)
    residual = network.name == "residualencoderunet"
    act, act_kwargs = _ACTIVATIONS[network.act or NETWORKS[network.name].act or "leakyrelu"]
    norm = "instancenorm.InstanceNorm3d" if network.norm == "instance" else "batchnorm.BatchNorm3d"
    blocks = network.blocks or ((1, 3, 4, *[6] * levels)[:levels] if residual else (2,) * levels)
    arguments = {
        "n_stages": levels,
        "features_per_stage": list(network.channels),
        "conv_op": "torch.nn.modules.conv.Conv3d",
        "kernel_sizes": [list(kernel) for kernel in network.kernel_size or ((3, 3, 3),) * levels],
        "strides": [[1, 1, 1], *(list(stride) for stride in network.strides)],
        "n_blocks_per_stage" if residual else "n_conv_per_stage": list(blocks),
        "n_conv_per_stage_decoder": [1 if residual else 2] * (levels - 1),
        "conv_bias": True,
        "norm_op": f"torch.nn.modules.{norm}",
        "norm_op_kwargs": {"eps": 1e-05, "affine": True},
        "dropout_op": "torch.nn.modules.dropout.Dropout3d" if network.dropout > 0 else None,
        "dropout_op_kwargs": {"p": network.dropout} if network.dropout > 0 else None,
        "nonlin": f"torch.nn.modules.activation.{act}",
        "nonlin_kwargs": act_kwargs,
    }
    return {
        "network_class_name": f"dynamic_network_architectures.architectures.unet.{NNUNET[network.name]}",
        "arch_kwargs": arguments,
        "_kw_requires_import": ["conv_op", "norm_op", "dropout_op", "nonlin"],
    }


def _dataset(content: dict[str, Any]) -> dict[str, Any]:
    labels: dict[str, Any] = {"background": 0}
    regions = content.get("regions", {})
    labels |= regions or {name: int(value) for value, name in content["labels"].items() if int(value) > 0}
    values = painted_values({name: tuple(each) for name, each in regions.items()}, content.get("region_values", {}))
    painted = {"regions_class_order": list(values.values())} if regions else {}
    return {
        "channel_names": {str(number): name for number, name in enumerate(content["channels"])},
        "labels": labels,
        **painted,
        "file_ending": ".nii.gz",
        "numTraining": 0,
    }
