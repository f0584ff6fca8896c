"""nnU-Net 2: its preprocessor, its predictor and its export, all as they come, with plans that ask for the same.

This is nnU-Net's default call, whose preprocessing and export have processes of their own; their start and their memory
count.

Its CT normalization with a mean and deviation of the window's gives the same input; as its plans have it by default,
scores are resampled linearly by scikit-image. Mirroring is off, as in the other arms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def end(job: dict[str, Any]) -> Callable[[], object]:
    import torch
    from nnunetv2.inference.predict_from_raw_data import nnUNetPredictor

    from benchmarks.predictions.scene import network_of

    network, how = network_of(job)
    plans, configuration, dataset = _plans(job, how.window)
    predictor = nnUNetPredictor(
        tile_step_size=1 - how.overlap, use_gaussian=True, use_mirroring=False,
        perform_everything_on_device=job["device"] != "cpu", device=torch.device(job["device"]), allow_tqdm=False,
    )  # fmt: skip
    weights = [network.state_dict()]
    predictor.manual_initialization(network, plans, configuration, weights, dataset, "", None)
    images, targets = [[str(image)] for image in job["images"]], [f"{job['out']}/{name}" for name in job["names"]]
    return lambda: predictor.predict_from_files(images, targets)


def _plans(job: dict[str, Any], patch: tuple[int, ...]) -> tuple[Any, Any, dict[str, Any]]:
    from nnunetv2.utilities.plans_handling.plans_handler import PlansManager

    from benchmarks.predictions.scene import CLASSES, WINDOW

    low, high = WINDOW
    linear = {"is_seg": False, "order": 1, "order_z": 0, "force_separate_z": None}
    configuration = {
        "data_identifier": "", "preprocessor_name": "DefaultPreprocessor", "batch_size": 2, "patch_size": list(patch),
        "median_image_size_in_voxels": [1, 1, 1], "spacing": list(job["spacing"]),
        "normalization_schemes": ["CTNormalization"], "use_mask_for_norm": [False],
        "resampling_fn_data": "resample_data_or_seg_to_shape", "resampling_fn_data_kwargs": {**linear, "order": 3},
        "resampling_fn_seg": "resample_data_or_seg_to_shape", "resampling_fn_seg_kwargs": {**linear, "is_seg": True},
        "resampling_fn_probabilities": "resample_data_or_seg_to_shape", "resampling_fn_probabilities_kwargs": linear,
        "architecture": {"network_class_name": "", "arch_kwargs": {}, "_kw_requires_import": []}, "batch_dice": False,
    }  # fmt: skip
    plans = PlansManager({
        "dataset_name": "organs", "plans_name": "same", "image_reader_writer": "NibabelIO",
        "transpose_forward": [0, 1, 2], "transpose_backward": [0, 1, 2], "configurations": {"3d": configuration},
        "experiment_planner_used": "", "label_manager": "LabelManager",
        "foreground_intensity_properties_per_channel": {
            "0": {"mean": low, "std": high - low, "percentile_00_5": low, "percentile_99_5": high},
        },
    })  # fmt: skip
    labels = {"background": 0, **{f"organ{value}": value for value in range(1, CLASSES)}}
    dataset = {"labels": labels, "channel_names": {"0": "CT"}, "file_ending": ".nii.gz"}
    return plans, plans.get_configuration("3d"), dataset
