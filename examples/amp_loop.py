"""The mixed-precision loop of PyTorch's guides, fed by Hasten, and what Hasten has for its end.

    python amp_loop.py SOURCE [STEPS [plain]]

With "plain" the loop is the guide's, line by line; without it, `Update` does what follows the loss: it scales, clips,
leaves out an update that is not finite without waiting for the device, and keeps an average of the weights.
"""

from __future__ import annotations

import sys

import torch
from monai.losses import DiceCELoss
from monai.networks.nets import UNet

import hasten
from hasten.cache.build import get_arena
from hasten.feed.feed import Feed
from hasten.optim.average import average_of
from hasten.training.choose.batch_program import choose_program
from hasten.training.plan import plan_run
from hasten.training.update import Update


def main(source: str, steps: int = 100, how: str = "hasten", *settings: str) -> list[float]:
    """Train on a 3-D data set; print and return the loss of every tenth step."""
    planned = plan_run(hasten.load_run(overrides=[f"data.source={source}", f"train.steps={steps}", *settings]))
    device = planned.device
    arena = get_arena(planned.case_set, planned.config.prepare, planned.config.cache, device=str(device))
    program, _ = choose_program(planned, arena)

    torch.manual_seed(0)
    network = UNet(3, arena.num_channels, arena.num_classes, channels=(8, 16, 32), strides=(2, 2), num_res_units=1).to(
        device
    )
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3, fused=True)
    compute_loss = DiceCELoss(to_onehot_y=True, softmax=True)
    # bf16 needs no scaler, and a CPU has nothing else; on a GPU the guide's float16.
    dtype = torch.float16 if device.type == "cuda" else torch.bfloat16
    scaler = torch.amp.GradScaler(device.type, enabled=dtype == torch.float16)
    update = Update(weights=network, optimizer=optimizer, scaler=scaler, clip_norm=12.0, average=average_of(network))

    losses = []
    # A batch holds image (B, C, D, H, W) float32 and label (B, 1, D, H, W) uint8 class index, both on the device.
    for step, batch in enumerate(Feed(program, last=steps)):
        image, label = batch["image"], batch["label"]
        with torch.autocast(device.type, dtype=dtype):
            scores = network(image)
        loss = compute_loss(scores.float(), label)
        if how == "plain":
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(network.parameters(), 12.0)
            scaler.step(optimizer)
            scaler.update()
        else:
            update.backward(loss)
            update.apply(step)
        if (step + 1) % 10 == 0:
            losses.append(loss.item())
            print(f"step {step + 1}  loss {losses[-1]:.4f}")
    if how != "plain":
        print(f"{int(update.skipped)} updates left out")
    return losses


if __name__ == "__main__":
    main(sys.argv[1], *(kind(word) for kind, word in zip((int, str), sys.argv[2:], strict=False)))
