from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import nibabel as nib
import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import interpolate

from hasten.cases.read import read_image
from hasten.cases.types import Case
from hasten.checkpoint.file import read_checkpoint, write_checkpoint
from hasten.checkpoint.weights import read_model
from hasten.files import replacing
from hasten.prediction.model import load_model
from hasten.prediction.predict import predict
from hasten.prepare.case import prepare_case, restore_label
from hasten.prepare.resample import nearest_index
from tests.prediction.window_scores import sliding_window
from tests.training.phantom_runs import (
    AFFINES,
    SPACING,
    VALUES,
    anatomy,
    array_of,
    picture,
    save,
    variant,
)


@pytest.fixture
def case(tmp_path: Path) -> Path:
    return save(tmp_path / "in" / "new.nii.gz", anatomy(9)[0], np.diag([*SPACING, 1.0]))


def dice(result: np.ndarray, truth: np.ndarray, value: int) -> float:
    return float(2 * ((result == value) & (truth == value)).sum() / ((result == value).sum() + (truth == value).sum()))


def like(image: Any) -> tuple[Any, ...]:
    header = image.header
    return (
        image.shape,
        image.affine.tolist(),
        nib.aff2axcodes(image.affine),
        header.get_zooms(),
        header.get_xyzt_units(),
        int(header["sform_code"]),
        int(header["qform_code"]),
    )


@pytest.mark.parametrize("orientation", AFFINES)
@pytest.mark.parametrize("prepare", [{}, {"spacing": [2.0, 1.0, 0.7], "crop_foreground": True}], ids=["plain", "both"])
def test_a_label_map_lies_on_its_images_voxels(
    run: Path, tmp_path: Path, orientation: str, prepare: dict[str, Any]
) -> None:
    image = anatomy(5)[0]
    image[:2] = image.min()  # air, for the crop to find
    path = save(tmp_path / "new.nii.gz", image, AFFINES[orientation])
    [written] = predict(variant(run, tmp_path / "run", **prepare), path, tmp_path / "out")
    assert written == tmp_path / "out" / "new.nii.gz"
    assert like(nib.load(written)) == like(nib.load(path))
    result = array_of(written)
    assert result.dtype == np.uint8
    assert set(np.unique(result)) <= set(VALUES)


def test_what_was_learned_comes_out_in_the_data_sets_own_values(run: Path, case: Path, tmp_path: Path) -> None:
    [written] = predict(run, [case], tmp_path / "out")
    result, truth = array_of(written), anatomy(9)[1]
    assert set(np.unique(result)) == set(VALUES)
    assert min(dice(result, truth, value) for value in (3, 7)) > 0.7


@pytest.mark.parametrize("prepare", [{}, {"crop_foreground": True}], ids=["plain", "cropped"])
@pytest.mark.parametrize(
    ("axes", "flips"), [((0, 1, 2), (0, 1, 2)), ((2, 0, 1), ()), ((2, 0, 1), (1, 2)), ((1, 0, 2), (0,))]
)
def test_the_same_anatomy_stored_in_another_order_gets_the_same_label(
    run: Path, tmp_path: Path, axes: tuple[int, ...], flips: tuple[int, ...], prepare: dict[str, Any]
) -> None:
    image, affine = nib.Nifti1Image(anatomy(6)[0], AFFINES["RAS"]), AFFINES["RAS"]
    turns = np.array([[axes.index(axis), -1 if axis in flips else 1] for axis in range(3)])
    other = image.as_reoriented(turns)
    paths = [
        save(tmp_path / "straight.nii.gz", image.get_fdata(), affine),
        save(tmp_path / "turned.nii.gz", other.get_fdata(), other.affine),
    ]
    straight, turned = predict(variant(run, tmp_path / "run", **prepare), paths, tmp_path / "out")
    expected = nib.Nifti1Image(array_of(straight), affine).as_reoriented(turns)
    assert len(np.unique(array_of(straight))) == 3
    np.testing.assert_array_equal(array_of(turned), np.asanyarray(expected.dataobj))


def test_an_intensity_scaling_of_the_input_does_not_reach_the_label(run: Path, case: Path, tmp_path: Path) -> None:
    stored = nib.Nifti1Image((array_of(case) * 10).astype(np.int16), np.diag([*SPACING, 1.0]))
    stored.header.set_slope_inter(0.1, 0.0)
    nib.save(stored, tmp_path / "scaled.nii")
    raw = bytearray((tmp_path / "scaled.nii").read_bytes())
    raw[112:120] = np.array([0.1, 2.0], "<f4").tobytes()  # scl_slope and scl_inter, as a scanner writes them
    (tmp_path / "scaled.nii").write_bytes(raw)
    [written] = predict(run, tmp_path / "scaled.nii", tmp_path / "out")
    assert set(np.unique(nib.load(written).get_fdata())) == set(VALUES)
    assert nib.load(written).get_data_dtype() == np.uint8


def test_a_folder_and_files_are_predicted_alike_and_reported_one_by_one(run: Path, tmp_path: Path) -> None:
    paths = [save(tmp_path / f"in/{name}.nii.gz", anatomy(n)[0], np.eye(4)) for n, name in enumerate("cab")]
    (tmp_path / "in/notes.txt").write_text("left alone")
    ticks: list[tuple[int, int, Path]] = []
    from_folder = predict(run, tmp_path / "in", tmp_path / "A", tick=lambda *message: ticks.append(message))
    assert from_folder == [tmp_path / f"A/{name}.nii.gz" for name in "abc"]
    assert ticks == [(number, 3, path) for number, path in enumerate(from_folder, 1)]
    one_by_one = predict(run, [*paths, paths[0]], tmp_path / "B")
    assert [path.name for path in one_by_one] == ["c.nii.gz", "a.nii.gz", "b.nii.gz"]
    for path in from_folder:
        assert path.read_bytes() == (tmp_path / "B" / path.name).read_bytes()


def test_channels_in_files_of_their_own_or_in_one(run_of_two_channels: Path, tmp_path: Path) -> None:
    image = anatomy(3)[0]
    both = [save(tmp_path / f"in/x_{c:04d}.nii.gz", image * (1 + c), np.eye(4)) for c in range(2)]
    save(tmp_path / "in/y_0007.nii.gz", np.stack([image, 2 * image], 3), np.eye(4))
    folder = predict(run_of_two_channels, tmp_path / "in", tmp_path / "out")
    assert [path.name for path in folder] == ["x.nii.gz", "y_0007.nii.gz"]
    assert nib.load(folder[1]).shape == image.shape
    np.testing.assert_array_equal(array_of(folder[0]), array_of(folder[1]))
    named = predict(run_of_two_channels, both[::-1], tmp_path / "named")
    assert [path.name for path in named] == ["x.nii.gz"]
    assert named[0].read_bytes() == folder[0].read_bytes()


def test_an_nnunet_folder_of_one_channel_loses_its_endings(run: Path, tmp_path: Path) -> None:
    for name in ("x_0000", "y_0000"):
        save(tmp_path / f"in/{name}.nii.gz", anatomy(1)[0], np.eye(4))
    assert [path.name for path in predict(run, tmp_path / "in", tmp_path / "A")] == ["x.nii.gz", "y.nii.gz"]
    files = sorted((tmp_path / "in").iterdir())  # as a shell lists them
    assert [path.name for path in predict(run, files, tmp_path / "C")] == ["x.nii.gz", "y.nii.gz"]
    shutil.move(tmp_path / "in/y_0000.nii.gz", tmp_path / "in/y_0001.nii.gz")
    assert [path.name for path in predict(run, tmp_path / "in", tmp_path / "B")] == ["x_0000.nii.gz", "y_0001.nii.gz"]


def test_pictures(run_of_pictures: Path, tmp_path: Path) -> None:
    for name in ("images", "labels"):
        (tmp_path / name).mkdir()
    path, truth = picture(tmp_path, 8)
    [written] = predict(run_of_pictures, path, tmp_path / "out")
    result = np.asarray(Image.open(written))
    assert written.name == "p8.png"
    assert (result.dtype, result.shape) == (np.uint8, truth.shape)
    assert min(dice(result, truth, value) for value in (3, 7)) > 0.7


def fails(message: str, call: Callable[[], object]) -> str:
    with pytest.raises(ValueError) as caught:
        call()
    assert message in str(caught.value)
    return str(caught.value)


def test_an_output_is_replaced_only_when_asked(run: Path, case: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    [written] = predict(run, case, out)
    good = written.read_bytes()
    written.write_bytes(b"somebody's")
    fails(f"{written}: exists; add --overwrite", lambda: predict(run, case, out))
    assert written.read_bytes() == b"somebody's"
    predict(run, case, out, overwrite=True)
    assert written.read_bytes() == good


def test_an_input_is_never_overwritten(run: Path, case: Path, tmp_path: Path) -> None:
    before = case.read_bytes()
    fails(f"{case}: is an input", lambda: predict(run, case, case.parent, overwrite=True))
    (tmp_path / "linked").symlink_to(case.parent)
    fails("is an input", lambda: predict(run, case, tmp_path / "linked", overwrite=True))
    (tmp_path / "hard").mkdir()
    (tmp_path / "hard" / case.name).hardlink_to(case)
    fails("is an input", lambda: predict(run, case, tmp_path / "hard", overwrite=True))
    assert case.read_bytes() == before
    assert list(case.parent.iterdir()) == [case]


def test_two_inputs_of_one_name_are_refused(run: Path, case: Path, tmp_path: Path) -> None:
    other = save(tmp_path / "other/new.nii", anatomy(1)[0], np.eye(4))
    message = fails("would both be written there", lambda: predict(run, [case, other], tmp_path / "out"))
    assert str(case) in message
    assert str(other) in message
    assert not (tmp_path / "out").exists()


def test_names_that_differ_by_case_are_refused_where_they_are_one(
    run: Path, case: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = save(tmp_path / "other/New.nii.gz", anatomy(1)[0], np.eye(4))
    monkeypatch.setattr("hasten.files.ignores_case", lambda folder: True)
    message = fails("would both be written there", lambda: predict(run, [case, other], tmp_path / "out"))
    assert str(case) in message
    assert str(other) in message
    monkeypatch.undo()
    assert len(predict(run, [case, other], tmp_path / "out")) == 2


def test_what_headers_tell_stops_everything_before_it_starts(
    run: Path, run_of_two_channels: Path, case: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    four = save(tmp_path / "four.nii.gz", np.zeros((8, 8, 8, 4), np.float32), np.eye(4))
    series = save(tmp_path / "series.nii.gz", np.zeros((8, 8, 8, 1, 3), np.float32), np.eye(4))
    flat, text, empty = (tmp_path / name for name in ("flat.png", "text.nii.gz", "empty"))
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(flat)
    text.write_text("no image")
    empty.mkdir()
    for inputs, message in (
        ([case, four], f"{four}: 4 channels, but the network was trained on 1 (T0)"),
        (series, f"{series}: "),
        ([case, flat], f"{flat}: a 2-D picture"),
        ([case, text], f"{text}: is no NIfTI file"),
        ([case, tmp_path / "none.nii"], f"{tmp_path / 'none.nii'}: no such file"),
        (empty, f"{empty}: holds no image files"),
        ([four, case, flat, text], "3 inputs can't be predicted"),
    ):
        fails(message, lambda inputs=inputs: predict(run, inputs, out))
    fails(f"{case}: 1 channel, but the network was trained on 2", lambda: predict(run_of_two_channels, case, out))
    fails("train.device", lambda: predict(run, case, out, device="gpu"))
    assert not out.exists()


def test_an_input_that_breaks_off_does_not_stop_the_others(run: Path, tmp_path: Path) -> None:
    paths = [save(tmp_path / f"in/{name}.nii.gz", anatomy(n)[0], np.eye(4)) for n, name in enumerate("abcd")]
    paths[1].write_bytes(paths[1].read_bytes()[:-2000])
    broken = anatomy(2)[0]
    broken[3, 4, 5] = np.nan
    save(paths[2], broken, np.eye(4))
    out = tmp_path / "out"
    message = fails("2 of 4 inputs could not be predicted", lambda: predict(run, tmp_path / "in", out))
    assert f"{paths[1]}: is a damaged or truncated gzip file" in message
    assert f"{paths[2]}: 1 voxels are NaN" in message
    assert f"2 others are in {out}" in message
    assert sorted(path.name for path in out.iterdir()) == ["a.nii.gz", "d.nii.gz", "prediction.json"]
    fails("truncated gzip", lambda: predict(run, paths[1], tmp_path / "alone"))
    assert not (tmp_path / "alone").exists()


def test_a_prediction_unlike_the_training_cases_is_warned_of(
    run: Path, case: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    content = read_checkpoint(run / "checkpoints/best.pt")
    # Boxes of 6 and 5 voxels a side.
    sizes = [(6**3 + 5**3) * np.prod(SPACING) / 1000] * 3
    assert content["foreground"] == pytest.approx(dict(zip(("smallest", "median", "largest"), sizes, strict=True)))
    predict(run, case, tmp_path / "alike")
    assert not caplog.messages
    far = save(tmp_path / "in/far.nii.gz", array_of(case), np.diag([5 * mm for mm in SPACING] + [1]))
    predict(run, [case, far], tmp_path / "far")
    spacing, message = caplog.messages
    assert re.match(rf"{re.escape(str(far))}: .* 7\.5 x 6 x 5 mm .*1\.5 x 1\.2 x 1 to ", spacing)
    assert re.match(rf"{re.escape(str(far))}: [0-9.]+ ml of foreground .* 0.614 ml to ", message)
    caplog.clear()
    several = [Path(shutil.copy(far, far.with_name(f"far{number}.nii.gz"))) for number in range(5)]
    predict(run, several, tmp_path / "several")
    assert len(caplog.messages) == 2 * 3 + 2
    assert sum(text.startswith("2 more images") for text in caplog.messages) == 2
    caplog.clear()
    predict(run, several[:4], tmp_path / "four")
    assert sum(text.startswith("1 more image is unlike") for text in caplog.messages) == 2


BROKEN: dict[str, Callable[[dict[str, Any]], Any]] = {
    "holds NaN or infinite values in 1 weight": lambda content: next(iter(content["weights"].values())).fill_(np.nan),
    "its weights: Input should be a valid dictionary": lambda content: content.update(weights=torch.zeros(3)),
    "leaves infer.patch open": lambda content: content["config"]["infer"].update(patch=None),
    "network.name: must be": lambda content: content["config"]["network"].update(name="transformer"),
}


def test_a_model_that_is_none_or_broken_predicts_nothing(run: Path, case: Path, tmp_path: Path) -> None:
    out, best = tmp_path / "out", tmp_path / "run/checkpoints/best.pt"
    fails(f"{tmp_path / 'none'}: no such run", lambda: predict(tmp_path / "none", case, out))
    shutil.copytree(run, best.parents[1])
    fails("holds the state of a run to resume", lambda: predict(best.with_name("last.pt"), case, out))
    for what, change in BROKEN.items():
        content = read_checkpoint(run / "checkpoints/best.pt")
        change(content)
        write_checkpoint(best, content)
        message = fails(what, lambda: predict(best.parents[1], case, out))
        assert message.startswith(f"{best}: ")
        assert "\n" not in message
    data = bytearray(best.read_bytes())
    data[len(data) // 2] ^= 1
    best.write_bytes(data)
    fails(f"{best}: damaged", lambda: predict(best.parents[1], case, out))
    best.unlink()
    fails(f"{best}: no such checkpoint", lambda: predict(best.parents[1], case, out))
    assert not out.exists()


def test_a_disk_that_fills_up_is_named(run: Path, case: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def full(path: Path, temporary: Path, **options: bool) -> Iterator[IO[bytes]]:
        with replacing(path, temporary, **options) as file:
            yield file
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("hasten.cases.nifti.replacing", full)
    target = tmp_path / "out/new.nii.gz"
    fails(f"{target}: cannot be written (No space left on device)", lambda: predict(run, case, tmp_path / "out"))
    assert not target.exists()
    assert {path.name for path in (tmp_path / "out").glob("*")} <= {"prediction.json"}  # nor half of one


def test_going_on_leaves_what_this_network_wrote(run: Path, tmp_path: Path) -> None:
    affine, out = np.diag([*SPACING, 1.0]), tmp_path / "masks"
    images = [save(tmp_path / f"in/{name}.nii.gz", anatomy(number)[0], affine) for number, name in enumerate("abc")]
    [first] = predict(run, images[0], out)
    before = first.stat().st_mtime_ns
    seen: list[tuple[int, int, str]] = []
    written = predict(
        run, images, out, resume=True, tick=lambda done, all_, target: seen.append((done, all_, target.name))
    )
    assert [path.name for path in written] == ["a.nii.gz", "b.nii.gz", "c.nii.gz"]
    assert seen == [(2, 3, "b.nii.gz"), (3, 3, "c.nii.gz")]
    assert first.stat().st_mtime_ns == before
    assert predict(run, images, out, resume=True) == written
    os.utime(first, (0, 0))
    with pytest.raises(ValueError, match=r"a\.nii\.gz: .*before .*prediction\.json.*; add --overw"):
        predict(run, images, out, resume=True)
    predict(run, images, out, resume=True, overwrite=True)
    assert first.stat().st_mtime > 0
    assert not list(out.glob("*partial*"))


def test_going_on_predicts_no_other_image_under_an_old_name(run: Path, tmp_path: Path) -> None:
    affine, out = np.diag([*SPACING, 1.0]), tmp_path / "masks"
    mine, other = (save(tmp_path / f"{n}/a.nii.gz", anatomy(n)[0], affine) for n in range(2))
    [first] = predict(run, mine, out)
    before = first.read_bytes()
    # The file of another folder, older than the label map.
    fails("a.nii.gz: was predicted from another image", lambda: predict(run, other, out, resume=True))
    # A file that has changed since, of the same size.
    later = first.stat().st_mtime + 5
    os.utime(mine, (later, later))
    fails("a.nii.gz: was predicted from another image", lambda: predict(run, mine, out, resume=True))
    shutil.copy(other, mine)
    os.utime(mine, (0, 0))
    predict(run, mine, out, resume=True, overwrite=True)
    assert first.read_bytes() != before
    assert predict(run, mine, out, resume=True) == [first]


def test_going_on_with_other_settings_is_refused(run: Path, tmp_path: Path) -> None:
    image, out, mine = tmp_path / "a.nii.gz", tmp_path / "masks", tmp_path / "mine"
    save(image, anatomy(0)[0], np.diag([*SPACING, 1.0]))
    shutil.copytree(run, mine)
    [first] = predict(mine, image, out, overrides=["infer.overlap=0.25"])
    at = first.stat().st_mtime_ns
    message = fails("predicted otherwise", lambda: predict(mine, image, out, resume=True))
    assert "infer.overlap=0.5 instead of 0.25" in message
    # What only the machine asks for changes no label; a copy of the network is the same network.
    same = ["infer.overlap=0.25", "infer.batch_size=1"]
    predict(run, image, out, resume=True, overrides=same)
    assert first.stat().st_mtime_ns == at
    # Another network under the same name.
    variant(mine, tmp_path / "other", spacing=[3.0, 2.4, 2.0])
    shutil.copy(tmp_path / "other/checkpoints/best.pt", mine / "checkpoints/best.pt")
    fails("best.pt changed since", lambda: predict(mine, image, out, resume=True, overrides=same))
    predict(mine, image, out, resume=True, overwrite=True, overrides=same)
    assert first.stat().st_mtime_ns > at
    # Without the file nobody knows.
    (out / "prediction.json").unlink()
    fails("a.nii.gz: was written before the settings", lambda: predict(mine, image, out, resume=True))


@pytest.mark.parametrize("target", [[3.0, 2.4, 2.0], [4.5, 1.2, 1.0]])
def test_resampled_scores_are_those_of_all_windows(run: Path, case: Path, tmp_path: Path, target: list[float]) -> None:
    other = variant(run, tmp_path / "other", spacing=target)
    [written] = predict(other, case, tmp_path / "masks")
    model = load_model(read_model(other), where="", device="cpu")
    prepared = prepare_case(read_image(Case(id="a", image=(case,))), None, id="a", spec=model.prepare)
    geometry = prepared.geometry
    scores = sliding_window(model.network, torch.from_numpy(prepared.image), model.inference)
    if target[0] > 3 * target[1]:
        index = torch.from_numpy(nearest_index(geometry.shape[0], geometry.crop_shape[0]))
        scores = scores.index_select(1, index)
    dense = interpolate(scores[None], size=geometry.crop_shape, mode="trilinear", align_corners=False)[0]
    expected = restore_label(dense.argmax(0).numpy(), geometry, model.values)
    top = dense.topk(2, 0).values
    assert (array_of(written) == expected.T).mean() > 1 - float((top[0] - top[1] < 1e-4).float().mean()) - 1e-9
