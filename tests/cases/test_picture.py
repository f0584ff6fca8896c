from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from hasten.cases.formats import read_file, read_file_header
from hasten.cases.picture import read_picture

GRAY = np.arange(12, dtype=np.uint8).reshape(3, 4)
COLOUR = np.arange(36, dtype=np.uint8).reshape(3, 4, 3)


@pytest.mark.parametrize("name", ["a.png", "a.tif", "a.bmp"])
def test_gray_and_colour(tmp_path: Path, name: str) -> None:
    Image.fromarray(GRAY).save(tmp_path / name)
    volume = read_file(tmp_path / name)
    np.testing.assert_array_equal(volume.array, GRAY[None, None])
    np.testing.assert_array_equal(volume.affine, np.eye(4))
    assert volume.spacing == (1, 1, 1)
    Image.fromarray(COLOUR).save(tmp_path / name)
    np.testing.assert_array_equal(read_file(tmp_path / name).array, COLOUR.transpose(2, 0, 1)[:, None])


@pytest.mark.parametrize("mode", ["L", "LA", "RGB", "RGBA", "P", "1", "I;16", "F", "CMYK"])
def test_header_agrees_with_the_pixels(tmp_path: Path, mode: str) -> None:
    name = "a.tif" if mode in ("F", "CMYK") else "a.png"
    expected = {"RGB": 3, "RGBA": 3, "P": 3, "CMYK": 4}.get(mode, 1)
    Image.new(mode, (7, 5)).save(tmp_path / name)
    array = read_file(tmp_path / name).array
    shape, num_channels, _ = read_file_header(tmp_path / name)
    assert (num_channels, *shape) == array.shape == (expected, 1, 5, 7)


@pytest.mark.parametrize("name", ["deep.png", "deep.tif"])
def test_16_bit_is_kept(tmp_path: Path, name: str) -> None:
    values = np.array([[0, 300, 65535]], np.uint16)
    Image.fromarray(values).save(tmp_path / name)
    array = read_file(tmp_path / name).array
    assert array.dtype == np.uint16
    np.testing.assert_array_equal(array[0, 0], values)


def test_palette_is_colour_in_an_image_and_index_in_a_label(tmp_path: Path) -> None:
    picture = Image.fromarray(np.array([[0, 2], [1, 2]], np.uint8), "P")
    picture.putpalette([0, 0, 0, 255, 0, 0, 0, 255, 0])
    picture.save(tmp_path / "p.png")
    np.testing.assert_array_equal(read_picture(tmp_path / "p.png", indices=True).array, [[[[0, 2], [1, 2]]]])
    assert read_file(tmp_path / "p.png").array[:, 0, 1, 0].tolist() == [255, 0, 0]


@pytest.mark.parametrize("orientation", range(1, 10))
@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.tif", "deep.png", "deep.tif"])
def test_exif_orientation_is_applied_as_by_viewers(tmp_path: Path, name: str, orientation: int) -> None:
    picture = Image.fromarray(np.uint16(257) * GRAY if name.startswith("deep") else np.full_like(COLOUR, 90))
    picture.putpixel((0, 0), 7 if name.startswith("deep") else (250, 250, 250))
    picture.getexif()[274] = orientation
    options = {"quality": 100, "subsampling": 0} if name.endswith("jpg") else {}
    picture.save(tmp_path / name, exif=picture.getexif(), **options)
    turned = np.asarray(ImageOps.exif_transpose(picture))
    array = read_file(tmp_path / name).array
    turned = turned[None] if turned.ndim == 2 else turned.transpose(2, 0, 1)
    assert np.abs(array[:, 0].astype(int) - turned).max() <= (12 if name.endswith("jpg") else 0)
    assert array.shape[2:] == ((4, 3) if orientation in (5, 6, 7, 8) else (3, 4))
    assert read_file_header(tmp_path / name)[0] == array.shape[1:]


def test_damaged_exif_is_ignored(tmp_path: Path) -> None:
    Image.fromarray(GRAY).save(tmp_path / "a.png", exif=b"MMxx")
    np.testing.assert_array_equal(read_file(tmp_path / "a.png").array[0, 0], GRAY)
    assert read_file_header(tmp_path / "a.png")[0] == (1, 3, 4)


LABEL = Image.fromarray(np.kron(np.eye(8, dtype=np.uint8), np.full((5, 5), 200, np.uint8)))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("a.jpg", {"format": "JPEG"}),
        ("a.png", {"format": "JPEG"}),
        ("a.tif", {"format": "TIFF", "compression": "jpeg"}),
        ("stack.tif", {"format": "TIFF", "compression": "jpeg", "save_all": True, "append_images": [LABEL]}),
        ("a.bmp", {"format": "JPEG2000", "irreversible": True}),
        ("b.png", {"format": "WEBP"}),
    ],
)
def test_lossy_compression_is_for_images_and_not_for_labels(tmp_path: Path, name: str, options: dict) -> None:
    LABEL.save(tmp_path / name, **options)
    assert len(np.unique(read_file(tmp_path / name).array)) > 2
    with pytest.raises(ValueError, match=r"lossy .*label values; save .*as PNG") as error:
        read_file(tmp_path / name, label=True)
    assert str(error.value).startswith(f"{tmp_path / name}: is stored as ")


def test_bad_pictures(tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("no picture")
    good = tmp_path / "cut.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64)).astype(np.uint8)).save(good)
    good.write_bytes(good.read_bytes()[:1000])
    Image.fromarray(GRAY).save(tmp_path / "stack.png", save_all=True, append_images=[Image.fromarray(GRAY + 1)])
    Image.new("CMYK", (4, 3)).save(tmp_path / "inks.jpg")
    for name, what in {
        "text.png": "cannot be read as a picture",
        "cut.png": "cannot be read as a picture",
        "stack.png": "holds 2 pages",
        "inks.jpg": r"stores inks \(CMYK\), whose colours depend on a profile; convert it to RGB",
        "gone.png": "does not exist",
    }.items():
        with pytest.raises(ValueError, match=what) as error:
            read_file(tmp_path / name)
        assert name in str(error.value)


def test_16_bit_colour_is_refused_rather_than_cut(tmp_path: Path) -> None:
    Image.fromarray(COLOUR).save(tmp_path / "a.png")
    data = bytearray((tmp_path / "a.png").read_bytes())
    data[24] = 16
    (tmp_path / "a.png").write_bytes(_with_header_checksum(data))
    for read in (read_file, read_file_header):
        with pytest.raises(ValueError, match="16-bit with colour"):
            read(tmp_path / "a.png")


def _with_header_checksum(data: bytearray) -> bytes:
    data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
    return bytes(data)
