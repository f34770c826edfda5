"""Pictures of any size and pixel type become C × H × W, with their aspect ratio."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from apac.data import folder
from apac.data.image_file import Fit, read_image
from apac.errors import InputError
from image_folders import gallery, paint


def gradient(width: int, height: int) -> NDArray[np.uint8]:
    """A smooth picture: red grows to the right, green downwards."""
    x, y = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
    return np.stack([x, y, np.full_like(x, 90)], axis=-1).round().astype(np.uint8)


def resized(pixels: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    return np.asarray(cv2.resize(pixels, size, interpolation=cv2.INTER_AREA), np.uint8)


# Another resampling (the mean over areas) of a smooth picture, and the rounding of JPEG.
TOLERANCE = 5


@pytest.mark.parametrize("size", [20, 96, 150])
@pytest.mark.parametrize(("width", "height"), [(300, 150), (150, 300), (160, 160)])
def test_the_center_is_cropped_or_the_edge_is_repeated(size: int, width: int, height: int, tmp_path: Path) -> None:
    pixels = gradient(width, height)
    Image.fromarray(pixels).save(tmp_path / "picture.png")
    side, long = min(width, height), max(width, height)
    left, upper = (width - side) // 2, (height - side) // 2
    image, _ = read_image(tmp_path / "picture.png", (3, size, size))
    expected = resized(pixels[upper : upper + side, left : left + side], (size, size))
    np.testing.assert_allclose(image.permute(1, 2, 0).float(), expected.astype(float), atol=TOLERANCE)

    image, notes = read_image(tmp_path / "picture.png", (3, size, size), fit="pad")
    inner = resized(pixels, (size * width // long, size * height // long))
    before = [(size - length) // 2 for length in inner.shape[:2]]
    margins = [(low, size - length - low) for low, length in zip(before, inner.shape[:2], strict=True)]
    expected = np.pad(inner, [*margins, (0, 0)], mode="edge")
    np.testing.assert_allclose(image.permute(1, 2, 0).float(), expected.astype(float), atol=TOLERANCE)
    assert ("padded" in notes) == (width != height)


def test_a_reduced_jpeg_file_is_not_shifted(tmp_path: Path) -> None:
    """A picture with an edge in the middle of its center: a shift by half a pixel would change it by half of 255."""
    pixels = np.zeros((1001, 1603, 3), np.uint8)
    pixels[:, 801:] = 255
    pixels[:, 801 + 30 :, 0] = 0
    Image.fromarray(pixels).save(tmp_path / "photo.jpg", quality=95, subsampling=0)
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    photo, exact = (read_image(tmp_path / f"photo.{suffix}", (3, 33, 33))[0].float() for suffix in ("jpg", "png"))
    assert float((photo - exact).abs().max()) <= TOLERANCE


@pytest.mark.parametrize("fit", ["crop", "pad"])
@pytest.mark.parametrize("orientation", [1, 3, 6])
def test_a_large_jpeg_file_is_reduced_while_it_is_decoded_and_turned(
    fit: Fit, orientation: int, tmp_path: Path
) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    picture = Image.fromarray(gradient(1600, 1000))
    turned = {1: picture, 3: picture.rotate(180), 6: picture.transpose(Image.Transpose.ROTATE_90)}[orientation]
    turned.save(tmp_path / "photo.jpg", exif=exif, quality=95)
    picture.save(tmp_path / "photo.png")
    photo, notes = read_image(tmp_path / "photo.jpg", (3, 48, 48), fit=fit)
    exact, _ = read_image(tmp_path / "photo.png", (3, 48, 48), fit=fit)
    torch.testing.assert_close(photo.float(), exact.float(), atol=TOLERANCE, rtol=0)
    assert "resized from 1600 × 1000" in notes


def png_16_bit(pixels: NDArray[np.uint16]) -> bytes:
    """Encode (H, W, C) as a PNG of 16 bits; Pillow writes only gray ones."""
    height, width, channels = pixels.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", width, height, 16, {1: 0, 2: 4, 3: 2, 4: 6}[channels], 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    parts = (struct.pack(">I", len(c)) + kind + c + struct.pack(">I", zlib.crc32(kind + c)) for kind, c in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_16_bits_have_the_brightness_of_8(channels: int, tmp_path: Path) -> None:
    pixels = gradient(60, 60)[..., :1] if channels < 3 else gradient(60, 60)
    alpha = [np.full((60, 60, 1), 255)] if channels in (2, 4) else []
    deep = np.concatenate([pixels, *alpha], axis=-1).astype(np.uint16) * 257
    (tmp_path / "deep.png").write_bytes(png_16_bit(deep))
    shape = (1 if channels < 3 else 3, 60, 60)
    image, _ = read_image(tmp_path / "deep.png", shape)
    np.testing.assert_array_equal(image.permute(1, 2, 0), pixels)


@pytest.mark.parametrize("mode", ["P", "CMYK", "YCbCr", "RGBA", "LA", "L", "1"])
def test_every_pixel_mode_is_read_at_another_size(mode: str, tmp_path: Path) -> None:
    color = (200, 60, 90) if mode in ("P", "CMYK", "YCbCr", "RGBA") else (255, 255, 255)
    path = tmp_path / f"picture.{'tif' if mode in ('CMYK', 'YCbCr') else 'png'}"
    Image.new("RGB", (200, 120), color).convert(mode).save(path)
    image, _ = read_image(path, (3, 50, 50), fit="pad")
    # YCbCr rounds, and the web palette of "P" has steps of 51.
    tolerance = {"P": 26, "YCbCr": 2}.get(mode, 0)
    torch.testing.assert_close(
        image.float(), torch.tensor(color).float()[:, None, None].expand(3, 50, 50), atol=tolerance, rtol=0
    )


def test_transparent_parts_are_white_and_gray_stays_gray(tmp_path: Path) -> None:
    pixels = np.zeros((40, 80, 2), np.uint8)
    pixels[:, :40, 1] = 255  # the left half is black, the right half is transparent
    Image.fromarray(pixels, "LA").save(tmp_path / "half.png")
    image, notes = read_image(tmp_path / "half.png", (1, 80, 80), fit="pad")
    assert (image[:, :, :36] == 0).all() and (image[:, :, 44:] == 255).all()
    assert notes == ("transparent parts composited on white", "padded")


def test_the_size_is_the_median_shorter_side_and_at_most_96(tmp_path: Path) -> None:
    for index, side in enumerate((20, 30, 44, 50, 400)):
        for name in ("a", "b"):
            paint(tmp_path / "p" / name / f"{index}.png", (200, 30, 30), (side, side + 60), seed=index)
    dataset = folder.load(tmp_path / "p")
    assert dataset.image_shape == (3, 44, 44) and dataset.summary.shorter_side == 44
    for index in range(4):
        for name in ("a", "b"):
            paint(tmp_path / "p" / name / f"{index}.png", (200, 30, 30), (400, 300), seed=index)
    assert folder.load(tmp_path / "p").image_shape == (3, 96, 96)
    assert folder.load(tmp_path / "p", size=128, fit="pad").image_shape == (3, 128, 128)


def test_files_are_read_in_order_whatever_the_number_of_threads(tmp_path: Path) -> None:
    root = gallery(tmp_path / "p", 12)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = folder.load(root, size=24, fit="pad")
        torch.set_num_threads(3)
        three = folder.load(root, size=24, fit="pad")
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(one.train_images, three.train_images) and torch.equal(one.test_images, three.test_images)
    assert one.train_files == three.train_files
    for path, image in zip(one.test_files, one.test_images, strict=True):
        assert torch.equal(read_image(path, (3, 24, 24), fit="pad")[0], image)


def test_a_heic_file_with_another_suffix_is_recognized(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_bytes(b"\0\0\0\x18ftypheic" + bytes(100))
    with pytest.raises(InputError, match=r"photo.jpg cannot be read as an image \(HEIC\)"):
        read_image(tmp_path / "photo.jpg", (3, 32, 32))
