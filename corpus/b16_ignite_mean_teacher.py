"""Imitates semi-supervised 3-D segmentation code (a teacher as moving average of the student, a consistency loss)
moved to engines and events: volumes from archives, random crops in numpy, scalars and slices to event files."""
# verdict: compute

import numpy as np
import torch
import torch.nn.functional as F
from common import device, folder, pair, write_volumes
from ignite.engine import Engine, Events
from ignite.handlers import Checkpoint, DiskSaver
from ignite.metrics import Average
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.tensorboard import SummaryWriter

PATCH, LABELED, BATCH, MAX_EPOCHS = (32, 32, 24), 2, 4, 25
torch.autograd.set_detect_anomaly(True)  # label: anomaly-detection both sure


class Atrium(Dataset):
    """Crops of volumes of 72 x 72 x 48, z-scores."""

    def __init__(self, files):
        self.files = files

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        with np.load(self.files[index]) as data:
            image, label = data["image"], data["label"]
        image = (image - image.mean()) / image.std()
        corner = [torch.randint(side - patch + 1, ()).item() if side > patch else 0
                  for side, patch in zip(image.shape, PATCH, strict=True)]  # fmt: skip
        where = tuple(slice(c, c + p) for c, p in zip(corner, PATCH, strict=True))
        image, label = image[where], label[where]
        if torch.rand(()) < 0.5:
            image, label = image[::-1], label[::-1]
        return torch.from_numpy(image.copy())[None], torch.from_numpy(label.astype(np.int64))


class VNetLike(nn.Module):
    def __init__(self, width=8, dropout=0.3):
        super().__init__()
        # label: conv-bias-before-norm both likely; no-channels-last gpu maybe
        self.encoder1, self.encoder2 = pair(3, 1, width, bias=True), pair(3, width, 2 * width, bias=True)
        self.bottom, self.decoder = pair(3, 2 * width, 4 * width, bias=True), pair(3, 7 * width, width, bias=True)
        self.drop, self.out = nn.Dropout3d(dropout), nn.Conv3d(width, 2, 1)

    def forward(self, x):
        one = self.encoder1(x)
        two = self.encoder2(F.max_pool3d(one, 2))
        three = self.drop(self.bottom(F.max_pool3d(two, 2)))
        shallow = [F.interpolate(f, scale_factor=s, mode="trilinear") for f, s in ((two, 2), (three, 4))]
        return self.out(self.decoder(torch.cat([one, *shallow], 1)))


def update_ema(student, teacher, step, alpha=0.99):
    alpha = min(1 - 1 / (step + 1), alpha)
    for t, s in zip(teacher.parameters(), student.parameters(), strict=True):
        t.data.mul_(alpha).add_(s.data, alpha=1 - alpha)


def ramp(epoch, length=10):
    return 0.1 * float(np.exp(-5 * (1 - np.clip(epoch, 0, length) / length) ** 2))


def dice_loss(score, target, smooth=1e-5):
    target = target.float()
    return 1 - (2 * (score * target).sum() + smooth) / ((score * score).sum() + (target * target).sum() + smooth)


files = write_volumes(folder("atrium"), 32, (72, 72, 48))
# label: no-persistent-workers both sure; many-workers cores2 likely; uncached-items both maybe; small-batch gpu likely
loader = DataLoader(Atrium(files), batch_size=BATCH, shuffle=True, num_workers=4, pin_memory=device.type == "cuda")
model, ema_model = VNetLike().to(device), VNetLike().to(device)  # label: cudnn-benchmark-off gpu likely
ema_model.load_state_dict(model.state_dict())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
snapshots = folder("atrium-snapshots")
writer = SummaryWriter(snapshots / "log")


def train_step(engine, batch):
    model.train()
    volume_batch, label_batch = batch[0].to(device), batch[1].to(device)  # label: sync-copy gpu likely
    weight = torch.tensor([0.2, 0.8]).to(device)  # label: recreate gpu likely
    noise = torch.clamp(torch.randn_like(volume_batch) * 0.1, -0.2, 0.2)
    outputs = model(volume_batch)  # label: no-autocast gpu sure
    ema_output = ema_model(volume_batch + noise)  # label: needless-grad both sure
    supervised = F.cross_entropy(outputs[:LABELED], label_batch[:LABELED], weight=weight)
    supervised = supervised + dice_loss(outputs[:LABELED].softmax(1)[:, 1], label_batch[:LABELED] == 1)
    consistency = F.mse_loss(outputs.softmax(1), ema_output.softmax(1))
    loss = 0.5 * supervised + ramp(engine.state.epoch) * consistency
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    update_ema(model, ema_model, engine.state.iteration)
    step = engine.state.iteration
    writer.add_scalar("loss/loss", loss, step)  # label: host-read gpu likely
    writer.add_scalar("loss/supervised", supervised, step)  # label: host-read gpu maybe
    writer.add_scalar("loss/consistency", consistency, step)  # label: host-read gpu maybe
    return {"loss": loss.item(), "image": volume_batch, "output": outputs.detach()}  # label: host-read gpu maybe


trainer = Engine(train_step)
Average(output_transform=lambda out: out["loss"]).attach(trainer, "mean_loss")


@trainer.on(Events.ITERATION_COMPLETED(every=10))  # label: sync-plot both maybe
def add_slices(engine):
    image, output = engine.state.output["image"], engine.state.output["output"]
    grid = torch.stack([image[0, 0, :, :, 16], output[0].softmax(0)[1, :, :, 16]]).clamp(0, 1)
    writer.add_images("train/slices", grid[:, None].cpu(), engine.state.iteration)


@trainer.on(Events.EPOCH_COMPLETED)
def report(engine):
    print(f"epoch {engine.state.epoch} iteration {engine.state.iteration}: {engine.state.metrics['mean_loss']:.4f}")


checkpoint = Checkpoint({"model": model, "ema": ema_model}, DiskSaver(snapshots, require_empty=False), n_saved=2)
trainer.add_event_handler(Events.EPOCH_COMPLETED(every=5), checkpoint)
trainer.run(loader, max_epochs=MAX_EPOCHS)
writer.close()
