"""One typed description of a run.

Every field that a data set can decide is `None` by default: the plan (`hasten.config.plan`) fills it from the
fingerprint and records the reason. A field that the user sets is kept as it is.
Space is written (D, H, W) everywhere, which is (z, y, x) of a NIfTI file; a 2-D image has D = 1.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from annotated_types import Ge, Gt, Interval, Le

from hasten.config.resume_rules import flat
from hasten.config.size import Amount, Seconds

HIGHEST = 2**63 - 1
"""Largest whole number that torch and numpy accept."""
Natural = Annotated[int, Ge(0), Le(HIGHEST)]
Count = Annotated[int, Ge(1), Le(HIGHEST)]
Share = Annotated[float, Interval(ge=0, le=1)]
Part = Annotated[float, Interval(ge=0, lt=1)]
"""A share that is not the whole."""
NonNegative = Annotated[float, Ge(0)]
Positive = Annotated[float, Gt(0)]
Few = Annotated[int, Interval(ge=0, le=1000)]
Angle = Annotated[float, Interval(ge=0, le=180)]
Triple = tuple[int, int, int]
Counts = tuple[Count, Count, Count]
Spacing = tuple[float, float, float]
Range = tuple[float, float]
Stages = tuple[tuple[float, float], ...]
"""Pairs (share of the steps, factor), the shares rising."""
Intensity = Literal["zscore", "window", "none"]
OptimizerName = Literal["muon", "adamw", "sgd", "novograd", "lamb", "nvlamb", "lars"]
_Side = TypeVar("_Side")


def triple(sides: Iterable[_Side]) -> tuple[_Side, _Side, _Side]:
    """Values along D, H and W as a tuple. Raises ValueError where they are not three."""
    depth, height, width = sides
    return depth, height, width


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitConfig:
    """Which cases are held out for validation."""

    by: Literal["fraction", "fold", "list", "nnunet"] | None = None
    """`fraction`: a seeded draw; `fold`: cross-validation, by the folds that a list gives or else drawn; `list`: the
    ids in `validation`, or what the source holds out; `nnunet`: the folds of nnU-Net's splits_final.json, or without
    one those it would draw. None: what the other settings here ask for, else what the source says, else a fraction."""
    fraction: Annotated[float, Interval(gt=0, lt=1)] | None = None
    """Share of the cases that is validated on (by: fraction); None: 0.2."""
    seed: Natural = 0
    """Seed of the shuffle before a fraction or folds are cut."""
    fold: Natural | None = None
    """Which fold is validated on (by: fold or nnunet), 0-based unless a list numbers them; None: the first."""
    num_folds: Annotated[int, Ge(2)] | None = None
    """Number of folds (by: fold); None: those of the list, else 5."""
    validation: tuple[str, ...] = ()
    """Case ids that are validated on (by: list); empty for those that the source itself holds out."""
    train_range: Range = (0.0, 1.0)
    """Part of the training cases that is used, as shares (from, to) of their order shuffled by `seed`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    """Where the cases come from."""

    source: str = ""
    """A Decathlon folder or its dataset.json, a folder with images/ and labels/, or a JSON or CSV list."""
    spatial_dims: Literal[2, 3] | None = None
    """Declared dimension of the images; None takes what the files say."""
    classes: tuple[str, ...] | dict[str, int] | None = None
    """Names of the label values: in their order, as [background, nucleus] for 0 and 1, or by name, as {nucleus: 255}.
    None takes the source's, from its dataset.json or a labels.json beside the cases, else class_1, class_2, ..."""
    regions: dict[str, tuple[int, ...]] | None = None
    """Classes that overlap, name: [label values], each a network output of its own; None takes what the source says.

    A label map is painted from them in this order, later ones over earlier ones; {} learns the plain classes.
    """
    region_values: dict[str, int] | None = None
    """Label value that each region is painted with; None takes the one value of it that is in no later region."""
    ignore: Count | None = None
    """Label value of voxels that no loss, metric or crop uses, as they are not annotated; None takes the source's."""
    split: SplitConfig = field(default_factory=SplitConfig)


@dataclass(frozen=True, kw_only=True, slots=True)
class PrepareConfig:
    """Deterministic work that is done once per case."""

    orientation: str | None = "RAS"
    """Anatomical axis codes that every volume is turned to; None keeps the file's own."""
    spacing: Spacing | None = None
    """Target voxel spacing (D, H, W) in mm; (0, 0, 0) keeps every case's own."""
    intensity: Intensity | tuple[Intensity, ...] | None = None
    """`zscore`: each case and channel to mean 0, standard deviation 1; `window`: `window` mapped to 0..1, clipped;
    `none`: as it is. One for all channels, or a list with one for each."""
    window: Range | tuple[Range | None, ...] | None = None
    """Intensity window (low, high), in the image's units (HU for CT): one for all windowed channels, or a list with one
    for each channel, null for those that are not windowed."""
    crop_foreground: bool | None = None
    """Crop each case to the box of voxels above its minimum (air, background) before anything is stored."""
    dtype: Literal["float16", "float32"] = "float16"
    """How a prepared image is stored."""
    num_threads: Count | None = None
    """Threads that read and prepare; None takes the number of usable cores."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheConfig:
    """The cache of prepared cases."""

    dir: str | None = None
    """Folder of the persistent cache; None takes $HASTEN_CACHE, else the user's cache folder."""
    home: Literal["auto", "file", "ram", "device"] = "auto"
    """Where batches are read from; `auto` takes the device where all cases fit, else host memory, else the file."""
    device: Amount = "auto"
    """Memory of the GPU for prepared cases with home `auto`, such as 8GiB; `auto` takes half of what is free."""
    ram: Amount = "auto"
    """Host memory for prepared cases with home `auto`, such as 64GiB; `auto` takes half of what is free."""
    hash_content: bool = False
    """Tell files by the SHA-256 of their bytes too, for file systems whose times do not change with a file."""
    max_points: Count = 4096
    """Foreground voxels remembered per case and class, to centre crops on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleConfig:
    """Random crop, and the augmentation of `augment.preset: default`. `*_prob` is per sample."""

    patch: Counts | None = None
    """Size of a training patch (D, H, W) in voxels."""
    batch_size: Count | None = None
    """Patches in a step."""
    fit_batch: bool = False
    """Take the largest batch that fits into a GPU's memory, and scale the learning rate from `batch_size` to it."""
    foreground_prob: Share = 0.5
    """Share of the crops that are centred on a foreground voxel; the class is drawn evenly from those present."""
    flip_prob: tuple[Share, Share, Share] | None = None
    """Probability of a flip along each axis (D, H, W)."""
    affine_prob: Share = 0.5
    """Probability of rotation and scaling, which are applied in one interpolation."""
    rotate_deg: tuple[Angle, Angle, Angle] | None = None
    """Largest rotation about each axis in degrees, from U(-a, a); 2-D uses the first. None: 15; 30 in long budgets."""
    scale_range: Range | None = None
    """Zoom factor; above 1 enlarges the anatomy. None: 0.85 to 1.2, but 0.7 to 1.4 in long runs with `train.budget`."""
    brightness_prob: Share = 0.15
    """Brightness: a factor in 0.75 to 1.25. Others by `augment.override={ScaleIntensity.factors: [-0.1, 0.1]}`."""
    contrast_prob: Share = 0.15
    """Contrast: a factor in 0.75 to 1.25 about the patch mean, the result clipped to the patch's own range. Others by
    `Contrast.contrast_range` in `augment.override`."""
    gamma_prob: Share = 0.15
    """Gamma: an exponent in 0.7 to 1.5 on the patch scaled to 0..1 by its own range. Others by `Gamma.gamma`."""
    noise_prob: Share = 0.1
    """Gaussian noise, its standard deviation drawn evenly from 0 to 0.1. Others by `GaussianNoise.std`."""
    stages: Stages | None = None
    """Progressive patches: up to that share of the steps a patch's sides are `patch` times that factor. None: full
    patches in every step, but smaller ones at first in short 3-D runs with `train.budget` whose patches hold a case."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AugmentConfig:
    """The random operations that a patch goes through (docs/augmentation.md, "Augmentation in a run")."""

    preset: Literal["default", "nnunet", "spleen", "brats", "pathology", "none"] = "default"
    """`default`: flips, affine, intensity as `sample` says; `none`: crops; else nnU-Net's or a MONAI tutorial's."""
    chain: str = ""
    """A chain of your own in place of a preset: FILE.py:NAME, or package.module:NAME."""
    digest: str | None = None
    """SHA-256 of the source that `chain` names; a run sets it, and resumes only with the same source."""
    override: dict[str, Any] = field(default_factory=dict)
    """Fields of the chain's operations, such as {GaussianNoise.prob: 0.2}; Gamma[0].prob is the first Gamma's alone."""


NetworkName = Literal[
    "unet", "dynunet", "plainconvunet", "residualencoderunet", "segresnet", "segresnetds", "mednext", "swinunetr"
]
Activation = Literal["prelu", "relu", "leakyrelu"]


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkConfig:
    """A built-in network (docs/reference/networks.md), or one of your own (docs/how-to/own-network.md)."""

    name: str | None = None
    """`unet`, `dynunet`, `plainconvunet`, `residualencoderunet`, `segresnet`, `segresnetds`, `mednext`, `swinunetr`;
    or your own: FILE.py:NAME or package.module:NAME. None: `plainconvunet` on a CPU, `unet` on a GPU."""
    args: dict[str, Any] = field(default_factory=dict)
    """Further keyword arguments of your own network's class or function."""
    digest: str | None = None
    """SHA-256 of the source that `name` names; a run sets it, and resumes only with the same source."""
    divisor: Counts | None = None
    """What each side (D, H, W) of your own network's input must be a multiple of; None finds it by trying."""
    channels: tuple[Count, ...] | None = None
    """Feature channels per level, finest first."""
    strides: tuple[Counts, ...] | None = None
    """Stride (D, H, W) between neighbouring levels: one fewer than `channels`."""
    num_res_units: Few = 2
    """Residual units per level (unet); 0 is a plain network (unet, dynunet)."""
    blocks: tuple[Count, ...] | None = None
    """Blocks per level, finest first: convolutions of plainconvunet, residual blocks of residualencoderunet, segresnet
    and segresnetds, MedNeXt blocks; None takes what the network's authors do."""
    kernel_size: tuple[Triple, ...] | None = None
    """Odd sides (D, H, W) of the kernels at each level, finest first (dynunet, plainconvunet, residualencoderunet)."""
    norm: Literal["instance", "batch"] = "instance"
    act: Activation | None = None
    """None takes the network's usual one."""
    dropout: Part = 0.0
    deep_supervision: Few = 0
    """Coarser outputs that the loss looks at too while training."""
    weights: str | None = None
    """Weights to start from: a run's or a shared folder, hf://OWNER/NAME, or a .pt, .pth or .safetensors file; None
    draws them at random."""


LossName = Literal["dice_ce", "dice_focal", "dice", "tversky", "tversky_ce", "focal_tversky"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LossConfig:
    """A loss of Hasten's, or one of your own (docs/how-to/own-loss.md)."""

    name: str = "dice_ce"
    """`dice_ce`, `dice_focal`, `dice`, `tversky`, `tversky_ce`, `focal_tversky`; or a function of scores and labels, or
    a class of such: FILE.py:NAME or package.module:NAME."""
    args: dict[str, Any] = field(default_factory=dict)
    """Further keyword arguments of your own loss."""
    digest: str | None = None
    """SHA-256 of the source that `name` names; a run sets it, and resumes only with the same source."""
    include_background: bool = False
    """Whether the Dice term counts the background class."""
    batch: bool = True
    """Whether the Dice term sums over the batch before dividing (steadier with small patches)."""
    gamma: Annotated[float, Interval(ge=0, le=100)] = 2.0
    """Exponent of the focal losses: how little a voxel counts that is classified well already."""
    alpha: NonNegative = 0.3
    """Weight of false positives in the Tversky losses."""
    beta: NonNegative = 0.7
    """Weight of false negatives in the Tversky losses."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """The step, its schedule and when to stop. None is decided from the data or measured on this machine."""

    seed: Natural = 0
    device: str = "auto"
    """`auto`, `cpu`, `cuda`, `cuda:N`, `mps`, `xpu` or `xpu:N`; `auto` is a GPU of NVIDIA's or AMD's, else the CPU."""
    optimizer: OptimizerName = "muon"
    """`muon`: orthogonalised momentum on the convolution filters, AdamW on the rest; the others are for everything."""
    momentum: Part = 0.9
    """Momentum of sgd and lars."""
    steps: Annotated[int, Interval(ge=1, le=10**9)] | None = None
    """Optimizer steps of the whole schedule."""
    learning_rate: Positive | None = None
    """Peak learning rate of the schedule."""
    learning_rate_batch: Natural = 0
    """Batch size that `learning_rate` is meant for: it is scaled by `sample.batch_size` over this; 0 is off."""
    schedule: Literal["one_cycle", "cosine", "poly", "step", "constant"] = "one_cycle"
    """Course of the learning rate after its linear warm-up."""
    milestones: Stages = ((0.5, 0.1), (0.75, 0.01))
    """Schedule `step`: from that share of the steps on, the peak times that factor."""
    warmup_fraction: Part = 0.05
    """Share of the steps in which the learning rate rises."""
    weight_decay: NonNegative = 0.01
    clip_norm: NonNegative = 12.0
    """Gradient norm is clipped to this; 0 does not clip."""
    accumulate: Count = 1
    """Pieces of a batch that go through the network one by one before the update. If it does not divide `batch_size`,
    the last one is smaller; each counts by its samples. Several processes need batches that it divides."""
    ema: Part = 0.995
    """Longest memory of the weights' exponential moving average, which validation and prediction use; 0 is off."""
    precision: Literal["fp32", "tf32", "bf16", "fp16"] | None = None
    """Autocast dtype, or tf32 multiplications on a GPU; None takes the fastest measured here."""
    freeze: tuple[str, ...] = ()
    """Patterns of parameter names (such as encoder.*) that are not trained; batch norms there keep their statistics."""
    lr_scale: dict[str, Positive] = field(default_factory=dict)
    """Factors of the learning rate, {pattern of parameter names: factor}; the first pattern that fits counts."""
    channels_last: bool | None = None
    """Memory format of weights and activations; None takes the fastest measured here."""
    fused_kernels: bool | None = None
    """Use Hasten's kernels on a GPU: norm with activation and, in channels-last, concatenations and convolutions of at
    most 4 channels; None takes them where they work. `false` turns off all others as well: of the loss, the batches."""
    compile: bool | None = None
    """torch.compile the network; None compiles on a CPU when the run is long enough for it to pay."""
    capture: bool | None = None
    """Replay the whole step as one CUDA graph; None does on a GPU where that is possible."""
    cudnn_benchmark: bool = False
    """Let cuDNN time its algorithms on a GPU in the first step of each shape, instead of choosing by its heuristics."""
    activations: Amount = "all"
    """What is kept of a forward pass for the backward pass: all, or a size such as 8GiB, the rest being recomputed."""
    validate_every: Count | None = None
    """Steps between validations."""
    validate_from: Part = 0.0
    """Share of the steps before the first validation: early ones take time and are rarely the best."""
    checkpoint_every: Count | None = None
    """Steps between writes of checkpoints/last.pt; a validation's best is always written."""
    metric: Literal["dice", "iou"] = "dice"
    """Metric for `target` and for the best checkpoint. Validation reports both."""
    target: Annotated[float, Interval(gt=0, le=1)] | None = None
    """Stop when the mean of the metric over cases and foreground classes, or regions, reaches this."""
    budget: Annotated[Seconds, Gt(0)] | None = None
    """Time of the whole run, from the start of the process to the report, such as 10min or 1h, or in seconds. The
    schedule ends in it; where `steps` is open, it also decides network, steps and augmentation, and alone ends the
    run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class InferConfig:
    """Sliding-window inference, for validation and prediction."""

    patch: Counts | None = None
    """Window (D, H, W) in voxels; None takes the training patch."""
    overlap: Part = 0.5
    """Share of a window that overlaps its neighbour."""
    batch_size: Count | None = None
    """Windows that go through the network together; None: measured by a prediction on a GPU, and 4 elsewhere."""
    flip_axes: tuple[Annotated[int, Interval(ge=0, le=2)], ...] = ()
    """Test-time augmentation: axes (0, 1, 2 for D, H, W) whose mirror images, all combinations, are averaged."""


TrackerName = Literal["tensorboard", "mlflow", "wandb"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ObserveConfig:
    """What a run writes about itself while it trains."""

    monitor_every: Seconds = 1.0
    """Seconds between samples of GPU and host in monitor.jsonl; 0 is off."""
    trackers: tuple[TrackerName, ...] = ("tensorboard",)
    """Trackers of the metrics besides metrics.jsonl; wandb writes to files that its own tool sends."""


StrategyName = Literal["auto", "single", "dp", "ddp", "fsdp", "pipeline", "horovod"]


@dataclass(frozen=True, kw_only=True, slots=True)
class DistributeConfig:
    """How several processes share a training. Batch size and steps are those of all of them together."""

    strategy: StrategyName = "auto"
    """`auto`: ddp where several processes were started, else single."""
    backend: Literal["auto", "nccl", "gloo"] = "auto"
    """`auto`: nccl on GPUs, gloo on CPUs."""
    bucket_mb: Positive = 25.0
    """Gradients that travel together, in MiB (ddp): smaller ones overlap more, larger ones wait less often."""
    gradients: Literal["fp32", "fp16", "bf16"] = "fp32"
    """Type in which gradients travel (ddp, fsdp, horovod, which knows no bf16)."""
    sync_norm: bool = False
    """Take the moments of batch norms over all processes."""
    micro_batches: Count = 4
    """Pieces of a batch that are under way in the stages at once (pipeline)."""
    parts: Natural = 0
    """Parts of equal cost that the training cases are dealt into; a process keeps its own in memory. 0: each sees all.
    The samples of a run are decided by the number of parts, whatever number of processes shares them."""
    exchange_every: Natural = 0
    """Epochs after which the cases are redistributed over the parts and processes; 0: never."""
    timeout_s: Annotated[Seconds, Gt(0)] = 600.0
    """Seconds that a process waits for the others in a step before the run is ended."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    __pydantic_config__: ClassVar[dict[str, bool]] = {"allow_inf_nan": False}
    kind: ClassVar[Literal["segmentation"]] = "segmentation"
    data: DataConfig = field(default_factory=DataConfig)
    prepare: PrepareConfig = field(default_factory=PrepareConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    sample: SampleConfig = field(default_factory=SampleConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    infer: InferConfig = field(default_factory=InferConfig)
    observe: ObserveConfig = field(default_factory=ObserveConfig)
    distribute: DistributeConfig = field(default_factory=DistributeConfig)

    def __repr__(self) -> str:
        """The settings that are not the default."""
        usual = flat(RunConfig())
        changed = ", ".join(f"{name}={value!r}" for name, value in flat(self).items() if value != usual[name])
        return f"<{type(self).__name__}: {changed or 'the defaults'}>"
