"""Brain tumour regions in four-channel MR, as challenge code: seeded, endless iterations, scores logged each step."""
# verdict: compute

import logging
import sys

import numpy as np
import torch
import torch.nn.functional as F
from common import device, folder, volume
from scipy.ndimage import binary_erosion, distance_transform_edt
from torch import nn
from torch.utils.data import DataLoader, Dataset

logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="[%(asctime)s] %(message)s", datefmt="%H:%M:%S")
REGIONS = {"WT": (1, 2, 3), "TC": (2, 3), "ET": (3,)}
cfg = {"crop": 40, "batch": 2, "max_iterations": 300, "base_lr": 2e-4, "seed": 1234, "val_every": 60, "save_every": 100}

torch.manual_seed(cfg["seed"])
torch.backends.cudnn.benchmark = False
torch.backends.cudnn.deterministic = True  # label: deterministic gpu likely; cudnn-benchmark-off gpu likely
torch.autograd.set_detect_anomaly(True)  # label: anomaly-detection both sure


class BraTumour(Dataset):
    def __init__(self, root, names, crop=None):
        self.root, self.names, self.crop = root, names, crop

    def __len__(self):
        return len(self.names)

    def __getitem__(self, i):
        image, label = (np.load(self.root / f"{self.names[i]}_{k}.npy", mmap_mode="r") for k in ("image", "label"))
        if self.crop:
            z, y, x = (np.random.default_rng().integers(0, s - self.crop + 1) for s in label.shape)
            c = self.crop
            image, label = image[:, z : z + c, y : y + c, x : x + c], label[z : z + c, y : y + c, x : x + c]
        target = np.stack([np.isin(label, values) for values in REGIONS.values()])
        return torch.from_numpy(np.array(image)), torch.from_numpy(target.astype(np.float32))


def prepare(root, cases=20, side=64):
    random = np.random.default_rng(5)
    for case in range(cases):
        channels = [volume(random, (side,) * 3)[0] for _ in range(4)]
        label = np.zeros((side,) * 3, np.uint8)
        for value, (low, high) in enumerate(((16, 40), (20, 34), (24, 30)), start=1):
            label[low:high, low:high, low:high] = value
        np.save(root / f"case{case}_image.npy", np.stack(channels))
        np.save(root / f"case{case}_label.npy", label)
    return [f"case{case}" for case in range(cases)]


def block(i, o, stride=1):
    return nn.Sequential(nn.Conv3d(i, o, 3, stride, 1), nn.InstanceNorm3d(o, affine=True), nn.LeakyReLU(0.01, True))


class RegionNet(nn.Module):
    def __init__(self, w=12):
        super().__init__()
        # label: conv-bias-before-norm both likely
        self.e0, self.e1 = (
            nn.Sequential(block(4, w), block(w, w)),
            nn.Sequential(block(w, 2 * w, 2), block(2 * w, 2 * w)),
        )
        self.e2 = nn.Sequential(block(2 * w, 4 * w, 2), block(4 * w, 4 * w))
        self.up1, self.up0 = nn.ConvTranspose3d(4 * w, 2 * w, 2, 2), nn.ConvTranspose3d(2 * w, w, 2, 2)
        self.d1, self.d0, self.out = block(4 * w, 2 * w), block(2 * w, w), nn.Conv3d(w, 3, 1)

    def forward(self, x):
        a = self.e0(x)
        b = self.e1(a)
        b = self.d1(torch.cat([self.up1(self.e2(b)), b], 1))
        return self.out(self.d0(torch.cat([self.up0(b), a], 1)))


def hd95_np(p, t):
    if not p.any() or not t.any():
        return 373.13
    edge_p, edge_t = p ^ binary_erosion(p), t ^ binary_erosion(t)
    both = np.concatenate([distance_transform_edt(~edge_t)[edge_p], distance_transform_edt(~edge_p)[edge_t]])
    return float(np.percentile(both, 95))


def region_scores(logits, target):
    pred = (torch.sigmoid(logits) > 0.5).detach().cpu().numpy()
    true = target.numpy(force=True) > 0.5
    pairs = [[(p[r], t[r]) for p, t in zip(pred, true, strict=True)] for r in range(3)]
    dice = [np.mean([2 * (p & t).sum() / (p.sum() + t.sum() + 1e-5) for p, t in pairs[r]]) for r in range(3)]
    return {name: (dice[r], np.mean([hd95_np(*one) for one in pairs[r]])) for r, name in enumerate(REGIONS)}


def main():
    root, snapshots = folder("brain"), folder("snapshots")
    names = prepare(root)
    loader = {"num_workers": 2, "pin_memory": True, "persistent_workers": True}
    # label: small-batch gpu likely
    train = DataLoader(BraTumour(root, names[:16], cfg["crop"]), cfg["batch"], shuffle=True, drop_last=True, **loader)
    val = DataLoader(BraTumour(root, names[16:]), batch_size=1)
    model = nn.DataParallel(RegionNet().to(device))  # label: data-parallel gpu maybe; no-channels-last gpu maybe
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg["base_lr"], weight_decay=1e-5, amsgrad=True)
    iteration = 0
    while iteration < cfg["max_iterations"]:
        for image, target in train:
            model.train()
            image, target = image.to(device, non_blocking=True), target.to(device, non_blocking=True)
            logits = model(image)  # label: no-autocast gpu sure
            prob = torch.sigmoid(logits)
            dice = 1 - (2 * (prob * target).sum((2, 3, 4)) + 1) / (prob.sum((2, 3, 4)) + target.sum((2, 3, 4)) + 1)
            loss = dice.mean() + F.binary_cross_entropy_with_logits(logits, target)
            optimizer.zero_grad(set_to_none=False)  # label: zero-grad-memset both maybe
            loss.backward()
            optimizer.step()
            iteration += 1
            scores = region_scores(logits, target)  # label: host-metric both sure
            text = {name: f"{d:.3f}/{h:.1f}" for name, (d, h) in scores.items()}
            logging.info("iteration %d : loss %f : %s", iteration, loss.item(), text)  # label: host-read gpu maybe
            if iteration % cfg["val_every"] == 0:
                model.eval()
                with torch.no_grad():
                    found = [region_scores(model(x.to(device)), y)["WT"][0] for x, y in val]
                logging.info("validation WT dice %.4f", np.mean(found))
            if iteration % cfg["save_every"] == 0:
                torch.save(model.state_dict(), snapshots / f"iter_{iteration}.pth")


if __name__ == "__main__":
    main()
