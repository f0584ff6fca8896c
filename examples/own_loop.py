"""Hasten's batches in a plain PyTorch loop, with a network, a loss and an optimizer of one's own.

    python own_loop.py SOURCE [STEPS]

What comes from Hasten: the cases read, checked, split, prepared and cached; random crops and augmentation as one batch
program that makes a batch from (seed, step) alone, on the device; and label maps of whole volumes.
"""

from __future__ import annotations

import sys

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import hasten
from hasten.cache.build import get_arena
from hasten.evaluation.dice import counts_of, dice_of
from hasten.feed.feed import Feed
from hasten.prediction.infer import infer_labels, inference_of
from hasten.training.choose.batch_program import choose_program
from hasten.training.plan import plan_run


def my_network(num_channels: int, num_classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv3d(num_channels, 8, 3, padding=1),
        nn.InstanceNorm3d(8, affine=True),
        nn.ReLU(),
        nn.Conv3d(8, 8, 3, padding=2, dilation=2),
        nn.InstanceNorm3d(8, affine=True),
        nn.ReLU(),
        nn.Conv3d(8, num_classes, 1),
    )


def main(source: str, steps: int = 100, *settings: str) -> float:
    """Train on a 3-D data set; print the loss, and return the mean Dice of the cases held out."""
    wanted = [f"data.source={source}", f"train.steps={steps}", "train.precision=fp32", "train.channels_last=false"]
    planned = plan_run(hasten.load_run(overrides=[*wanted, *settings]))
    config, device = planned.config, planned.device
    arena = get_arena(planned.case_set, config.prepare, config.cache, device=str(device))
    program, _ = choose_program(planned, arena)

    network = my_network(arena.num_channels, arena.num_classes).to(device)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    # A batch holds image (B, C, D, H, W) float32 and label (B, 1, D, H, W) uint8 class index, both on the device.
    for step, batch in enumerate(Feed(program, last=steps), start=1):
        image, label = batch["image"], batch["label"]
        loss = cross_entropy(network(image), label[:, 0].long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step}  loss {loss.item():.4f}")

    network.eval()
    held_out = arena.index(tuple(case.id for case in planned.validation))
    how = inference_of(config, spatial_dims=3, device=device, classes=arena.num_classes)
    counts = [
        counts_of(prediction.cpu(), arena.label(held_out[position]).cpu(), num_classes=arena.num_classes)
        for position, prediction in infer_labels(network, [arena.image(case) for case in held_out], how)
    ]
    dice = dice_of(torch.stack(counts), planned.class_names)
    print(f"Dice {dice.mean:.3f}  {dice.per_class}")
    return dice.mean


if __name__ == "__main__":
    main(sys.argv[1], *(int(steps) for steps in sys.argv[2:3]), *sys.argv[3:])
