"""The limits in the documentation are those of the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from apac import limits

PAGE = (Path(__file__).parent.parent / "docs" / "security.md").read_text()
TABLE = {row.split("|")[1].strip(): row.split("|")[2].strip() for row in PAGE.splitlines() if row.startswith("| ")}


@pytest.mark.parametrize(
    ("row", "texts"),
    [
        (
            "pixels of an image file",
            [f"{limits.PIXELS // 10**6} million", f"{limits.PICTURE_SIDE:,} a side"],
        ),
        (
            "bytes of an image file",
            [
                f"{limits.FILE_BYTES:g} for each allowed pixel ({limits.FILE_BYTES * limits.PIXELS / 1e6:g} MB)",
                f"{limits.SLOW_BYTES['JPEG'] * limits.PIXELS / 1e6:g} MB for JPEG",
                f"{limits.SLOW_BYTES['AVIF'] * limits.PIXELS / 1e6:g} MB for AVIF",
            ],
        ),
        (
            "JSON",
            [
                f"{limits.JSON_BYTES >> 20} MiB, {limits.JSON_VALUES:,} values, {limits.JSON_DEPTH} levels",
                f"{limits.IMAGE_JSON_BYTES} bytes and {limits.IMAGE_JSON_VALUES} values more",
            ],
        ),
        (
            "safetensors files",
            [f"{limits.TENSORS:,} tensors, {limits.TENSOR_HEADER_BYTES >> 20} MiB of header"],
        ),
        ("classes", [f"{limits.CLASSES:,}, with names of {limits.CLASS_NAME:,} characters"]),
        ("values of an image that a network takes", [f"{limits.IMAGE_VALUES // 10**6} million"]),
        ("deformations", [f"{limits.PARTS:,} parts of a composition, {limits.DEFORMATIONS:,} in a file"]),
        (
            "stored transforms of other libraries",
            [f"{limits.STORED_TRANSFORMS} in a file, numbers up to {limits.TRANSFORM_NUMBER:,}"],
        ),
        (
            "ONNX files",
            [
                f"{limits.ONNX_BYTES >> 20} MiB",
                f"{limits.ONNX_FIELDS:,} fields",
                f"{limits.ONNX_INTEGER_BYTES >> 20} MiB of integers",
                f"batches of {limits.ONNX_BATCH:,} images",
            ],
        ),
        (
            "jobs",
            [
                f"paths of {limits.PATH_BYTES:,} bytes",
                f"{limits.ROW_BYTES >> 10} KiB for each of its files, {limits.PROBABILITY_BYTES} bytes",
                f"{limits.COLUMN_BYTES >> 10} KiB and four times the name for each column",
            ],
        ),
        ("temperatures of a tuned run", ["{:g} to {:,.0f}".format(*limits.TEMPERATURE)]),
        (
            "downloads of data sets",
            [
                f"{limits.DOWNLOAD_BYTES >> 20} MiB for a file",
                f"{limits.DATA_FILE_BYTES >> 20} MiB for a file in an archive",
            ],
        ),
    ],
)
def test_the_table_of_limits_has_the_numbers_of_the_code(row, texts):
    for text in texts:
        assert text in TABLE[row]
