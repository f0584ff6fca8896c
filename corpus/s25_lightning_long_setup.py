"""Lightning, several epochs, behind a set-up of seconds in which data are written; costly items in one process."""
# verdict: input

import time
import warnings

import lightning
import numpy as np
import torch
from common import UNet, folder, write_images
from PIL import Image
from scipy import ndimage
from torch import nn
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")


class Photographs(Dataset):
    def __init__(self, paths):
        self.paths = paths

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        path = self.paths[index]
        image, mask = (
            np.asarray(Image.open(path), np.float32),
            np.asarray(Image.open(path.with_name(f"{path.stem}_mask.png"))),
        )
        angle = np.random.uniform(-30, 30)
        image = ndimage.rotate(image, angle, reshape=False, order=3)[::4, ::4]
        mask = ndimage.rotate(mask, angle, reshape=False, order=0)[::4, ::4]
        return torch.from_numpy(image.transpose(2, 0, 1) / 255), torch.from_numpy((mask > 127).astype(np.int64))


class Segmentation(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = UNet(2, 3, 2, (4, 8))  # label: no-autocast gpu sure

    def training_step(self, batch, index):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-3, fused=True)


def main():
    paths = write_images(folder("photographs"), 24, (192, 192))
    time.sleep(12)
    # label: no-workers both sure; heavy-items both sure; unpinned-memory gpu sure
    loader = DataLoader(Photographs(paths), batch_size=4, shuffle=True)
    trainer = lightning.Trainer(
        max_epochs=5, accelerator="cpu", benchmark=True, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Segmentation(), loader)  # label: no-autocast gpu sure


if __name__ == "__main__":
    main()
