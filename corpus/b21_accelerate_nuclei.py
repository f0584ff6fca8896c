# verdict: input|validation
"""Imitates an accelerate example changed for nuclei segmentation (2-D): Accelerator.prepare, elastic deformation in the
data set, gather_for_metrics with sklearn scores in every step, and save_state after each epoch."""

import argparse

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from common import UNet, folder, write_images
from PIL import Image
from scipy.ndimage import gaussian_filter, map_coordinates
from sklearn.metrics import f1_score, jaccard_score
from torch import nn
from torch.utils.data import DataLoader, Dataset


def elastic_transform(image, mask, alpha, sigma, random):
    shape = mask.shape
    dx = gaussian_filter(random.uniform(-1, 1, shape), sigma) * alpha
    dy = gaussian_filter(random.uniform(-1, 1, shape), sigma) * alpha
    y, x = np.meshgrid(np.arange(shape[0]), np.arange(shape[1]), indexing="ij")
    where = np.stack([y + dy, x + dx])
    image = np.stack([map_coordinates(image[..., c], where, order=1, mode="reflect") for c in range(3)], -1)
    return image, map_coordinates(mask, where, order=0, mode="reflect")


class NucleiDataset(Dataset):
    def __init__(self, paths, size=128, train=True):
        self.paths, self.size, self.train = paths, size, train
        self.random = np.random.default_rng(3)

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        image = np.array(Image.open(self.paths[i]).convert("RGB"))
        mask = np.array(Image.open(str(self.paths[i]).replace(".png", "_mask.png")))
        if self.train:
            image, mask = elastic_transform(image, mask, 60, 6, self.random)
        image = np.array(Image.fromarray(image.astype(np.uint8)).resize((self.size, self.size)))
        mask = np.array(Image.fromarray(mask).resize((self.size, self.size), Image.NEAREST))
        return {
            "pixel_values": torch.tensor(image / 255.0, dtype=torch.float32).permute(2, 0, 1),
            "labels": torch.tensor(mask > 127, dtype=torch.float32)[None],
        }


def evaluate(accelerator, model, loader):
    model.eval()
    hits, total = 0.0, 0.0
    for batch in loader:
        with torch.no_grad():
            outputs = model(batch["pixel_values"])
        guess, truth = accelerator.gather_for_metrics((outputs > 0, batch["labels"] > 0.5))
        hits += 2 * (guess & truth).sum().item()
        total += guess.sum().item() + truth.sum().item()
    return hits / max(total, 1)


def training_function(config, args):
    # label: no-autocast gpu sure; cudnn-benchmark-off gpu likely
    accelerator = Accelerator(mixed_precision=args.mixed_precision, gradient_accumulation_steps=2)
    set_seed(config["seed"])
    paths = write_images(folder("nuclei"), 56, (360, 360))
    train_data, eval_data = NucleiDataset(paths[:48]), NucleiDataset(paths[48:], train=False)
    # label: heavy-items both sure; few-workers gpu sure; few-workers cores2 likely; sync-copy gpu maybe
    # label: no-persistent-workers gpu likely; no-persistent-workers cpu maybe
    # label: small-batch gpu sure; uncached-items both maybe
    train_loader = DataLoader(train_data, config["batch_size"], shuffle=True, num_workers=1, pin_memory=True)
    eval_loader = DataLoader(eval_data, config["batch_size"])

    # label: no-channels-last gpu maybe
    model = UNet(2, 3, 1, (8, 16, 32))
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 10 * config["lr"], config["num_epochs"] * 48)
    criterion = nn.BCEWithLogitsLoss()
    model, optimizer, train_loader, eval_loader, scheduler = accelerator.prepare(
        model, optimizer, train_loader, eval_loader, scheduler
    )
    output = folder("accelerate")
    overall_step = 0

    for epoch in range(config["num_epochs"]):
        model.train()
        total_loss, scores = 0.0, []
        for batch in train_loader:
            with accelerator.accumulate(model):
                outputs = model(batch["pixel_values"])
                loss = criterion(outputs, batch["labels"])
                total_loss += loss.detach().float()
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            guess, truth = accelerator.gather_for_metrics((outputs.sigmoid() > 0.5, batch["labels"] > 0.5))
            # label: host-read gpu likely
            guess, truth = guess.cpu().numpy().ravel(), truth.cpu().numpy().ravel()
            # label: host-metric both sure
            scores.append((f1_score(truth, guess, zero_division=0), jaccard_score(truth, guess, zero_division=0)))
            overall_step += 1
        # label: training-cases-validated both sure; validation-share both likely
        train_dice = evaluate(accelerator, model, train_loader)
        eval_dice = evaluate(accelerator, model, eval_loader)
        # label: checkpoint-stall both maybe
        accelerator.save_state(output / f"epoch_{epoch}")
        f1, iou = np.mean(scores, 0)
        accelerator.print(f"step {overall_step}: loss {total_loss.item() / len(train_loader):.3f} f1 {f1:.3f} "
                          f"iou {iou:.3f} train {train_dice:.3f} eval {eval_dice:.3f}", flush=True)  # fmt: skip


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mixed_precision", default="no", choices=["no", "fp16", "bf16"])
    args = parser.parse_args()
    config = {"lr": 1e-3, "num_epochs": 40, "seed": 42, "batch_size": 2}
    training_function(config, args)


if __name__ == "__main__":
    main()
