# verdict: sync|compute
"""Imitates a user's 3-D kidney project on mmengine's Runner with an iteration-based loop: whole compressed volumes are
read and normalised for each patch, and hooks against running out of memory were copied from an issue's answers."""

import gc
import sys
import types

import numpy as np
import torch
import torch.nn.functional as F
from common import UNet, device, folder, write_volumes
from torch import nn
from torch.utils.data import Dataset

try:
    import cv2  # noqa: F401
except ImportError:  # mmengine only imports it
    sys.modules["cv2"] = types.ModuleType("cv2")
    sys.modules["cv2"].__dict__.update(setNumThreads=lambda number: None, __version__="none")

from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, HOOKS, MODELS, TRANSFORMS
from mmengine.runner import Runner


@TRANSFORMS.register_module()
class LoadVolume:
    """Reads a case, clips it at its percentiles and gives it zero mean and unit variance."""

    def __call__(self, item):
        with np.load(item["path"]) as case:
            image, label = case["image"], case["label"]
        image = np.clip(image, *np.percentile(image, (0.5, 99.5)))
        return {"image": (image - image.mean()) / (image.std() + 1e-8), "label": label}


@TRANSFORMS.register_module()
class RandomCrop3D:
    def __init__(self, size, flip=0.5):
        self.size, self.flip = size, flip

    def __call__(self, item):
        at = [int(torch.randint(side - self.size + 1, ())) for side in item["image"].shape]
        box = tuple(slice(a, a + self.size) for a in at)
        axes = [axis for axis in range(3) if float(torch.rand(())) < self.flip]
        return {key: np.flip(array[box], axes) for key, array in item.items()}


@TRANSFORMS.register_module()
class PackVolume:
    def __call__(self, item):
        image = torch.from_numpy(np.ascontiguousarray(item["image"], np.float32))[None]
        return {"inputs": image, "labels": torch.from_numpy(np.ascontiguousarray(item["label"])).long()}


@DATASETS.register_module()
class VolumeDataset(Dataset):
    def __init__(self, paths, pipeline):
        self.paths, self.pipeline = paths, [TRANSFORMS.build(step) for step in pipeline]

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        item = {"path": self.paths[index]}
        for step in self.pipeline:
            item = step(item)
        return item


@MODELS.register_module()
class Segmentor3D(BaseModel):
    def __init__(self, widths=(8, 16, 32), data_preprocessor=None):
        super().__init__(data_preprocessor)
        # label: conv-bias-before-norm both likely
        self.net = UNet(3, 1, 2, widths, bias=True, norm=nn.InstanceNorm3d)

    def forward(self, inputs, labels=None, mode="tensor"):
        logits = self.net(inputs)
        if mode == "loss":
            p = logits.float().softmax(1)[:, 1]
            dice = 1 - (2 * (p * labels).sum() + 1) / (p.sum() + labels.sum() + 1)
            return {"loss_ce": F.cross_entropy(logits, labels), "loss_dice": dice}
        return logits.argmax(1) if mode == "predict" else logits


@HOOKS.register_module()
class FreeMemoryHook(Hook):
    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        # label: gc-collect both sure
        gc.collect()
        # label: empty-cache gpu sure
        torch.cuda.empty_cache()
        if runner.iter % 10 == 0:
            print("step", runner.iter, {k: round(float(v), 4) for k, v in outputs.items()}, flush=True)


def main():
    # label: deterministic gpu likely
    torch.backends.cudnn.deterministic = True
    paths = [str(path) for path in write_volumes(folder("kidney"), 12, (80, 80, 64), compressed=True)]
    steps = [{"type": "LoadVolume"}, {"type": "RandomCrop3D", "size": 32}, {"type": "PackVolume"}]
    amp = {"type": "AmpOptimWrapper"} if device.type == "cuda" else {"type": "OptimWrapper"}
    optimizer = {"type": "AdamW", "lr": 1e-3, "weight_decay": 1e-4}
    cfg = Config({
        "model": {"type": "Segmentor3D", "data_preprocessor": {"type": "BaseDataPreprocessor"}},
        "work_dir": str(folder("work")), "log_level": "WARNING", "default_scope": "mmengine",
        # label: no-workers both sure; heavy-items both sure; uncached-items both sure
        # label: small-batch gpu likely; unpinned-memory gpu maybe
        "train_dataloader": {
            "batch_size": 2, "num_workers": 0, "collate_fn": {"type": "default_collate"},
            "dataset": {"type": "VolumeDataset", "paths": paths, "pipeline": steps},
            "sampler": {"type": "InfiniteSampler", "shuffle": True},
        },
        "train_cfg": {"by_epoch": False, "max_iters": 400},
        # label: host-read gpu maybe
        "optim_wrapper": {**amp, "optimizer": optimizer, "clip_grad": {"max_norm": 12.0}},
        "default_hooks": {"checkpoint": {"type": "CheckpointHook", "interval": 100, "by_epoch": False}},
        "custom_hooks": [{"type": "FreeMemoryHook"}],
        # label: cudnn-benchmark-off gpu likely
        "randomness": {"seed": 2024}, "env_cfg": {"cudnn_benchmark": False},
    })  # fmt: skip
    Runner.from_cfg(cfg).train()


if __name__ == "__main__":
    main()
