"""What other tools call the settings, for the remedy of a name that does not exist."""

from __future__ import annotations

_WORDS = {
    "data.source": "data_dir data_path data_root dataroot dataset dataset_path root train_dir input input_dir",
    "data.split.fraction": "val_split val_fraction val_ratio validation_split test_size",
    "data.split.fold": "fold folds kfold",
    "data.split.num_folds": "n_folds num_folds k_folds n_splits",
    "prepare.spacing": "pixdim spacing voxel_size voxel_spacing target_spacing resample",
    "prepare.intensity": "normalization normalisation normalize norm_scheme scaling",
    "prepare.num_threads": "workers num_workers n_workers num_proc n_jobs threads num_threads cpus",
    "cache.dir": "cache_dir",
    "sample.patch": "patch_size crop_size roi_size roi image_size img_size input_size crop spatial_size",
    "sample.batch_size": "bs batch batchsize batch_size train_batch_size per_device_train_batch_size",
    "augment.preset": "augmentation augmentations aug transforms transform",
    "network.name": "model model_name arch architecture net backbone",
    "network.channels": "filters num_filters base_filters features feature_channels width depth levels num_levels",
    "network.weights": "pretrained pretrained_weights checkpoint ckpt resume_from weights load_from init_from",
    "loss.name": "loss criterion loss_fn loss_function loss_name",
    "train.steps": "epoch epochs num_epochs n_epochs max_epochs iterations iters num_iterations max_iterations "
    "max_iters max_steps num_steps total_steps",
    "train.learning_rate": "lr learningrate max_lr base_lr initial_lr init_lr learning_rate",
    "train.weight_decay": "wd weightdecay l2",
    "train.optimizer": "optim opt optimiser",
    "train.schedule": "scheduler lr_scheduler lr_schedule",
    "train.precision": "amp fp16 bf16 mixed_precision half",
    "train.device": "gpu gpus num_gpus n_gpus ngpus gpu_ids devices accelerator cuda device",
    "train.clip_norm": "grad_clip clip_grad gradient_clip gradient_clip_val max_norm max_grad_norm",
    "train.accumulate": "grad_accum accumulation_steps accumulate_grad_batches gradient_accumulation_steps",
    "train.validate_every": "val_every val_interval val_freq eval_every check_val_every_n_epoch val_check_interval",
    "train.checkpoint_every": "save_every save_freq save_interval save_steps",
    "train.budget": "time time_limit max_time max_hours max_minutes timeout duration wall_time",
    "train.seed": "seed random_seed random_state manual_seed",
    "infer.flip_axes": "tta mirror mirroring test_time_augmentation",
    "infer.overlap": "sw_overlap tile_overlap",
    "infer.batch_size": "sw_batch_size infer_batch_size eval_batch_size val_batch_size",
    "observe.trackers": "logger loggers wandb tensorboard mlflow tracker",
}
_REMOVED = {
    "train.max_seconds": "it is train.budget now: give the time there, or leave it out if it is null or both are set",
    "sample.compile": "it was removed: leave it out",
    "augment.compile": "it was removed: leave it out",
}
"""Remedies for fields of earlier versions, as their run.yaml has them all."""
_FIELDS = {word: field for field, words in _WORDS.items() for word in words.split()}


def field_called(word: str) -> str | None:
    """The dotted field that other tools give this name, in any spelling; None for a word that is not known."""
    return _FIELDS.get(word.lstrip("-").lower().replace("-", "_"))


def removed(field: str) -> str | None:
    """What to do about a dotted field that an earlier version had; None for others."""
    return _REMOVED.get(field)
