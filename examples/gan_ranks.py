"""Two networks and two optimizers over several processes: a segmenter, and a critic that knows made label maps.

    torchrun --nproc-per-node N gan_ranks.py SOURCE [STEPS]

Any N trains the same, as a batch is that of all processes. `sync`: a network's gradients travel in its own step alone.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, one_hot

import hasten
from hasten.cache.build import get_arena
from hasten.distribute.build_strategy import build_strategy
from hasten.distribute.consensus import local_rank0_first
from hasten.distribute.group import process_group
from hasten.distribute.strategy import Strategy
from hasten.distribute.world import detect_world
from hasten.feed.feed import Feed
from hasten.nets.over_ranks import counts_over_ranks
from hasten.sample.share import Share
from hasten.training.choose.batch_program import choose_program
from hasten.training.plan import plan_run
from hasten.training.update import Update


class Player:
    """A network that all processes train together, from rank 0's weights, and its optimizer."""

    def __init__(self, inputs: int, outputs: int, stride: int, strategy: Strategy, device: torch.device) -> None:
        first, norm = nn.Conv3d(inputs, 8, 3, stride, padding=1, bias=False), nn.InstanceNorm3d(8, affine=True)
        network = nn.Sequential(first, norm, nn.LeakyReLU(0.2), nn.Conv3d(8, outputs, 1))
        self.strategy, (weights, _) = strategy, strategy.place(network.to(device), None)
        optimizer = strategy.share_optimizer(torch.optim.AdamW(weights.parameters(), lr=2e-3, betas=(0.5, 0.99)))
        self.update = Update(weights=weights, optimizer=optimizer, strategy=strategy)
        self.network = strategy.wrap(weights)

    def sync(self, *, last: bool) -> AbstractContextManager[None]:
        return self.strategy.sync(self.network, last=last)

    def judged(self, image: Tensor, maps: Tensor, truth: Tensor) -> Tensor:
        """How far a critic is from calling label maps (B, K, D, H, W) real (1) or made (0). truth: (B,)."""
        return binary_cross_entropy_with_logits(self.network(torch.cat([image, maps], 1)).mean((1, 2, 3, 4)), truth)


def main(source: str, steps: int = 100, *settings: str) -> list[list[float]]:
    """Train; print and return the losses of segmenter and critic, of all processes, at every tenth step."""
    world, result = detect_world(), []
    config = hasten.load_run(overrides=[f"data.source={source}", f"train.steps={steps}", *settings])
    planned = plan_run(config, world=world)
    config, shared, device = planned.config, config.distribute, planned.device
    with process_group(world, shared, device):
        with local_rank0_first(world, None):
            arena = get_arena(planned.case_set, config.prepare, config.cache, device=str(device))
        program, _ = choose_program(planned, arena, Share(world.rank, world.size))
        inputs, classes = arena.num_channels, arena.num_classes
        torch.manual_seed(0)
        segmenter = Player(inputs, classes, 1, build_strategy(shared, world), device)
        critic = Player(inputs + classes, 1, 2, build_strategy(shared, world), device)
        # This process's share of a batch: image (B, C, D, H, W) float32, label (B, 1, D, H, W) uint8 class index.
        for step, batch in enumerate(Feed(program, last=steps)):
            image, label = batch["image"], batch["label"]
            target, yes = label[:, 0].long(), image.new_ones(len(image))
            # The segmenter's turn: gradients go through the critic and leave none in it, nor does it exchange any.
            critic.update.weights.requires_grad_(False)
            with segmenter.sync(last=True), critic.sync(last=False):
                made = (scores := segmenter.network(image)).softmax(1)
                loss = cross_entropy(scores, target) + 0.1 * critic.judged(image, made, yes)
                segmenter.update.backward(loss)
            segmenter.update.apply(step)
            # The critic's turn: label maps that are detached lead no gradient back to the segmenter.
            critic.update.weights.requires_grad_(True)
            with critic.sync(last=True):
                maps = torch.cat([one_hot(target, classes).movedim(-1, 1), made.detach()])
                missed = critic.judged(image.repeat(2, 1, 1, 1, 1), maps, torch.cat([yes, 0 * yes]))
                critic.update.backward(missed)
            critic.update.apply(step)
            if (step + 1) % 10 == 0:
                losses = torch.stack([loss, missed]).detach() / world.size
                result.append(counts_over_ranks(losses).tolist())
                if world.first:
                    print(f"step {step + 1}  segmenter {result[-1][0]:.5f}  critic {result[-1][1]:.5f}")
    return result


if __name__ == "__main__":
    main(sys.argv[1], *(int(steps) for steps in sys.argv[2:3]), *sys.argv[3:])
