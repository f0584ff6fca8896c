"""Lightning: reconstruction slice by slice, SSIM of each validation slice by SciPy on the host."""
# verdict: validation

import warnings

import lightning
import numpy as np
import torch
from common import UNet, folder
from scipy import ndimage
from torch import nn
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")


class Slices(Dataset):
    def __init__(self, count, each):
        self.root, self.count, self.each, random = folder("kspace"), count, each, np.random.default_rng(0)
        for number in range(count):
            np.save(
                self.root / f"{number}.npy",
                random.normal(size=(each, 96, 96)) + 1j * random.normal(size=(each, 96, 96)),
            )

    def __len__(self):
        return self.count * self.each

    def __getitem__(self, index):
        space = np.load(self.root / f"{index // self.each}.npy", mmap_mode="r")[index % self.each]
        mask = np.random.rand(96) < 0.25
        full, part = (np.abs(np.fft.ifft2(each))[16:80, 16:80] for each in (space, space * mask))
        return tuple(
            torch.from_numpy(((each - part.mean()) / part.std())[None].astype(np.float32)) for each in (part, full)
        )


def ssim(one, other):
    smooth = [ndimage.uniform_filter(each, 7) for each in (one, other, one * one, other * other, one * other)]
    return float(((2 * smooth[0] * smooth[1] + 1) / (smooth[0] ** 2 + smooth[1] ** 2 + 1)).mean())


class Reconstruction(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        # label: small-batch both sure; no-autocast gpu sure; deterministic gpu sure
        self.net = UNet(2, 1, 1, (8, 16), norm=nn.InstanceNorm2d)

    def training_step(self, batch, index):
        loss = nn.functional.l1_loss(self.net(batch[0]), batch[1])
        self.log("loss", loss.detach())
        return loss

    def validation_step(self, batch, index):
        scores = self.net(batch[0])
        # label: host-read gpu sure; host-metric both sure
        for one, other in zip(scores.cpu().numpy(), batch[1].cpu().numpy(), strict=True):
            for _ in range(8):
                self.log("ssim", ssim(one[0], other[0]))  # label: host-metric both sure; validation-share both sure

    def configure_optimizers(self):
        return torch.optim.RMSprop(self.parameters(), 1e-3)


def main():
    # label: small-batch both sure; heavy-items both likely; many-workers both likely; unpinned-memory gpu sure
    # label: no-persistent-workers both maybe; uncached-items both maybe
    train = DataLoader(Slices(2, 5), batch_size=1, shuffle=True, num_workers=2)
    held = DataLoader(Slices(4, 10), batch_size=1)
    # label: no-autocast gpu sure; deterministic gpu sure; cudnn-benchmark-off gpu maybe
    trainer = lightning.Trainer(
        max_epochs=6, accelerator="cpu", deterministic=True, logger=False, num_sanity_val_steps=0,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    # label: validation-share both sure; no-autocast gpu sure; deterministic gpu sure
    trainer.fit(Reconstruction(), train, held)


if __name__ == "__main__":
    main()
