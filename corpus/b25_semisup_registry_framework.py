# verdict: compute
"""Imitates a plain script in the style of a large research framework: a registry, hooks around the loop, an
event storage, and a mean teacher (EMA) that gives consistency targets for unlabelled 2-D ultrasound images."""

import copy

import numpy as np
import torch
import torch.nn.functional as F
from common import UNet, device, folder, volume

REGISTRY = {}
# label: cudnn-benchmark-on gpu sure
torch.backends.cudnn.benchmark = True


def register(cls):
    return REGISTRY.setdefault(cls.__name__, cls)


@register
class TwoStreams:
    def __init__(self, cases, batch, sizes):
        random = np.random.default_rng(5)
        made = [volume(random, (128, 128)) for _ in range(cases)]
        self.images = torch.from_numpy(np.stack([image for image, _ in made]))[:, None]
        self.labels = torch.from_numpy(np.stack([label for _, label in made])).long()
        self.batch, self.sizes = batch, sizes

    def __iter__(self):
        while True:
            size = self.sizes[int(torch.randint(len(self.sizes), ()))]
            some = torch.randint(len(self.images), (2 * self.batch,))
            image = F.interpolate(self.images[some], size=(size, size), mode="bilinear")
            label = F.interpolate(self.labels[some][: self.batch, None].float(), size=(size, size))[:, 0].long()
            yield image[: self.batch], label, image[self.batch :]


class HookBase:
    trainer, before_step, after_step = None, lambda self: None, lambda self: None


@register
class EMATeacherHook(HookBase):
    momentum = 0.99

    @torch.no_grad()
    def after_step(self):
        # label: slow-kernels gpu maybe
        for s, t in zip(self.trainer.model.parameters(), self.trainer.teacher.parameters(), strict=True):
            t.mul_(self.momentum).add_(s, alpha=1 - self.momentum)


@register
class FeatureStatHook(HookBase):
    def __init__(self):
        self.means = []

    def before_step(self):
        # label: hooks-pile-up both sure
        self.trainer.model.down[-1].register_forward_hook(lambda m, i, out: self.means.append(out.detach().mean()))

    def after_step(self):
        self.trainer.storage["feature"] = torch.stack(self.means).mean()
        self.means.clear()


@register
class PeriodicCheckpointer(HookBase):
    period, path = 5, folder("checkpoints")

    def after_step(self):
        if (self.trainer.iter + 1) % self.period == 0:
            kept = {k: getattr(self.trainer, k).state_dict() for k in ("model", "teacher", "optimizer")}
            for name in (f"model_{self.trainer.iter + 1:07d}.pth", "model_last.pth"):
                # label: checkpoint-stall gpu likely; checkpoint-stall cpu maybe
                torch.save(kept, self.path / name)


@register
class EventWriter(HookBase):
    def after_step(self):
        # label: host-read gpu likely
        values = {k: v.detach().cpu().item() for k, v in self.trainer.storage.items()}
        print("step", self.trainer.iter, *(f"{k}: {v:.4f}" for k, v in values.items()), flush=True)


class Trainer:
    def __init__(self, cfg):
        torch.manual_seed(cfg["seed"])
        self.model = UNet(**cfg["model"]).to(device)  # label: no-channels-last gpu maybe
        self.teacher = copy.deepcopy(self.model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), **cfg["optimizer"])
        self.data, self.cfg, self.storage, self.iter = iter(REGISTRY["TwoStreams"](**cfg["data"])), cfg, {}, 0
        HookBase.trainer, self.hooks = self, [REGISTRY[name]() for name in cfg["hooks"]]

    def run_step(self):
        # label: unpinned-memory gpu maybe; small-batch gpu likely; no-workers gpu maybe
        image, label, unlabelled = (tensor.to(device) for tensor in next(self.data))
        # label: no-autocast gpu sure
        logits = self.model(image)
        supervised = F.cross_entropy(logits, label)
        # label: needless-grad both sure
        target = self.teacher(unlabelled + 0.05 * torch.randn_like(unlabelled)).softmax(1)
        consistency = F.mse_loss(self.model(unlabelled).softmax(1), target)
        loss = supervised + min(1.0, self.iter / 100) * consistency
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.storage.update(supervised=supervised, consistency=consistency, total=loss)

    def train(self):
        while self.iter < self.cfg["max_iter"]:
            for hook in self.hooks:
                hook.before_step()
            self.run_step()
            for hook in self.hooks:
                hook.after_step()
            self.iter += 1


CFG = {
    "seed": 0, "max_iter": 400, "model": {"taken": 1, "given": 2, "widths": (8, 16, 64)},
    "optimizer": {"lr": 0.01, "momentum": 0.9, "weight_decay": 1e-4},
    "data": {"cases": 40, "batch": 4, "sizes": (64, 80, 96, 112, 128)},
    "hooks": ["FeatureStatHook", "EMATeacherHook", "PeriodicCheckpointer", "EventWriter"],
}  # fmt: skip

if __name__ == "__main__":
    Trainer(CFG).train()
