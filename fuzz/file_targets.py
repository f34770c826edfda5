"""Images, deformations, jobs, the cache of decoded images, names of classes, and ONNX files."""

from __future__ import annotations

import csv
import io
import json
import warnings
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image, features

import apac
from apac.data.folder import read_headers
from apac.data.image_file import decode_bytes, without_warnings
from apac.data.mapped import open_file, write_file
from apac.distributed.claims import Claims
from apac.distributed.job import FILE, Job, open_job, read_job
from apac.distributed.merge import merge_parts
from apac.distributed.tables import Format, to_bytes, unreadable_row
from apac.evaluation.records import decision_records, records_to_csv
from apac.inference.onnx_export import to_onnx
from apac.randomness import generator
from apac.runs.classified import ClassifiedImages
from apac.validation import parse_json, validate_class_names
from fuzz.mutate import mutate_json, mutate_picture
from fuzz.target import IMAGES, SHAPE, Target, in_file, network
from fuzz.tiff import DATA, tiff


def image(folder: Path) -> Target:
    path = folder / "picture"

    def load(data: bytes) -> None:
        path.write_bytes(data)
        read_headers([path])
        with without_warnings():
            decode_bytes(data, (3, 32, 32), max_pixels=1_000_000)
            decode_bytes(data, (1, 28, 28), digit=True, max_pixels=1_000_000)

    return Target(_pictures(), load, mutate_picture)


def _pictures() -> tuple[bytes, ...]:
    picture = Image.new("RGBA", (24, 20), (250, 240, 230, 255))
    picture.paste((10, 20, 30, 128), (5, 5, 15, 12))
    exif = Image.Exif()
    exif[0x0112] = 6
    kinds: list[tuple[str, str, dict[str, Any]]] = [
        ("PNG", "RGBA", {"exif": exif}),
        ("PNG", "P", {}),
        ("PNG", "1", {}),
        ("JPEG", "RGB", {"exif": exif}),
        ("JPEG", "L", {"progressive": True}),
        ("JPEG", "CMYK", {}),
        ("WEBP", "RGBA", {"exif": exif}),
        ("GIF", "P", {}),
        ("BMP", "RGB", {}),
        ("TIFF", "RGB", {"compression": "tiff_lzw"}),
        ("TIFF", "L", {}),
        ("TIFF", "1", {"compression": "group4"}),
        ("TIFF", "RGB", {"compression": "packbits", "strip_size": 200}),
        ("PPM", "RGB", {}),
        *([("AVIF", "RGB", {}), ("AVIF", "RGBA", {})] if features.check("avif") else []),
    ]
    files = []
    for name, mode, options in kinds:
        file = io.BytesIO()
        picture.convert(mode).save(file, name, **options)
        files.append(file.getvalue())
    tile = zlib.compress(bytes(range(256)))
    places = [DATA + number * len(tile) for number in range(4)]
    tiles = tiff(24, 20, {322: [16], 323: [16], 324: places, 325: [len(tile)] * 4}, 4 * tile)
    return (*files, tiles, b"P2\n# text\n3 3 255\n0 0 0 0 255 0 0 0 0\n")


def deformation(folder: Path) -> Target:
    parts: list[apac.Deformation] = [
        apac.Compose(apac.presets.mnist(), apac.Jitter(), apac.FeatureDropout(), apac.Shift()),
        apac.Compose(apac.presets.photos(), apac.Elastic(reference_size=4), apac.Thickness(reference_size=4)),
        apac.Compose(apac.TimeShift(), apac.TimeWarp(), apac.Amplitude()),
        apac.Compose(apac.Shift(2), apac.Flip(), apac.Flip()),
        apac.PerClass({1: apac.Homography(shear=0.1)}, default=apac.presets.cifar10(), classes=3),
    ]
    return Target(_stored(parts), _load_deformation, mutate_json)


def transform(folder: Path) -> Target:
    """A transform of another library."""
    import albumentations as A
    import kornia.augmentation as K

    transforms = [
        apac.from_kornia(K.RandomAffine(15.0, translate=(0.1, 0.2), scale=(0.9, 1.1))),
        apac.from_kornia(K.AugmentationSequential(K.RandomPerspective(), K.RandomHorizontalFlip())),
        apac.from_kornia(K.RandomGaussianBlur((3, 3), (0.1, 2.0)), after=K.Normalize([0.5], [0.25])),
        apac.from_albumentations(A.Affine(rotate=(-15, 15), scale=(0.9, 1.1)), before=A.Resize(8, 8)),
        apac.from_albumentations(A.Compose([A.ElasticTransform(), A.OneOf([A.HorizontalFlip(), A.Blur()])])),
    ]
    images = torch.rand(3, 1, 6, 7, generator=generator(0, "fuzz", 0))

    def load(data: bytes) -> None:
        try:
            payload = parse_json(data)
        except ValueError:  # the caller says so
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            apac.Deformation.from_json(payload)(images, generator=generator(1, "fuzz", 0))

    return Target(_stored(transforms), load, mutate_json)


def _stored(deformations: Sequence[apac.Deformation]) -> tuple[bytes, ...]:
    return tuple(json.dumps(deformation.to_json()).encode() for deformation in deformations)


def _load_deformation(data: bytes) -> None:
    try:
        payload = parse_json(data)
    except ValueError:  # the caller says so
        return
    u = apac.Deformation.from_json(payload)
    images = torch.rand(3, 1, 6, 7, generator=generator(0, "fuzz", 0))
    labels = torch.tensor([0, 0, 0])
    for strength in (1.0, 0.5):
        result = u.scaled(strength)(images, generator=generator(1, "fuzz", 0), labels=labels)
        assert result.shape == images.shape
        assert not result.isnan().any(), "NaN"
    assert apac.Deformation.from_json(u.to_json()) == u
    if u.set_of_class is None and u.values((1, 6, 7)) is not None:
        apac.Exhaustive().of(u, (1, 6, 7))


def job_json(folder: Path) -> Target:
    """The description of a job, with its list of files and its parts."""
    job = small_job(folder)

    def load() -> None:
        merge_parts(folder / "job", folder / "merged.csv")
        stored = read_job(folder / "job")
        stored.check_settings(job.settings, job.sources, 2)
        stored.check_data()
        assert stored.files.read(1) == [f"{job.sources[0]}/2.png"]

    return in_file(folder / "job" / FILE, mutate_json, load)


def small_job(folder: Path, format: Format = "csv") -> Job:
    """Store a job of three images, and its parts."""
    (folder / "images").mkdir()
    for number in range(3):
        Image.new("L", (4, 4), number).save(folder / "images" / f"{number}.png")
    settings: dict[str, Any] = {"format": format, "classes": ["a", "b"], "seed": 0, "rule": "FixedPasses(4)"}
    with Claims(folder / "claims") as claims:
        job = open_job(folder / "job", claims, settings, [str(folder / "images")], part_size=2)
    for part in range(job.parts.count):
        rows = [unreadable_row(path, "a reason", job.classes) for path in job.files.read(part)]
        job.parts.write(part, to_bytes(rows, job.classes, job.format))
    return job


def cache_json(folder: Path) -> Target:
    """The description of decoded images; a damaged one is made again."""
    path = folder / "images.u8"
    pixels = (IMAGES * 255).to(torch.uint8)
    items = [(pixels[0], 0), None, (pixels[1], 2)]
    write_file(path, "source", SHAPE, items, len(items))

    def load() -> None:
        found = open_file(path, "source", SHAPE, len(items), verify=True)
        if found is not None:
            images, description = found
            assert torch.equal(images[:], pixels)
            assert torch.tensor(description.read).sum() == len(torch.tensor(description.labels)) == len(images)

    return in_file(path.with_suffix(".json"), mutate_json, load)


def names(folder: Path) -> Target:
    return Target((json.dumps(["cat", "dog, big", '"=1+1"']).encode(),), _write_names, mutate_json)


def _write_names(data: bytes) -> None:
    try:
        names = validate_class_names(parse_json(data))
    except apac.InputError:
        raise
    except ValueError:
        return
    count = len(names)
    if count > 50 or len(set(names)) < count:
        return
    images = torch.linspace(0, 1, 2 * count).view(2, 1, 1, count)
    decision = apac.Classifier(lambda x: x.flatten(1), apac.Jitter(), apac.FixedPasses(2)).decide(images)
    classified = ClassifiedImages((Path("a\nb.png"), Path("ü,;.png")), decision, names, ((), ()), {})
    text = records_to_csv(decision_records(classified), names).encode().decode()
    rows = list(csv.reader(io.StringIO(text, newline="")))
    assert rows[0][-count:] == [f"probability_{name}" for name in names]
    assert [row[0] for row in rows[1:]] == ["a\nb.png", "ü,;.png"]


def onnx(folder: Path) -> Target:
    path = folder / "network.onnx"

    def load(data: bytes) -> None:
        path.write_bytes(data)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            apac.from_onnx(path)(IMAGES)

    return Target((to_onnx(network(), IMAGES),), load)
