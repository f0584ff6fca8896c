"""A trained network as nnU-Net's model folder, which its own predictor loads."""

from __future__ import annotations

import io
from typing import Any

import torch
from torch import nn

from hasten.config.networks import NETWORKS, is_own
from hasten.config.regions import painted_values
from hasten.config.scalings import Scaling, scalings
from hasten.config.settled import PlannedRun
from hasten.nets.build import NNUNET
from hasten.prediction.bundle import json_bytes

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
        raise ValueError(f"{where}: {mistake}; export it as .onnx or .safetensors")
    data = io.BytesIO()
    state = {name: tensor.contiguous() for name, tensor in network.state_dict().items()}
    checkpoint = {
        "network_weights": state,
        "trainer_name": "nnUNetTrainer",
        "current_epoch": content["step"],
        "init_args": {"configuration": _CONFIGURATION, "fold": 0},
        "inference_allowed_mirroring_axes": tuple(config.infer.flip_axes) or None,
        "optimizer_state": None,
        "grad_scaler_state": None,
        "logging": {},
        "_best_ema": None,
    }
    torch.save(checkpoint, data)
    return {
        "plans.json": json_bytes(_plans(content, config)),
        "dataset.json": json_bytes(_dataset(content)),
        "fold_0/checkpoint_final.pth": data.getvalue(),
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
