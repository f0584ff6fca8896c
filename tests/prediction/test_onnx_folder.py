"""The folder of `hasten export --format onnx` predicts as Hasten does, where torch, MONAI and Hasten are not."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
import tifffile
from PIL import Image
from typer.testing import CliRunner

from hasten.checkpoint.file import read_checkpoint, write_checkpoint
from hasten.cli.main import app
from hasten.prediction import folders
from hasten.prediction.export import export_weights
from hasten.prediction.postprocess import Cleaning, write_cleanings
from hasten.prediction.predict import predict
from tests.training.phantom_runs import AFFINES, anatomy, array_of, save, variant

ALONE = """
import runpy, sys
class Missing:
    def find_spec(self, name, *_):
        if name.split(".")[0] in ("torch", "monai", "hasten", "tifffile"):
            raise ImportError(f"{name} is not here", name=name)
sys.meta_path.insert(0, Missing())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
THICK = np.diag([1.0, 1.2, 4.5, 1.0])


def alone(folder: Path, *words: Any) -> subprocess.CompletedProcess[str]:
    """predict.py of a folder, where nothing of what trained the network can be imported."""
    command = [sys.executable, "-c", ALONE, folder / "predict.py", "--threads", 1, *words]
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)


def error_of(folder: Path, *words: Any) -> str:
    done = alone(folder, *words)
    assert done.returncode == 1, done.stdout
    assert "Traceback" not in done.stderr
    return done.stderr


def pixels(path: Path) -> np.ndarray:
    return np.asarray(Image.open(path)) if path.suffix == ".png" else array_of(path)


def agree(run: Any, images: Path, folder: Path, *, least: float = 0.9999) -> list[np.ndarray]:
    """The label maps of predict.py, after they were found to be those of `hasten predict`."""
    export_weights(run, folder / "model", "onnx")
    assert {path.name for path in (folder / "model").iterdir()} == {"network.onnx", "model.json", "predict.py"}
    done = alone(folder / "model", images, "--out", folder / "theirs")
    assert done.returncode == 0, done.stderr
    ours = predict(run, images, folder / "ours")
    theirs = [folder / "theirs" / path.name for path in ours]
    assert done.stdout.split() == [*map(str, sorted(theirs))]
    same = total = 0
    for one, other in zip(ours, theirs, strict=True):
        mine, its = pixels(one), pixels(other)
        assert (mine.shape, mine.dtype) == (its.shape, its.dtype)
        if one.suffix == ".gz":
            assert nib.load(one).header == nib.load(other).header
        same, total = same + int((mine == its).sum()), total + mine.size
    assert same >= least * total, (same, total)
    return [pixels(path) for path in theirs]


def changed(run: Path, out: Path, **sections: dict[str, Any]) -> Path:
    content = read_checkpoint(run / "checkpoints/best.pt")
    for name, values in sections.items():
        content["config"][name].update(values)
    write_checkpoint(out / "checkpoints/best.pt", content)
    return out


def volumes(folder: Path) -> Path:
    """One image in several orientations, types and units, and one of thick slices."""
    image = anatomy(5)[0]
    image[:2] = image.min()
    for name, affine in AFFINES.items():
        save(folder / f"{name}.nii.gz", image, affine)
    save(folder / "thick.nii", image.astype(np.uint8), THICK)
    save(folder / "small.nii.gz", image[4:16, 2:15, :9], AFFINES["LPS"])
    stored = nib.Nifti2Image(image.astype(">i2"), AFFINES["oblique"])
    stored.header.set_slope_inter(0.5, -3)
    stored.set_sform(np.diag([1e3, 1e3, 1e3, 1.0]) @ stored.affine)
    stored.header.set_xyzt_units("micron")
    nib.save(stored, folder / "stored.nii.gz")
    return folder


@pytest.mark.parametrize(
    ("prepare", "infer"),
    [
        ({"crop_foreground": True}, {}),
        ({"spacing": [2.0, 1.0, 0.9], "orientation": "LPI"}, {"flip_axes": [0, 2]}),
        ({"spacing": [4.0, 1.1, 1.0], "intensity": "window", "window": [0.0, 160.0], "crop_foreground": True}, {}),
        ({"orientation": None, "dtype": "float32", "intensity": "none"}, {"overlap": 0.25, "patch": [8, 8, 8]}),
    ],
    ids=["cropped", "resampled-flips", "window", "as-it-is"],
)
def test_volumes(run: Path, tmp_path: Path, prepare: dict[str, Any], infer: dict[str, Any]) -> None:
    labels = agree(changed(run, tmp_path / "run", prepare=prepare, infer=infer), volumes(tmp_path / "images"), tmp_path)
    assert prepare.get("intensity") or all(len(np.unique(label)) == 3 for label in labels)  # as trained


def test_channels_and_regions(run_of_two_channels: Path, tmp_path: Path) -> None:
    content = read_checkpoint(run_of_two_channels / "checkpoints/best.pt")
    content["labels"]["300"] = "c"
    content["regions"] = {"whole": [3, 7, 300], "core": [7, 300], "rim": [300]}
    content["config"]["prepare"].update(intensity=["window", "zscore"], window=[[0.0, 160.0], None])
    write_checkpoint(tmp_path / "best.pt", content)
    image = anatomy(5)[0]
    for channel in range(2):
        save(tmp_path / f"images/a_{channel:04d}.nii.gz", image * (1 + channel), AFFINES["LPS"])
    save(tmp_path / "images/both_0007.nii.gz", np.stack([image, 2 * image], -1), AFFINES["permuted"])
    labels = agree(tmp_path / "best.pt", tmp_path / "images", tmp_path)
    assert [label.max() for label in labels] == [300, 300]
    beside = save(tmp_path / "moved/a_0001.nii.gz", image, AFFINES["LPS"] + np.eye(4)[:, [3, 0, 1, 2]])
    first = (tmp_path / "images/a_0000.nii.gz").rename(tmp_path / "moved/a_0000.nii.gz")
    text = error_of(tmp_path / "model", first, beside, "--out", tmp_path / "out")
    assert f"{beside}: is not on the grid of {first}; resample" in text
    assert "case a has 1 channels; the network takes 2 (T0, T1)" in error_of(tmp_path / "model", first, "--out", "out")


def test_pictures(run_of_pictures: Path, tmp_path: Path) -> None:
    images = tmp_path / "images"
    images.mkdir()
    array = anatomy(9, (24, 21))[0].clip(0, 255).astype(np.uint8)
    Image.fromarray(array).save(images / "gray.png")
    Image.fromarray(array.astype(np.uint16) * 100).save(images / "deep.png")
    Image.fromarray(array.astype(np.uint16) * 100).save(images / "deep2.tif")
    tifffile.imwrite(images / "float.ome.tif", array.astype(np.float32))
    for turn in (3, 6, 7):
        exif = Image.Exif()
        exif[274] = turn
        for ending in ("png", "jpg"):
            Image.fromarray(array).save(images / f"turn{turn}-{ending}.{ending}", exif=exif)
    save(images / "slice.nii.gz", array[:, None, :], AFFINES["LPS"])
    labels = agree(changed(run_of_pictures, tmp_path / "run", infer={"flip_axes": [1, 2]}), images, tmp_path)
    assert {label.shape for label in labels} == {(24, 21), (21, 24), (24, 1, 21)}
    tifffile.imwrite(tmp_path / "inverted.tif", array, photometric="miniswhite")
    tifffile.imwrite(tmp_path / "stack.tif", np.stack([array, array]), photometric="minisblack")
    Image.fromarray(array).save(tmp_path / "turned.tif", exif=exif)
    for name, problem in (("inverted", "an unusual kind"), ("turned", "an unusual kind"), ("stack", "several pages")):
        text = error_of(tmp_path / "model", tmp_path / f"{name}.tif", "--out", tmp_path)
        assert f"/{name}.tif: h" in text
        assert problem in text
    volume = save(tmp_path / "volume.nii.gz", anatomy(5)[0], AFFINES["RAS"])
    assert "and the network of 2-D images" in error_of(tmp_path / "model", volume, "--out", tmp_path)


def test_several_runs_and_their_post_processing(run: Path, tmp_path: Path) -> None:
    other = changed(run, tmp_path / "other", infer={"flip_axes": [0]})
    content = read_checkpoint(other / "checkpoints/best.pt")
    content["weights"] = {name: 1.1 * tensor for name, tensor in content["weights"].items()}
    write_checkpoint(other / "checkpoints/best.pt", content)
    runs = [other, variant(run, tmp_path / "third")]
    for each in runs:
        cleanings = {3: Cleaning(keep_largest=True, fill_holes=True), 7: Cleaning(min_volume_mm3=1e4)}
        write_cleanings(each, cleanings)
    images = volumes(tmp_path / "images")
    labels = agree(runs, images, tmp_path)
    assert all(set(np.unique(label)) == {0, 3} for label in labels)
    done = alone(tmp_path / "model", images, "--out", tmp_path / "theirs", "--overwrite", "--no-postprocessing")
    assert done.returncode == 0, done.stderr
    assert 7 in array_of(tmp_path / "theirs/RAS.nii.gz")
    with pytest.raises(ValueError, match="holds one run, not 2; export one, or a folder by --format onnx"):
        export_weights(runs, tmp_path / "model.onnx")


def test_what_is_missing_changed_or_not_read(run: Path, tmp_path: Path) -> None:
    model, image = tmp_path / "model", save(tmp_path / "a.nii.gz", anatomy(5)[0], AFFINES["RAS"])
    words: Sequence[Any] = ["export", run, "--format", "onnx", "--out", model]
    for more, code in (((), 0), ((), 2), (("--overwrite",), 0)):
        result = CliRunner().invoke(app, [*map(str, words), *more])
        assert result.exit_code == code, result.output
    assert f"python {model}/predict.py IMAGE... --out LABELS" in result.output
    assert json.loads((model / "model.json").read_text())["labels"] == {"0": "background", "3": "a", "7": "b"}
    assert alone(model, "--help").stdout.startswith("usage: predict.py")
    (tmp_path / "scan.dcm").write_bytes(b"DICM")
    broken = save(tmp_path / "sub/broken.nii.gz", np.full((9, 9, 9), np.nan, np.float32), AFFINES["RAS"])
    text = error_of(model, image, broken, "--out", tmp_path / "out")
    assert f"error: {broken}: has NaN or infinite voxels; replace them" in text
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a.nii.gz"]
    for inputs, problem in (
        ([image], f"{tmp_path}/out/a.nii.gz: exists; choose another --out, or add --overwrite"),
        ([tmp_path / "scan.dcm"], "scan.dcm: is no file of a kind read here"),
        ([tmp_path / "none.nii.gz"], "none.nii.gz: no such file"),
        ([model], f"{model}: holds no image"),
        ([image, "--provider", "Other"], "--provider Other: not here; use one of"),
    ):
        assert problem in error_of(model, *inputs, "--out", tmp_path / "out")
    assert "a.nii.gz: exists" in error_of(model, image, "--out", tmp_path, "--overwrite")
    data = (model / "network.onnx").read_bytes()
    (model / "network.onnx").write_bytes(data[:-1] + b"x")
    assert f"{model}/network.onnx: was changed" in error_of(model, image, "--out", tmp_path / "other")
    (model / "network.onnx").unlink()
    assert f"{model}/network.onnx: is missing; copy the whole folder" in error_of(model, image, "--out", tmp_path)


def test_the_script_is_one_short_file_of_few_packages() -> None:
    text = Path(folders.__file__).with_name("predict.py.txt").read_text()
    assert len(text.splitlines()) < 400
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {getattr(node, "module", None) or node.names[0].name for node in nodes}
    others = {name.split(".")[0] for name in names} - set(sys.stdlib_module_names)
    assert others == {"numpy", "onnxruntime", "nibabel", "PIL", "scipy"}
