# verdict: compute|input
"""Imitates users' code for 3-D vessel segmentation with accelerate: NIfTI files read by nibabel in each item, a
boundary loss whose distance maps scipy makes in the loop, class weights built in the loss, fp16 on CUDA."""

import nibabel as nib
import numpy as np
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from common import UNet, device, folder, volume
from scipy.ndimage import distance_transform_edt
from torch.utils.data import DataLoader, Dataset

CONFIG = {
    "shape": (112, 112, 80), "patch": (32, 32, 32), "cases": 22, "batch_size": 2, "epochs": 20, "lr": 2e-3,
    "alpha": 0.01, "class_weights": [0.2, 0.8], "val_every": 2,
}  # fmt: skip


def make_nifti(path, count, shape):
    random, made = np.random.default_rng(11), []
    for number in range(count):
        image, label = volume(random, shape)
        for kind, array in (("img", (100 * image).astype(np.int16)), ("seg", label)):
            nib.save(nib.Nifti1Image(array, np.diag([0.7, 0.7, 1.0, 1.0])), path / f"case{number:03d}_{kind}.nii.gz")
        made.append(path / f"case{number:03d}_img.nii.gz")
    return made


class VesselDataset(Dataset):
    def __init__(self, files, patch, mode):
        self.files, self.patch, self.mode = files, patch, mode

    def __len__(self):
        return 2 * len(self.files) if self.mode == "train" else len(self.files)

    def __getitem__(self, index):
        file = self.files[index % len(self.files)]
        image = nib.load(file).get_fdata()
        label = nib.load(str(file).replace("_img", "_seg")).get_fdata()
        low, high = np.percentile(image, [1, 99])
        image = (np.clip(image, low, high) - low) / (high - low)
        if self.mode == "train":
            at = [torch.randint(s - p + 1, ()).item() for s, p in zip(image.shape, self.patch, strict=True)]
        else:
            at = [(s - p) // 2 for s, p in zip(image.shape, self.patch, strict=True)]
        box = tuple(slice(a, a + p) for a, p in zip(at, self.patch, strict=True))
        # float64, as get_fdata gave it
        return torch.from_numpy(image[box][None].copy()), torch.from_numpy(label[box].copy())


def signed_distance(mask):
    """Of each class of each case of the batch, as in the boundary loss: negative inside."""
    maps = np.zeros((len(mask), 2, *mask.shape[1:]), np.float32)
    for n, c in np.ndindex(maps.shape[:2]):
        inside = mask[n] == c
        if inside.any():
            maps[n, c] = distance_transform_edt(~inside) * ~inside - (distance_transform_edt(inside) - 1) * inside
    return maps


def compute_loss(logits, target, distances, alpha):
    # label: recreate gpu likely
    weights = torch.tensor(CONFIG["class_weights"]).to(logits.device)
    p = logits.float().softmax(1)
    ce = F.cross_entropy(logits.float(), target, weight=weights)
    dice = 1 - (2 * (p[:, 1] * target).sum() + 1) / (p[:, 1].sum() + target.sum() + 1)
    return ce + dice + alpha * (p * distances).mean()


def validate(model, loader):
    model.eval()
    dices = []
    # label: validation-graph both likely
    for image, target in loader:
        logits = model(image.float())
        guess = logits.argmax(1)
        dices.append((2 * (guess * target).sum() / (guess.sum() + target.sum() + 1)).item())
    model.train()
    return float(np.mean(dices))


def main(config):
    accelerator = Accelerator(mixed_precision="fp16" if device.type == "cuda" else "no")
    # label: cudnn-benchmark-off gpu likely
    torch.manual_seed(0)
    files = make_nifti(folder("vessels"), config["cases"], config["shape"])
    train_set = VesselDataset(files[:20], config["patch"], "train")
    val_set = VesselDataset(files[20:], config["patch"], "val")
    # label: heavy-items both sure; no-workers both sure; uncached-items both sure; unpinned-memory gpu maybe
    # label: small-batch gpu likely
    train_loader = DataLoader(train_set, batch_size=config["batch_size"], shuffle=True, drop_last=True)
    val_loader = DataLoader(val_set, batch_size=1)
    model = UNet(3, 1, 2, (8, 16, 32))
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"], weight_decay=1e-5)
    model, optimizer, train_loader, val_loader = accelerator.prepare(model, optimizer, train_loader, val_loader)

    step, best, output = 0, 0.0, folder("output")
    for epoch in range(config["epochs"]):
        running = torch.zeros((), device=accelerator.device)
        for image, target in train_loader:
            # label: late-cast both likely
            image, target = image.float(), target.long()
            # label: host-metric both sure; host-read gpu likely
            distances = torch.from_numpy(signed_distance(target.cpu().numpy())).to(accelerator.device)
            logits = model(image)
            loss = compute_loss(logits, target, distances, min(1.0, config["alpha"] * (epoch + 1)))
            optimizer.zero_grad()
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 12.0)
            optimizer.step()
            running += loss.detach()
            step += 1
        accelerator.print(f"step {step} epoch {epoch} loss {running.item() / len(train_loader):.4f}", flush=True)
        if epoch % config["val_every"] == config["val_every"] - 1:
            dice = validate(model, val_loader)
            if dice > best:
                best = dice
                accelerator.save(accelerator.unwrap_model(model).state_dict(), output / "best.pt")
            accelerator.print(f"  val dice {dice:.4f} best {best:.4f}", flush=True)


if __name__ == "__main__":
    main(CONFIG)
