"""Ignite: its supervised trainer reads the loss in every step; bias before batch norm in a plain network."""
# verdict: compute

import numpy as np
import torch
from common import device, volume
from ignite.engine import Events, create_supervised_trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    torch.backends.cudnn.benchmark = True
    random = np.random.default_rng(0)
    cases = [volume(random, (64, 64)) for _ in range(96)]
    data = TensorDataset(
        torch.stack([torch.from_numpy(image)[None] for image, _ in cases]),
        torch.stack([torch.from_numpy(label).long() for _, label in cases]),
    )
    loader = DataLoader(data, batch_size=8, shuffle=True, pin_memory=True)  # label: no-workers both maybe
    # label: no-autocast gpu sure
    net = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),  # label: conv-bias-before-norm both sure
        # label: conv-bias-before-norm both sure
        nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 2, 1),
    ).to(device)  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    # label: host-read gpu sure; no-autocast gpu sure
    trainer = create_supervised_trainer(net, optimizer, nn.CrossEntropyLoss(), device, non_blocking=True)
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda engine: print(engine.state.epoch, engine.state.output))
    trainer.run(loader, max_epochs=4)  # label: host-read gpu sure; no-autocast gpu sure


if __name__ == "__main__":
    main()
