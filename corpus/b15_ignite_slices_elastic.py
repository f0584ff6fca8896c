"""Imitates segmentation examples with engines and events: slices from compressed archives with elastic deformation,
evaluators on the training and the validation set after each epoch, a progress bar, pictures and checkpoints."""
# verdict: input|validation

from argparse import ArgumentParser

import matplotlib
import numpy as np
import torch
import torch.nn.functional as F
from common import UNet, device, folder, write_volumes
from ignite.contrib.handlers import ProgressBar
from ignite.engine import Engine, Events
from ignite.handlers import DiskSaver, EarlyStopping, ModelCheckpoint
from ignite.metrics import ConfusionMatrix, DiceCoefficient, Loss, RunningAverage
from scipy.ndimage import gaussian_filter, map_coordinates
from skimage.transform import resize
from torch.utils.data import DataLoader, Dataset

matplotlib.use("Agg")
import matplotlib.pyplot as plt


class SliceDataset(Dataset):
    def __init__(self, files, augment=False, size=(128, 128), alpha=60, sigma=6):
        self.files, self.augment, self.size, self.alpha, self.sigma = files, augment, size, alpha, sigma

    def __len__(self):
        return len(self.files)

    def elastic(self, image, mask):
        rows, columns = image.shape
        dx = gaussian_filter(np.random.rand(rows, columns) * 2 - 1, self.sigma) * self.alpha
        dy = gaussian_filter(np.random.rand(rows, columns) * 2 - 1, self.sigma) * self.alpha
        x, y = np.meshgrid(np.arange(columns), np.arange(rows))
        where = (y + dy, x + dx)
        return map_coordinates(image, where, order=3), map_coordinates(mask, where, order=0)

    def __getitem__(self, index):
        data = np.load(self.files[index])
        image, mask = data["image"], data["label"]
        image = resize(image, self.size, order=3, anti_aliasing=True)
        mask = resize(mask, self.size, order=0, preserve_range=True, anti_aliasing=False).astype(np.uint8)
        image = (image - image.mean()) / (image.std() + 1e-8)
        if self.augment:
            image, mask = self.elastic(image, mask)
            if np.random.rand() > 0.5:
                image, mask = image[:, ::-1].copy(), mask[:, ::-1].copy()
        return torch.from_numpy(image).float()[None], torch.from_numpy(mask).long()


def get_data_loaders(train_batch_size, val_batch_size):
    files = write_volumes(folder("slices"), 72, (512, 512), compressed=True)
    # label: no-workers both sure; heavy-items both sure; uncached-items both sure; small-batch gpu likely
    train_loader = DataLoader(SliceDataset(files[:56], augment=True), batch_size=train_batch_size, shuffle=True)
    # label: no-workers both likely; uncached-items both likely
    val_loader = DataLoader(SliceDataset(files[56:]), batch_size=val_batch_size, shuffle=False)
    return train_loader, val_loader


def run(args):
    train_loader, val_loader = get_data_loaders(args.batch_size, args.val_batch_size)
    # label: cudnn-benchmark-off gpu likely; no-channels-last gpu maybe; conv-bias-before-norm both likely
    model = UNet(kind=2, taken=1, given=2, widths=(8, 16, 32, 64), bias=True).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    output = folder("ignite-slices")

    def update(engine, batch):
        model.train()
        x, y = batch[0].to(device), batch[1].to(device)
        optimizer.zero_grad()
        y_pred = model(x)  # label: no-autocast gpu sure
        loss = F.cross_entropy(y_pred, y)
        loss.backward()
        optimizer.step()
        return {"loss": loss.item(), "pred": y_pred.detach(), "y": y, "x": x}  # label: host-read gpu likely

    def inference(engine, batch):
        model.eval()
        with torch.no_grad():
            return model(batch[0].to(device)), batch[1].to(device)

    trainer, evaluator = Engine(update), Engine(inference)
    RunningAverage(output_transform=lambda out: out["loss"]).attach(trainer, "loss")
    cm = ConfusionMatrix(num_classes=2)
    DiceCoefficient(cm, ignore_index=0).attach(evaluator, "dice")
    Loss(F.cross_entropy).attach(evaluator, "nll")
    pbar = ProgressBar(persist=True)
    pbar.attach(trainer, metric_names=["loss"])

    @trainer.on(Events.EPOCH_COMPLETED)
    def log_training_results(engine):
        # label: training-cases-validated both sure; validation-share both sure
        evaluator.run(train_loader)
        metrics = evaluator.state.metrics
        pbar.log_message(f"Training - epoch {engine.state.epoch}: dice {metrics['dice']} loss {metrics['nll']:.3f}")

    @trainer.on(Events.EPOCH_COMPLETED)
    def log_validation_results(engine):
        evaluator.run(val_loader)
        metrics = evaluator.state.metrics
        pbar.log_message(f"Validation - epoch {engine.state.epoch}: dice {metrics['dice']} loss {metrics['nll']:.3f}")

    @trainer.on(Events.ITERATION_COMPLETED(every=args.plot_every))  # label: sync-plot gpu sure; sync-plot cpu likely
    def plot_predictions(engine):
        out = engine.state.output
        pictures = [out["x"][0, 0], out["y"][0], out["pred"][0].argmax(0)]
        fig, axes = plt.subplots(1, 3, figsize=(9, 3))
        for ax, picture, title in zip(axes, pictures, ("image", "mask", "prediction"), strict=True):
            ax.imshow(picture.cpu().numpy(), cmap="gray")
            ax.set_title(title)
            ax.axis("off")
        fig.savefig(output / f"iteration_{engine.state.iteration:05d}.png")
        plt.close(fig)

    saver = ModelCheckpoint(DiskSaver(output / "models", create_dir=True).dirname, "unet", n_saved=3)
    trainer.add_event_handler(Events.EPOCH_COMPLETED, saver, {"model": model})  # label: checkpoint-stall both maybe
    stopper = EarlyStopping(patience=20, score_function=lambda e: -e.state.metrics["nll"], trainer=trainer)
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: stopper(evaluator))
    trainer.run(train_loader, max_epochs=args.epochs)


if __name__ == "__main__":
    parser = ArgumentParser()
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--val_batch_size", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--plot_every", type=int, default=5)
    run(parser.parse_args())
