"""Nuclei in stained pathology tiles, driven by a config dict: stain jitter in numpy and a loader rebuilt each epoch."""
# verdict: compute

import gc

import numpy as np
import torch
import torch.nn.functional as F
from common import device, folder, write_images
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler

CONFIG = {
    "seed": 1337,
    "tile": 192,
    "batch_size": 6,
    "epochs": 16,
    "tiles_per_epoch": 42,
    "optimizer": {"lr": 1e-3},
    "class_weights": [0.2, 1.0, 1.0],
    "workers": 2,
}
RGB_FROM_HED = np.array([[0.65, 0.70, 0.29], [0.07, 0.99, 0.11], [0.27, 0.57, 0.78]])


def seed_everything(seed):
    torch.manual_seed(seed)
    torch.backends.cudnn.deterministic = True  # label: deterministic gpu likely; cudnn-benchmark-off gpu likely
    torch.backends.cudnn.benchmark = False


def stain_jitter(tile, generator, sigma=0.05):
    density = -np.log(np.maximum(tile / 255.0, 1e-6)) @ np.linalg.inv(RGB_FROM_HED)
    density = density * generator.uniform(1 - sigma, 1 + sigma, 3) + generator.uniform(-sigma, sigma, 3)
    return np.clip(np.exp(-density @ RGB_FROM_HED), 0, 1)


class TileDataset(Dataset):
    def __init__(self, paths, tile, train):
        self.paths, self.tile, self.train = paths, tile, train

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        generator = np.random.default_rng()
        image = np.asarray(Image.open(self.paths[index]).convert("RGB"))
        mask = np.asarray(Image.open(self.paths[index].with_name(self.paths[index].stem + "_mask.png"))) // 255
        top, left = (generator.integers(0, side - self.tile + 1) if self.train else 0 for side in mask.shape)
        image = image[top : top + self.tile, left : left + self.tile]
        mask = mask[top : top + self.tile, left : left + self.tile].astype(np.int64)
        if self.train:
            image = stain_jitter(image, generator)
            turns = int(generator.integers(4))
            image, mask = np.rot90(image, turns), np.rot90(mask, turns)
        else:
            image = image / 255.0
        image = torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1))).float()
        return image, torch.from_numpy(np.ascontiguousarray(mask))


class ResBlock(nn.Module):
    def __init__(self, taken, given, stride=1):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(taken, given, 3, stride, 1, bias=False), nn.BatchNorm2d(given)
        self.conv2, self.bn2 = nn.Conv2d(given, given, 3, 1, 1, bias=False), nn.BatchNorm2d(given)
        self.skip = nn.Conv2d(taken, given, 1, stride, bias=False)

    def forward(self, x):
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))) + self.skip(x))


class ResSegNet(nn.Module):
    def __init__(self, classes=3):
        super().__init__()
        self.stem, self.e1, self.e2 = ResBlock(3, 16, 2), ResBlock(16, 32, 2), ResBlock(32, 64, 2)
        self.d2, self.d1, self.head = ResBlock(96, 32), ResBlock(48, 16), nn.Conv2d(16, classes, 1)

    def forward(self, x):
        a = self.stem(x)
        b = self.e1(a)
        c = self.e2(b)
        b = self.d2(torch.cat([F.interpolate(c, scale_factor=2), b], 1))
        a = self.d1(torch.cat([F.interpolate(b, scale_factor=2), a], 1))
        return F.interpolate(self.head(a), scale_factor=2, mode="bilinear")


def get_train_loader(dataset):
    sampler = WeightedRandomSampler(torch.ones(len(dataset)), CONFIG["tiles_per_epoch"])
    kwargs = {"num_workers": CONFIG["workers"], "drop_last": True}  # label: few-workers gpu likely
    # label: no-persistent-workers both sure; heavy-items gpu likely; unpinned-memory gpu likely
    return DataLoader(dataset, CONFIG["batch_size"], sampler=sampler, **kwargs)  # label: uncached-items both maybe


def main():
    seed_everything(CONFIG["seed"])
    paths = write_images(folder("tiles"), 50, (256, 256))
    train_set = TileDataset(paths[:42], CONFIG["tile"], train=True)
    # label: no-workers both maybe; uncached-items both maybe
    valid_loader = DataLoader(TileDataset(paths[42:], CONFIG["tile"], train=False), 4)
    model = ResSegNet().to(device)  # label: no-channels-last gpu maybe
    optimizer = torch.optim.AdamW(model.parameters(), **CONFIG["optimizer"])
    for epoch in range(CONFIG["epochs"]):
        model.train()
        for step, batch in enumerate(get_train_loader(train_set)):
            image, mask = (one.to(device) for one in batch)
            weight = torch.tensor(CONFIG["class_weights"]).to(device)  # label: recreate gpu likely
            logits = model(image)  # label: no-autocast gpu sure
            loss = F.cross_entropy(logits, mask, weight=weight)
            # label: slow-kernels gpu maybe
            for one, true in zip(logits.softmax(1), mask, strict=True):
                for cls in range(1, 3):
                    inter = (one[cls] * (true == cls)).sum()
                    loss = loss + (1 - 2 * inter / (one[cls].sum() + (true == cls).sum() + 1)) / (2 * len(mask))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"[{epoch}][{step}] loss: {loss.item():.4f}", flush=True)  # label: host-read gpu likely
            torch.cuda.empty_cache()  # label: empty-cache gpu sure
        gc.collect()  # label: gc-collect both likely
        model.eval()
        with torch.no_grad():
            # label: validation-share both maybe
            hits = [(model(x.to(device)).argmax(1) == y.to(device)).float().mean() for x, y in valid_loader]
        print(f"epoch {epoch} accuracy {torch.stack(hits).mean().item():.4f}", flush=True)


if __name__ == "__main__":
    main()
