"""Control: a process of its own augments into a queue; random spatial transforms decide the speed on few cores."""
# verdict: input
# control

import multiprocessing
import time

import matplotlib.pyplot as plt
import numpy as np
import torch
from common import UNet, device, folder, volume
from scipy import ndimage
from torch import nn


def augmenter(root, count, queue):
    random = np.random.default_rng()
    while True:
        images, labels = [], []
        for _ in range(2):
            number = random.integers(count)
            image, label = (np.load(root / f"{number}_{key}.npy", mmap_mode="r") for key in ("image", "label"))
            angle = random.uniform(-30, 30)
            image = ndimage.rotate(image, angle, axes=(0, 1), reshape=False, order=3)
            image = ndimage.rotate(image, angle / 2, axes=(1, 2), reshape=False, order=3)[24:40, 24:40, 24:40]
            label = ndimage.rotate(label, angle, axes=(0, 1), reshape=False, order=0)[24:40, 24:40, 24:40]
            images.append(image[None])
            labels.append(label)
        while queue.full():
            time.sleep(0.002)
        queue.put((np.stack(images).astype(np.float32), np.stack(labels).astype(np.int64)))


def main():
    torch.backends.cudnn.benchmark = True
    root, random = folder("volumes"), np.random.default_rng(0)
    for number in range(12):
        for key, array in zip(("image", "label"), volume(random, (64, 64, 64)), strict=True):
            np.save(root / f"{number}_{key}.npy", array)
    queue = multiprocessing.get_context("fork").Queue(6)
    worker = multiprocessing.get_context("fork").Process(target=augmenter, args=(root, 12, queue), daemon=True)
    worker.start()
    # label: no-autocast gpu maybe; conv-bias-before-norm both sure
    net = UNet(3, 1, 2, (4, 8), bias=True, norm=nn.InstanceNorm3d).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2, momentum=0.99, nesterov=True)
    for epoch in range(3):
        net.train()
        for _ in range(25):
            image, label = queue.get()  # label: heavy-items both sure
            image, label = torch.from_numpy(image), torch.from_numpy(label)
            if device.type == "cuda":
                image, label = image.pin_memory(), label.pin_memory()
            image, label = image.to(device, non_blocking=True), label.to(device, non_blocking=True)
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
                loss = nn.functional.cross_entropy(net(image), label)
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 12)
            optimizer.step()
            total = loss.detach().cpu().numpy()  # label: host-read gpu sure
        net.eval()  # label: validation-share both likely
        with torch.no_grad():
            for _ in range(5):
                # label: validation-share both maybe; heavy-items both sure
                net(torch.from_numpy(queue.get()[0]).to(device))
        figure = plt.figure(figsize=(10, 18))
        plt.plot([epoch, epoch + 1], [total, total])
        figure.savefig(root / "progress.png")  # label: sync-plot both likely
        plt.close(figure)
        torch.save(net.state_dict(), root / "best.pt")  # label: checkpoint-stall both maybe


if __name__ == "__main__":
    main()
