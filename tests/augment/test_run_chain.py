"""The augmentation of a run: presets and chain files, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hasten.augment.affine import Spatial
from hasten.augment.contrast import Gamma
from hasten.augment.crop import CropByPosNegLabel, ForegroundCrop
from hasten.augment.noise import GaussianNoise
from hasten.augment.run_chain import RunChain, run_chain, with_overrides, with_patch
from hasten.augment.store import store_of_items
from hasten.cache.arena import Store
from hasten.config.schema import AugmentConfig, SampleConfig, Triple
from tests.augment.stores import bind_store

PRESETS = ("default", "nnunet", "spleen", "brats", "none")
SAMPLE = SampleConfig()


def made(
    augment: AugmentConfig, sample: SampleConfig = SAMPLE, *, patch: Triple = (8, 8, 8), channels: int = 1
) -> RunChain:
    return run_chain(
        augment, sample, patch=patch, spatial_dims=2 if patch[0] == 1 else 3, num_channels=channels,
        spacing=(1.0, 1.0, 1.0),
    )  # fmt: skip


def of_file(folder: Path, text: str, sample: SampleConfig = SAMPLE, **options: Any) -> RunChain:
    path = folder / "chains.py"
    path.write_text(text)
    override = options.pop("override", {})
    return made(AugmentConfig(chain=f"{path}:mine", override=override), sample, **options)


def store(channels: int, dims: int) -> Store:
    rng = np.random.default_rng(0)
    shape = (12, 14, 13)[3 - dims :]
    return store_of_items(
        [
            (f"case {number}", {
                "image": rng.random((channels, *shape)).astype(np.float16),
                "label": (rng.random((1, *shape)) < 0.2).astype(np.uint8) * 2,
            })
            for number in range(3)
        ],
        ["image", "label"],
    )  # fmt: skip


def batch_of(run: RunChain, channels: int, dims: int) -> dict[str, torch.Tensor]:
    return bind_store(run.chain, store(channels, dims), batch_size=4)(0)


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("preset", [*PRESETS, "pathology"])
def test_presets(preset: Any, channels: int, dims: int) -> None:
    patch = (1, 8, 8) if dims == 2 else (6, 8, 8)
    if preset == "pathology" and channels != 3:
        with pytest.raises(ValueError, match=r"^augment.preset=pathology: ColorJitter: .*3 channels"):
            made(AugmentConfig(preset=preset), patch=patch, channels=channels)
        return
    run = made(AugmentConfig(preset=preset), patch=patch, channels=channels)
    batch = batch_of(run, channels, dims)
    assert batch["image"].shape == (4, channels, *patch[3 - dims :])
    assert batch["label"].shape == (4, 1, *patch[3 - dims :])
    assert torch.isfinite(batch["image"]).all()
    assert set(batch["label"].unique().tolist()) <= {0, 2}
    assert run.chain.crop is not None
    assert (run.chain.crop.size, run.chain.crop.num_samples) == (patch, 1)
    assert (run.transforms, run.digest) == ((), "")
    assert run.steps[0].name == ("CropByPosNegLabel" if preset == "spleen" else "ForegroundCrop")
    assert len(run.steps) == 1 + len(run.chain.ops)


def test_the_foreground_share_goes_on_for_every_preset() -> None:
    sample = SampleConfig(foreground_prob=0.25)
    for preset in PRESETS:
        crop: Any = made(AugmentConfig(preset=preset), sample).chain.crop  # type: ignore[arg-type]
        assert (crop.pos / (crop.pos + crop.neg) if preset == "spleen" else crop.foreground_prob) == 0.25


def test_overrides_reach_the_chain_and_its_table() -> None:
    run = made(AugmentConfig(preset="nnunet", override={"GaussianNoise.prob": 0.75, "Gamma[1].prob": 0.0}))
    probs = [op.prob for op in run.chain.ops if type(op).__name__ in ("GaussianNoise", "Gamma")]
    assert probs == [0.75, 0.1, 0.0]
    table = run.table()
    assert "GaussianNoise(keys=('image',), prob=0.75" in table
    assert "ForegroundCrop" in table.splitlines()[1]
    with pytest.raises(ValueError, match=r"augment.override: Blurs.prob: .*did you mean Blur\?"):
        made(AugmentConfig(preset="nnunet", override={"Blurs.prob": 0.75}))
    with pytest.raises(ValueError, match=r"augment.override: Blur.prob: .*the chain has none"):
        made(AugmentConfig(preset="none", override={"Blur.prob": 0.75}))


OPS = """
from hasten.augment.affine import Affine
from hasten.augment.chain import Chain
from hasten.augment.colour import ColorJitter
from hasten.augment.crop import CropByPosNegLabel, SpatialCrop
from hasten.augment.grid import Flip, Resize, Rotate90
from hasten.augment.noise import GaussianNoise
"""
MONAI = """
import monai.transforms as mt
keys = ["image", "label"]
"""


@pytest.mark.parametrize(
    "text",
    [
        "mine = [Flip(prob=0.5), GaussianNoise(prob=1.0)]",
        "mine = (SpatialCrop(size=(8, 8, 8), pad=True), Flip(prob=0.5), GaussianNoise(prob=1.0))",
        "mine = Chain(crop=None, ops=(Flip(prob=0.5), GaussianNoise(prob=1.0)), keys=('label', 'image'), "
        "label_keys=('label',))",
        "mine = [CropByPosNegLabel(size=(10, 10, 10)), Flip(), GaussianNoise(), Resize(spatial_size=(8, 8, 8))]",
        "def mine():\n    return [Flip(prob=0.5)]",
    ],
)
def test_hastens_operations(tmp_path: Path, text: str) -> None:
    run = of_file(tmp_path, OPS + text)
    assert run.chain.keys == ("image", "label")
    assert run.transforms == ()
    assert [row.how for row in run.steps] == ["fused"] * (1 + len(run.chain.ops))
    assert len(run.digest) == 64
    own_crop = "Crop" in text
    assert (type(run.chain.crop) is ForegroundCrop) == (not own_crop)
    batch = batch_of(run, 1, 3)
    assert batch["image"].shape == batch["label"].shape == (4, 1, 8, 8, 8)


def test_a_compose_without_a_crop(tmp_path: Path) -> None:
    text = MONAI + "mine = mt.Compose([mt.RandFlipd(keys, prob=0.5), mt.RandGaussianNoised(['image'], prob=1.0)])"
    run = of_file(tmp_path, text, override={"GaussianNoise.std": [0.0, 5.0]})
    assert [row.name for row in run.steps] == ["ForegroundCrop", "RandFlipd", "RandGaussianNoised"]
    assert run.steps[2].ops == ("GaussianNoise(keys=('image',), prob=1, std=(0, 5))",)
    assert run.steps[0].why == "sample.patch, sample.foreground_prob"
    assert batch_of(run, 2, 3)["image"].shape == (4, 2, 8, 8, 8)
    flat = of_file(tmp_path, text, patch=(1, 8, 8))
    assert batch_of(flat, 2, 2)["image"].shape == (4, 2, 8, 8)


def test_a_compose_with_a_crop_and_what_is_not_lowered(tmp_path: Path) -> None:
    text = (
        MONAI
        + """
class Own(mt.MapTransform, mt.Randomizable):
    def __call__(self, data):
        return {**data, "image": data["image"] + 1}

mine = [
    mt.RandCropByPosNegLabeld(keys, "label", (8, 8, 8), num_samples=2),
    Own(["image"]),
    mt.RandFlipd(keys, prob=0.5),
]
"""
    )
    run = of_file(tmp_path, text, SampleConfig(batch_size=4))
    assert run.chain.crop is not None
    assert run.chain.crop.num_samples == 2
    assert [row.how for row in run.steps] == ["fused", "per-sample", "fused"]
    with pytest.raises(ValueError, match=r"no such operation; the chain has CropByPosNegLabel, Flip$"):
        of_file(tmp_path, text, override={"Zoom.prob": 0.1})
    assert "code of your own" in run.steps[1].why
    assert batch_of(run, 1, 3)["label"].shape == (4, 1, 8, 8, 8)
    late = text.replace("[\n    mt.RandCrop", "[\n    Own(['image']),\n    mt.RandCrop")
    run = of_file(tmp_path, late)
    assert [type(each).__name__ for each in run.transforms] == ["Own", "RandCropByPosNegLabeld"]
    assert run.chain.crop is None
    assert [row.how for row in run.steps] == ["per-sample", "per-sample", "per-sample", "fused"]


SIZE = r"\[4, 8, 8\], .*\[8, 8, 8\]; set sample.patch=\[4, 8, 8\]"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mine = lambda: 3", r"is a int; a list of Hasten's operations"),
        ("mine = []", r"is a list; .*augment.preset=none"),
        ("mine = [Flip]", r"is a list; a list of Hasten's operations"),
        ("mine = [Flip(), 3]", r"is a list; a list of Hasten's operations"),
        ("mine = [Flip(), mt.RandFlipd(keys)]", r"mixes operations and transforms"),
        ("mine = [Flip(), SpatialCrop(size=(8, 8, 8))]", r"a crop that is not the first"),
        ("mine = Chain(crop=None, ops=(), keys=('image',))", r"is a Chain with keys=\('image',\), label_keys=\(\);"),
        ("mine = [SpatialCrop(size=(4, 8, 8))]", SIZE),
        ("mine = [Resize(spatial_size=(4, 8, 8))]", SIZE),
        ("mine = [mt.RandSpatialCropd(keys, (4, 8, 8), random_size=False)]", SIZE),
        ("mine = [mt.RandFlipd(keys), mt.Resized(keys, (4, 8, 8), mode=['bilinear', 'nearest'])]", SIZE),
        ("mine = [Flip(keys=('image', 'mask'))]", r'Flip: needs "mask", .*image and label'),
        ("mine = [mt.RandFlipd(['image', 'mask'])]", r'RandFlipd: needs "mask", and the cases'),
        ("mine = mt.OneOf([mt.RandFlipd(keys), mt.RandFlipd(['mask'])])", r'RandFlipd: needs "mask", and the cases'),
        ("mine = [Flip(spatial_axis=(3,))]", r"Flip: axes \(3,\); patches have 3, counted from 0"),
        ("class Own:\n keys, prob = ('image',), 1.0\n def draw(self, key, shape): return {'x': 1 / 0}\n"
         " def apply(self, image, drawn): return image\nmine = [Own()]",
         r"Own: draw raises ZeroDivisionError\('division by zero'\)"),
        ("mine = [mt.RandWeightedCropd(keys, 'w', (8, 8, 8))]", r'RandWeightedCropd: needs "w", and the cases'),
        ("mine = [mt.LoadImaged(keys), mt.Spacingd(keys, (1, 1, 1)), mt.RandFlipd(keys)]",
         r"LoadImaged, Spacingd: .*leave it out, as prepare"),
        ("mine = [mt.RandFlip()]", r"RandFlip: works on arrays; write RandFlipd"),
        ("mine = [mt.RandRotated(keys, 0.3, mode='bilinear')]", r'RandRotated: mode: the label key "label" is given'),
        ("mine = [Affine(mode=('bilinear',))]", r'Affine: mode: "label" holds classes'),
        ("mine = [mt.RandFlipd(keys), mt.MixUpd(keys, 4)]", r"MixUpd: mixes the samples of a batch"),
        ("mine = [ColorJitter(hue=0.1)]", r"ColorJitter: the image has 1 channel"),
        ("mine = [CropByPosNegLabel(size=(8, 8, 8), num_samples=3)]",
         r"CropByPosNegLabel: num_samples=3 .*sample.batch_size=4"),
    ],
)  # fmt: skip
def test_what_a_chain_file_may_not_hold(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as raised:
        of_file(tmp_path, OPS + MONAI + text, SampleConfig(batch_size=4))
    assert str(raised.value).startswith(f"augment.chain={tmp_path / 'chains.py'}:mine: ")


def test_a_source_that_has_changed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "chains.py"
    digest = of_file(tmp_path, OPS + "mine = [Flip()]").digest
    augment = AugmentConfig(chain=f"{path}:mine", digest=digest)
    assert made(augment).digest == digest
    path.write_text(OPS + "mine = [Flip(prob=0.3)]")
    with pytest.raises(ValueError, match=r"its source has changed since .* by augment.digest=(\w{64})$") as raised:
        made(augment)
    assert made(AugmentConfig(chain=augment.chain, digest=str(raised.value)[-64:])).digest != digest


def test_a_crop_of_its_own_leaves_no_use_for_the_foreground_share(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"sample.foreground_prob=0.3 .*leave the crop out, .*=0.5"):
        of_file(tmp_path, OPS + "mine = [SpatialCrop(size=(8, 8, 8))]", SampleConfig(foreground_prob=0.3))


def test_stages(tmp_path: Path) -> None:
    sample = SampleConfig(stages=((0.5, 0.5),))
    run = of_file(tmp_path, OPS + "mine = [SpatialCrop(size=(8, 8, 8)), Flip(prob=1.0)]", sample)
    small = with_patch(run, (4, 4, 4))
    assert batch_of(small, 1, 3)["image"].shape == (4, 1, 4, 4, 4)
    own = "mt.RandLambdad(['image'], abs)"
    for transforms in (f"mt.RandFlipd(keys), {own}", f"{own}, mt.RandFlipd(keys)"):
        checked = of_file(tmp_path, f"{MONAI}mine = [{transforms}]", sample)
        assert batch_of(with_patch(checked, (4, 4, 4)), 1, 3)["image"].shape == (4, 1, 4, 4, 4)
    with pytest.raises(ValueError, match=r"sample.stages: .*\[8, 8, 8\] whatever comes in"):
        of_file(tmp_path, OPS + "mine = [Flip(), Resize(spatial_size=(8, 8, 8))]", sample)
    late = MONAI + "mine = [mt.RandLambdad(keys, abs), mt.RandCropByPosNegLabeld(keys, 'label', (8, 8, 8))]"
    with pytest.raises(ValueError, match=r"sample.stages: the chain crops sample by sample"):
        of_file(tmp_path, late, sample)


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (
            "mt.RandZoomd(keys, prob=1.0, min_zoom=1.5, max_zoom=1.5, keep_size=False)",
            r'makes "image" \(1, 12, 12, 12\)',
        ),
        ("mt.AsDiscreted(['label'], to_onehot=3)", r'makes "label" \(3, 8, 8, 8\), .*needs \(1, 8, 8, 8\)'),
        ("mt.SelectItemsd(['image'])", r'leaves no "label" in the batch'),
    ],
)
def test_what_shows_with_the_first_batch_only(tmp_path: Path, transform: str, message: str) -> None:
    run = of_file(tmp_path, f"{MONAI}mine = mt.Compose([mt.RandFlipd(keys), {transform}])")
    with pytest.raises(ValueError, match=f"^augment.chain: {message}"):
        batch_of(run, 1, 3)


def test_an_operation_that_never_happens_is_shown_as_off() -> None:
    rows = {row.name: row for row in made(AugmentConfig(), SampleConfig(noise_prob=0.0)).steps}
    assert (rows["GaussianNoise"].how, rows["GaussianNoise"].why) == ("off", "its probability is 0")
    assert rows["Gamma"].how == "fused"


SOME = (Spatial(), GaussianNoise(prob=0.1), Gamma(prob=0.1), Gamma(prob=0.3))


def test_fields_are_changed() -> None:
    override = {"GaussianNoise.prob": 0.2, "Gamma": {"gamma": [0.5, 2]}, "Gamma[1].prob": 1}
    result = with_overrides(SOME, override)
    assert result == (
        Spatial(),
        GaussianNoise(prob=0.2),
        Gamma(prob=0.1, gamma=(0.5, 2.0)),
        Gamma(prob=1.0, gamma=(0.5, 2.0)),
    )
    assert isinstance(result[3].prob, float)
    assert with_overrides(SOME, {}) == SOME
    crop = CropByPosNegLabel(size=(8, 8, 8), image_key="image")
    assert with_overrides([crop], {"CropByPosNegLabel.image_key": None})[0].image_key is None


@pytest.mark.parametrize(
    ("target", "value", "message"),
    [
        (
            "GaussianNoize.prob", 0.1,
            "no such operation; did you mean GaussianNoise?",
        ),
        ("Blur.prob", 0.1, "; the chain has Spatial, GaussianNoise, Gamma"),
        ("Spatial.rotate_probs", 0.1, "did you mean rotate_prob or rotate? Spatial has keys,"),
        ("Gamma[2].prob", 0.1, "2 Gamma, counted from 0; write Gamma[1].prob, or Gamma.prob"),
        ("Gamma.prob", 1.5, "Gamma: prob=1.5; a probability lies between 0 and 1"),
        ("Gamma.prob", "often", "must be a valid number"),
        ("Gamma.prob", True, "must be a number (given True)"),
        ("Gamma.prob", None, "must be a valid number (given None)"),
        ("Gamma.gamma", [0.5], "(given [0.5])"),
        ("Gamma.gamma", 0.5, "(given 0.5)"),
        ("Gamma.gamma", [2, 1], "the range is the wrong way round"),
    ],
)  # fmt: skip
def test_what_is_not_there_or_can_not_be(target: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as raised:
        with_overrides(SOME, {target: value})
    assert str(raised.value).startswith(f"augment.override: {target}: ")
    assert "\n" not in str(raised.value)


def test_no_operation_at_all() -> None:
    with pytest.raises(ValueError, match="no such operation; the chain has none"):
        with_overrides([], {"Gamma.prob": 0.1})
