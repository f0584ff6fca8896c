# verdict: sync|compute
"""Imitates a config of an mm-style segmentation library run by mmengine's Runner: a registered pipeline over PNG files,
batches of two as in the library's default, a visualisation hook of the user's own that draws every few iterations."""

import sys
import types

import matplotlib
import numpy as np
import torch
import torch.nn.functional as F
from common import UNet, folder, write_images
from PIL import Image
from torch.utils.data import Dataset

try:
    import cv2  # noqa: F401
except ImportError:  # mmengine only imports it
    sys.modules["cv2"] = types.ModuleType("cv2")
    sys.modules["cv2"].__dict__.update(setNumThreads=lambda number: None, __version__="none")

from mmengine.config import Config
from mmengine.evaluator import BaseMetric
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, HOOKS, METRICS, MODELS
from mmengine.runner import Runner

matplotlib.use("Agg")
import matplotlib.pyplot as plt

FILES = write_images(folder("endoscopy"), 72, (320, 256))


@DATASETS.register_module()
class EndoscopyDataset(Dataset):
    def __init__(self, part, crop, scales=None):
        self.files, self.crop, self.scales = FILES[:64] if part == "train" else FILES[64:], crop, scales

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        image = Image.open(self.files[index])
        label = Image.open(str(self.files[index]).replace(".png", "_mask.png"))
        left, top = (image.width - self.crop) // 2, (image.height - self.crop) // 2
        if self.scales:  # RandomResize, RandomCrop
            ratio = float(torch.empty(()).uniform_(*self.scales))
            size = (int(image.width * ratio), int(image.height * ratio))
            image, label = image.resize(size, Image.BILINEAR), label.resize(size, Image.NEAREST)
            left = int(torch.randint(size[0] - self.crop + 1, ()))
            top = int(torch.randint(size[1] - self.crop + 1, ()))
        box = (left, top, left + self.crop, top + self.crop)
        image, label = np.array(image.crop(box)), np.array(label.crop(box)) > 127
        return {"inputs": torch.from_numpy(image).permute(2, 0, 1), "labels": torch.from_numpy(label).long()}


@MODELS.register_module()
class EncoderDecoder(BaseModel):
    def __init__(self, widths, data_preprocessor=None):
        super().__init__(data_preprocessor)
        self.net = UNet(2, 3, 2, widths)
        self.register_buffer("mean", torch.tensor([123.675, 116.28, 103.53]).view(3, 1, 1), False)
        self.register_buffer("std", torch.tensor([58.395, 57.12, 57.375]).view(3, 1, 1), False)

    def forward(self, inputs, labels=None, mode="tensor"):
        logits = self.net((inputs.float() - self.mean) / self.std)
        if mode == "loss":
            return {"loss_ce": F.cross_entropy(logits, labels), "acc_seg": (logits.argmax(1) == labels).float().mean()}
        return list(zip(logits.argmax(1), labels, strict=True)) if mode == "predict" else logits


@METRICS.register_module()
class DiceMetric(BaseMetric):
    def process(self, data_batch, data_samples):
        for guess, label in data_samples:
            self.results.append((int((guess * label).sum()), int(guess.sum() + label.sum())))

    def compute_metrics(self, results):
        hit, total = np.sum(results, 0)
        return {"dice": 2 * hit / max(total, 1)}


@HOOKS.register_module()
class SegVisHook(Hook):
    """Input, ground truth and prediction of the first image of the batch."""

    def __init__(self, interval, out):
        self.interval, self.out = interval, out

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        if self.every_n_train_iters(runner, self.interval):
            data = runner.model.data_preprocessor(data_batch, False)
            with torch.no_grad():
                # label: repeated-forward both maybe
                guess = runner.model(**data, mode="predict")[0][0].cpu()
            # label: sync-plot both sure
            figure, axes = plt.subplots(1, 3, figsize=(9, 3))
            pictures = data_batch["inputs"][0].permute(1, 2, 0), data_batch["labels"][0], guess
            for axis, picture in zip(axes, pictures, strict=True):
                axis.imshow(picture)
                axis.axis("off")
            figure.savefig(f"{self.out}/{runner.iter}.png", dpi=100)
            plt.close(figure)
            print("step", runner.iter, {k: round(float(v), 4) for k, v in outputs.items()}, flush=True)


work = str(folder("work"))
loader = {"batch_size": 2, "num_workers": 2, "persistent_workers": True, "collate_fn": {"type": "default_collate"}}
cfg = Config({
    # label: no-channels-last gpu maybe
    "model": {"type": "EncoderDecoder", "widths": (12, 24, 48), "data_preprocessor": {"type": "BaseDataPreprocessor"}},
    "work_dir": work,
    # label: unpinned-memory gpu likely; small-batch gpu sure; uncached-items gpu likely; heavy-items gpu maybe
    "train_dataloader": {**loader, "sampler": {"type": "DefaultSampler", "shuffle": True},
                         "dataset": {"type": "EndoscopyDataset", "part": "train", "crop": 128, "scales": (0.5, 2.0)}},
    "val_dataloader": {**loader, "sampler": {"type": "DefaultSampler", "shuffle": False},
                       "dataset": {"type": "EndoscopyDataset", "part": "val", "crop": 128}},
    "val_evaluator": {"type": "DiceMetric"}, "val_cfg": {"type": "ValLoop"},
    "train_cfg": {"by_epoch": True, "max_epochs": 30, "val_interval": 4},
    # label: no-autocast gpu sure
    "optim_wrapper": {"type": "OptimWrapper", "optimizer": {"type": "SGD", "lr": 0.01, "momentum": 0.9}},
    # label: host-read gpu likely; checkpoint-stall both maybe
    "default_hooks": {"logger": {"type": "LoggerHook", "interval": 1}, "checkpoint": {"type": "CheckpointHook"}},
    "custom_hooks": [{"type": "SegVisHook", "interval": 2, "out": work}],
    "env_cfg": {"cudnn_benchmark": True}, "log_level": "WARNING", "default_scope": "mmengine",
})  # fmt: skip

if __name__ == "__main__":
    Runner.from_cfg(cfg).train()
