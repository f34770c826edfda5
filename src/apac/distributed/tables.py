"""The rows of a part as a file: CSV, or Parquet. The bytes depend on nothing but the rows."""

from __future__ import annotations

import io
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal

from apac import limits
from apac.errors import require
from apac.evaluation.records import COLUMNS, class_columns, class_probabilities, to_csv

Format = Literal["csv", "parquet"]
Row = list[Any]

UNREADABLE = "unreadable"  # the column with the reason why a file has no decision
TEXTS = ("image", "label", "runner_up", "stopped", "combine", UNREADABLE)
INTEGERS = ("passes", "bin_images")
BOOLEANS = ("settled", "plain")


def columns_of(classes: Sequence[str]) -> list[str]:
    """Return the columns: those of a CSV file of `apac classify`, and one for unreadable files."""
    return [*COLUMNS, UNREADABLE, *class_columns(classes)]


def row_of(record: dict[str, Any], classes: Sequence[str]) -> Row:
    """Return the row of a decision."""
    return [*(record[name] for name in COLUMNS), None, *class_probabilities(record, classes)]


def unreadable_row(path: str, reason: str, classes: Sequence[str]) -> Row:
    """Return the row of a file that cannot be read."""
    return [str(Path(path)), *(None for _ in COLUMNS[1:]), reason, *(None for _ in classes)]


def to_bytes(rows: Sequence[Row], classes: Sequence[str], format: Format) -> bytes:
    """Return a table as the content of a file."""
    if format == "csv":
        return to_csv(columns_of(classes), rows).encode(errors="surrogateescape")
    arrow, parquet = require("pyarrow", extra="parquet"), require("pyarrow.parquet", extra="parquet")
    kinds = dict.fromkeys(TEXTS, arrow.string()) | dict.fromkeys(INTEGERS, arrow.int64())
    kinds |= dict.fromkeys(BOOLEANS, arrow.bool_())
    arrays = [
        arrow.array([_as_unicode(value) for value in values], kinds.get(name, arrow.float64()))
        for name, values in zip(columns_of(classes), zip(*rows, strict=True), strict=True)
    ]
    content = io.BytesIO()
    parquet.write_table(arrow.table(dict(zip(columns_of(classes), arrays, strict=True))), content)
    return content.getvalue()


def copy_rows(content: BinaryIO, file: BinaryIO, classes: Sequence[str], format: Format, count: int) -> None:
    """Write the `count` rows of a part as CSV without its header."""
    lines = content if format == "csv" else io.BytesIO(_parquet_to_csv(content, classes, count))
    lines.seek(len(header_of(classes)))
    shutil.copyfileobj(lines, file)


def header_of(classes: Sequence[str]) -> bytes:
    """Return the first line of a CSV file."""
    return to_csv(columns_of(classes), ()).encode(errors="surrogateescape")


def _parquet_to_csv(content: BinaryIO, classes: Sequence[str], count: int) -> bytes:
    """Return a Parquet file as CSV. Raises ValueError if it has other rows or columns, or texts that are too long.

    Equal values take hardly any space, so that a small file may have many rows, or long texts in every row.
    """
    parquet, compute = require("pyarrow.parquet", extra="parquet"), require("pyarrow.compute", extra="parquet")
    file = parquet.ParquetFile(content, read_dictionary=list(TEXTS))
    groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
    if not file.metadata.num_rows == sum(group.num_rows for group in groups) == count:
        raise ValueError("the number of rows is wrong")
    if file.schema_arrow.names != columns_of(classes):
        raise ValueError("the columns are wrong")
    table = file.read()
    for name in TEXTS:
        for chunk in table.column(name).chunks:
            if (compute.max(compute.binary_length(chunk.dictionary)).as_py() or 0) > limits.ROW_BYTES:
                raise ValueError("a text is too long")
    rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
    return to_csv(columns_of(classes), rows).encode(errors="surrogateescape")


def _as_unicode(value: Any) -> Any:
    """Return a value that Parquet stores: a file name may not be UTF-8."""
    return value.encode(errors="surrogateescape").decode(errors="backslashreplace") if isinstance(value, str) else value
