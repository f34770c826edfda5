"""Random changes of bytes and of JSON values. All randomness comes from the generator that is passed."""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any
from zlib import crc32

PNG = b"\x89PNG\r\n\x1a\n"
SMALL = 20_000  # bytes
NUMBERS = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 62)
VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 7, 1e-320, 1e308, float("nan"), float("inf"), 10**30, -(10**4000), 2.5),
    *("", "x", "x" * 2000, "\ud800", "a\nb", "\x1b[2J", "edge", "../../etc", [], {}, [[]], [1, 2, 3]),
    *([1] * 5000, [1, 30000, 30000], {"kind": "Compose", "parts": []}, {"kind": "Elastic", "sigma": 1e9}),
    *({"kind": "PerClass", "by_class": [], "default": {"kind": "Flip"}, "classes": 10**7}, "resnet", "timm:vit"),
)


def nested(depth: int) -> Any:
    value: Any = {"kind": "Compose", "parts": []}
    for _ in range(depth):
        value = {"kind": "Compose", "parts": [value]}
    return value


def mutate_bytes(data: bytes, random: Random) -> bytes:
    """Flip, replace, remove, insert, repeat and cut, one to eight times."""
    result = bytearray(data)
    for _ in range(random.randint(1, 8)):
        at = random.randrange(len(result) + 1)
        length = min(len(result) - at, 1 << random.randrange(8))
        match random.randrange(6):
            case 0 if at < len(result):
                result[at] ^= 1 << random.randrange(8)
            case 1:
                width = random.choice((1, 2, 4, 8))
                number = random.choice(NUMBERS) % (1 << 8 * width)
                result[at : at + width] = number.to_bytes(width, random.choice(("little", "big")))
            case 2:
                del result[at : at + length]
            case 3:
                result[at:at] = random.randbytes(length)
            case 4:
                result[at:at] = result[at : at + length] * random.randint(1, 50)
            case 5 if random.random() < 0.2:
                del result[at:]
    return bytes(result)


def mutate_tensors(data: bytes, random: Random) -> bytes:
    """Change the header of a safetensors file and its length with it; or the bytes of the file."""
    end = 8 + int.from_bytes(data[:8], "little")
    if random.random() < 0.4 or end > len(data):
        return mutate_bytes(data, random)
    header = mutate_json(data[8:end], random)
    return len(header).to_bytes(8, "little") + header + data[end:]


def mutate_picture(data: bytes, random: Random) -> bytes:
    """Change the bytes of a picture, and often the check sums of a PNG file with them, which otherwise is refused."""
    result = mutate_bytes(data, random)
    return _with_check_sums(result) if data.startswith(PNG) and random.random() < 0.8 else result


def _with_check_sums(data: bytes) -> bytes:
    """Return a PNG file whose chunks have the right check sums, as far as their lengths are right."""
    result, at = bytearray(data), len(PNG)
    while at + 12 <= len(result):
        end = at + 8 + int.from_bytes(result[at : at + 4], "big")
        if end + 4 > len(result):
            break
        result[end : end + 4] = crc32(result[at + 4 : end]).to_bytes(4, "big")
        at = end + 4
    return bytes(result)


def mutate_json(data: bytes, random: Random) -> bytes:
    """Change the values of a JSON text; sometimes its bytes."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):  # it was changed before
        value = None
    if value is None or random.random() < 0.2:
        return mutate_bytes(data, random)
    for number in range(random.randint(1, 3)):
        # Many copies only once and of little, because copies of copies would fill the memory.
        value = _changed(value, random, copies=(1,) if number or len(data) > SMALL else (1, 100, 3000))
    return json.dumps(value).encode()


def _changed(value: Any, random: Random, copies: tuple[int, ...]) -> Any:
    if not isinstance(value, dict | list) or not value or random.random() < 0.02:
        return nested(random.choice((10, 70, 400))) if random.random() < 0.1 else copy.deepcopy(random.choice(VALUES))
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key = random.choice(keys)
    if random.random() < 0.1:
        del value[key]
    elif isinstance(value, list) and random.random() < 0.1:
        value.extend([value[key]] * random.choice(copies))
    else:
        value[key] = _changed(value[key], random, copies)
    return value
