"""Two processes on CPUs by torchrun, one with twice the work: as patches of unequal count."""
# verdict: sync|compute
# torchrun

import torch
from common import UNet
from torch import nn


def main():
    torch.distributed.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = torch.distributed.get_rank()
    torch.manual_seed(rank)
    # label: unequal-ranks both sure; no-autocast gpu sure; cudnn-benchmark-off gpu sure
    net = nn.parallel.DistributedDataParallel(UNet(2, 1, 2, (8, 16, 32)))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)
    patches = 12 if rank else 3  # label: unequal-ranks both sure
    for _ in range(60):
        image, label = torch.randn(patches, 1, 64, 64), torch.zeros(patches, 64, 64, dtype=torch.long)
        loss = nn.functional.cross_entropy(net(image), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
