"""Image files are converted to the format of the training data, or rejected in one sentence."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from apac import data
from apac.data.image_file import read_image
from apac.errors import InputError

DIGIT = (1, 28, 28)
COLOR = (3, 32, 32)
Pixels = NDArray[np.uint8]


@pytest.fixture(scope="module")
def digits() -> data.Dataset:
    return data.load("mnist-5k")


def canvas(
    digit: Pixels, *, ink: float = 0, ground: float = 255, place: tuple[int, int] = (150, 90)
) -> NDArray[np.float64]:
    """The digit at 200 × 200 somewhere on 360 × 440."""
    large = np.asarray(Image.fromarray(digit).resize((200, 200), Image.Resampling.BICUBIC), np.float64) / 255
    full = np.zeros((440, 360))
    full[place[0] : place[0] + 200, place[1] : place[1] + 200] = large
    return ground + (ink - ground) * full


def save(values: NDArray[np.float64], path: Path) -> Path:
    Image.fromarray(values.clip(0, 255).round().astype(np.uint8)).save(path)
    return path


def read(path: Path) -> Pixels:
    return np.asarray(read_image(path, DIGIT, digit=True)[0][0].numpy())


def difference(first: Pixels, second: Pixels) -> float:
    """Return the mean absolute difference at the best of nine shifts: the center of mass may round either way."""
    shifts = [np.roll(first, (dy, dx), (0, 1)) for dy in (-1, 0, 1) for dx in (-1, 0, 1)]
    return min(float(np.abs(shifted.astype(float) - second).mean()) for shifted in shifts)


@pytest.mark.parametrize("suffix", ["png", "jpg", "webp", "bmp", "tif", "gif", "pgm"])
def test_a_drawn_digit_is_restored(suffix: str, tmp_path: Path, digits: data.Dataset) -> None:
    for digit in digits.test_images[:8, 0].numpy():
        assert difference(read(save(canvas(digit), tmp_path / f"digit.{suffix}")), digit) < 13


@pytest.mark.parametrize(
    ("ink", "ground", "slope", "noise"),
    [(0, 255, 0, 0), (180, 225, 0, 0), (60, 20, 0, 0), (60, 190, 60, 3), (200, 60, 40, 5)],
)
def test_scans_and_photographs_are_recognized_as_well_as_the_originals(
    ink: float, ground: float, slope: float, noise: float, tmp_path: Path, digits: data.Dataset
) -> None:
    generator = np.random.default_rng(0)
    known = digits.train_images.flatten(1).float()
    same = 0
    for image, label in zip(digits.test_images[:20], digits.test_labels[:20].tolist(), strict=True):
        values = canvas(image[0].numpy(), ink=ink, ground=ground)
        values += slope * np.linspace(-0.5, 0.5, values.shape[1]) + generator.normal(0, noise, values.shape)
        seen, _ = read_image(save(values, tmp_path / "photo.jpg"), DIGIT, digit=True)
        nearest = (known - seen.flatten().float()).norm(dim=1).argmin()
        same += int(digits.train_labels[nearest]) == label
    assert same >= 17  # 18 of 20 of the originals


def test_a_digit_in_the_format_of_mnist_is_unchanged(tmp_path: Path, digits: data.Dataset) -> None:
    digit = digits.test_images[0]
    Image.fromarray(digit[0].numpy()).save(tmp_path / "digit.png")
    image, notes = read_image(tmp_path / "digit.png", DIGIT, digit=True)
    assert (image == digit).all()
    assert notes == ()


def test_the_result_has_the_format_of_mnist(tmp_path: Path, digits: data.Dataset) -> None:
    for digit in digits.test_images[:20, 0].numpy():
        seen = read(save(canvas(digit, place=(0, 160)), tmp_path / "digit.png")).astype(float)
        inked = np.argwhere(seen > 0)
        assert (inked.max(0) - inked.min(0) + 1).max() in (19, 20)
        mass = [float((seen.sum(1 - axis) * np.arange(28)).sum() / seen.sum()) for axis in (0, 1)]
        assert np.abs(np.array(mass) - 14).max() <= 0.55
        assert seen.max() >= 224


def test_the_notes_list_every_conversion(tmp_path: Path, digits: data.Dataset) -> None:
    digit = digits.test_images[0, 0].numpy()
    _, notes = read_image(save(canvas(digit, ink=90, ground=200), tmp_path / "digit.png"), DIGIT, digit=True)
    assert notes == (
        "inverted (dark ink on a light background)",
        "contrast stretched",
        "cropped to the ink and resized from 360 × 440",
        "centered by mass",
    )


def test_dust_does_not_move_the_digit(tmp_path: Path, digits: data.Dataset) -> None:
    values = canvas(digits.test_images[0, 0].numpy())
    clean = read(save(values, tmp_path / "clean.png"))
    values[5, 7] = values[430, 340] = values[20, 300] = 0
    assert difference(read(save(values, tmp_path / "dusty.png")), clean) < 1


def test_a_fine_pen_on_a_large_sheet_gives_full_ink(tmp_path: Path) -> None:
    sheet = Image.new("L", (2000, 2000), 255)
    ImageDraw.Draw(sheet).line([(600, 400), (1400, 400), (900, 1600)], fill=0, width=4)
    sheet.save(tmp_path / "seven.png")
    seen = read(tmp_path / "seven.png")
    assert seen.max() == 255
    assert (seen > 100).sum() >= 20


@pytest.mark.parametrize("ink", [(0, 0, 0), (255, 255, 255), (200, 30, 30), (255, 230, 0)])
def test_the_ink_of_transparent_drawings_is_visible_in_any_color(
    ink: tuple[int, int, int], tmp_path: Path, digits: data.Dataset
) -> None:
    digit = digits.test_images[3, 0].numpy()
    alpha = canvas(digit, ink=255, ground=0).round().clip(0, 255).astype(np.uint8)
    picture = Image.new("RGBA", (360, 440), (*ink, 0))
    picture.putalpha(Image.fromarray(alpha))
    picture.save(tmp_path / "drawn.png")
    image, notes = read_image(tmp_path / "drawn.png", DIGIT, digit=True)
    assert difference(image[0].numpy(), digit) < 13
    assert notes[0] in ("transparent parts composited on white", "transparent parts composited on black")


def test_round_transparent_corners_are_not_ink(tmp_path: Path, digits: data.Dataset) -> None:
    digit = digits.test_images[3, 0].numpy()
    picture = Image.fromarray(canvas(digit).clip(0, 255).astype(np.uint8)).convert("RGBA")
    corners = Image.new("L", picture.size, 0)
    ImageDraw.Draw(corners).rounded_rectangle([(0, 0), (359, 439)], 40, fill=255)
    picture.putalpha(corners)
    picture.save(tmp_path / "card.png")
    assert difference(read(tmp_path / "card.png"), digit) < 13


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "I;16"])
def test_every_common_pixel_mode_gives_the_same_digit(mode: str, tmp_path: Path, digits: data.Dataset) -> None:
    digit = digits.test_images[5, 0].numpy()
    values = canvas(digit)
    path = tmp_path / ("digit.tif" if mode in ("CMYK", "YCbCr") else "digit.png")
    if mode == "I;16":
        Image.fromarray((values.clip(0, 255) * 257).astype(np.uint16)).save(path)
    else:
        Image.fromarray(values.clip(0, 255).astype(np.uint8)).convert(mode).save(path)
    assert difference(read(path), digit) < 13


def test_dark_16_bit_scans_keep_their_contrast(tmp_path: Path, digits: data.Dataset) -> None:
    digit = digits.test_images[5, 0].numpy()
    Image.fromarray((canvas(digit, ink=400, ground=4000)).clip(0, 4095).astype(np.uint16)).save(tmp_path / "scan.png")
    assert difference(read(tmp_path / "scan.png"), digit) < 13


def test_the_exif_orientation_is_respected(tmp_path: Path, digits: data.Dataset) -> None:
    digit = digits.test_images[5, 0].numpy()
    upright = Image.fromarray(canvas(digit).clip(0, 255).astype(np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned a quarter clockwise when shown
    upright.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "photo.jpg", exif=exif)
    image, notes = read_image(tmp_path / "photo.jpg", DIGIT, digit=True)
    assert notes[0] == "rotated according to its EXIF orientation"
    assert difference(image[0].numpy(), digit) < 13


def test_color_pictures_are_cropped_to_the_center_and_resized(tmp_path: Path) -> None:
    picture = np.zeros((100, 300, 3), np.uint8)
    picture[:, 100:200] = (10, 200, 90)  # the middle square
    Image.fromarray(picture).save(tmp_path / "wide.png")
    image, notes = read_image(tmp_path / "wide.png", COLOR)
    assert image.shape == COLOR
    assert (image == image.new_tensor([10, 200, 90])[:, None, None]).all()
    assert notes == ("cropped to the center", "resized from 300 × 100")


def test_a_color_picture_of_the_right_size_is_unchanged(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "same.png")
    image, notes = read_image(tmp_path / "same.png", COLOR)
    np.testing.assert_array_equal(image.numpy(), pixels.transpose(2, 0, 1))
    assert notes == ()


def test_gray_and_transparent_pictures_are_converted_to_rgb(tmp_path: Path) -> None:
    Image.new("L", (64, 64), 77).save(tmp_path / "gray.png")
    image, notes = read_image(tmp_path / "gray.png", COLOR)
    assert (image == 77).all() and "converted from gray to RGB" in notes
    Image.new("RGBA", (64, 64), (0, 0, 0, 0)).save(tmp_path / "clear.png")
    image, notes = read_image(tmp_path / "clear.png", COLOR)
    assert (image == 255).all() and "transparent parts composited on white" in notes
    Image.fromarray(np.full((40, 40), 65535, np.uint16)).save(tmp_path / "deep.png")
    assert (read_image(tmp_path / "deep.png", COLOR)[0] == 255).all()


def bad_files(folder: Path) -> dict[str, tuple[Path, str]]:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (90, 90), np.uint8))
    (folder / "folder").mkdir()
    (folder / "empty.png").touch()
    (folder / "text.png").write_text("not an image at all")
    noise.save(folder / "whole.png")
    (folder / "cut.png").write_bytes((folder / "whole.png").read_bytes()[:3000])
    noise.save(folder / "whole.jpg")
    (folder / "cut.jpg").write_bytes((folder / "whole.jpg").read_bytes()[:2000])
    noise.save(folder / "moves.gif", save_all=True, append_images=[noise.rotate(90)])
    Image.new("1", (10_000, 5_001)).save(folder / "large.png")
    Image.new("1", (20_000, 20_000)).save(folder / "bomb.png")
    Image.new("L", (100, 100), 230).save(folder / "blank.png")
    Image.new("RGBA", (100, 100), (0, 0, 0, 0)).save(folder / "clear.png")
    paper = np.random.default_rng(1).normal(200, 5, (300, 300)).clip(0, 255).astype(np.uint8)
    Image.fromarray(paper).save(folder / "paper.png")
    Image.fromarray(np.zeros((40, 40), np.float32)).save(folder / "float.tif")
    return {
        "missing": (folder / "nowhere.png", "no file"),
        "folder": (folder / "folder", "is a folder"),
        "empty": (folder / "empty.png", "is empty"),
        "text": (folder / "text.png", "unknown format"),
        "cut PNG": (folder / "cut.png", "cannot be read"),
        "cut JPEG": (folder / "cut.jpg", "cannot be read"),
        "animation": (folder / "moves.gif", "several frames"),
        "large": (folder / "large.png", "40 megapixels"),
        "bomb": (folder / "bomb.png", "40 megapixels"),
        "blank": (folder / "blank.png", "shows no digit"),
        "clear": (folder / "clear.png", "shows no digit"),
        "paper": (folder / "paper.png", "shows no digit"),
        "float": (folder / "float.tif", "mode 'F'"),
    }


def test_unreadable_files_are_rejected_in_one_sentence_with_the_path(tmp_path: Path) -> None:
    for what, (path, reason) in bad_files(tmp_path).items():
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(InputError) as raised:
                read_image(path, DIGIT, digit=True)
        text = str(raised.value)
        assert str(path) in text and reason in text, what
        assert text.endswith(".") and "\n" not in text and ". " not in text, what


def test_many_pages_are_rejected_and_a_phones_photograph_with_previews_is_read(
    tmp_path: Path, digits: data.Dataset
) -> None:
    page = Image.fromarray(canvas(digits.test_images[5, 0].numpy()).clip(0, 255).astype(np.uint8))
    page.save(tmp_path / "pages.tif", save_all=True, append_images=[page])
    with pytest.raises(InputError, match="several frames"):
        read_image(tmp_path / "pages.tif", DIGIT, digit=True)
    page.convert("RGB").save(tmp_path / "phone.jpg", "MPO", save_all=True, append_images=[page.convert("RGB")])
    assert difference(read(tmp_path / "phone.jpg"), digits.test_images[5, 0].numpy()) < 13


def test_four_channels_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="takes 4"):
        read_image(tmp_path / "any.png", (4, 32, 32))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(arrays.arrays(np.uint8, arrays.array_shapes(min_dims=2, max_dims=2, max_side=40)))
def test_any_pixels_give_an_image_or_a_one_sentence_error(tmp_path: Path, pixels: Pixels) -> None:
    Image.fromarray(pixels).save(tmp_path / "any.png")
    try:
        image, _ = read_image(tmp_path / "any.png", DIGIT, digit=True)
    except InputError as error:
        assert "shows no digit" in str(error)
    else:
        assert image.shape == DIGIT and image.max() > 0
    assert read_image(tmp_path / "any.png", COLOR)[0].shape == COLOR
