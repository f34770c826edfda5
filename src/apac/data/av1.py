"""The frames of an AV1 stream, from its headers: "AV1 Bitstream & Decoding Process Specification", 5.3 to 5.9.2."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from apac import limits

SEQUENCE_HEADER, FRAME_HEADER, FRAME = 1, 3, 6  # types of units ("OBU")
HEADER_BYTES = 200  # of a unit that are looked at, more than the headers have
KEY_FRAME, SWITCH_FRAME = 0, 3
CHOSEN_BY_FRAME = 2  # instead of a value for the whole sequence


def frame_pixels(data: bytes) -> list[int]:
    """Return the pixels of every frame in a stream.

    Raises ValueError if there are too many units, or a frame may have another size than its sequence says.
    """
    sequence, pixels = None, []
    for number, (kind, payload) in enumerate(_units(data)):
        if number >= limits.AV1_UNITS:
            raise ValueError("it has too many parts")
        if kind == SEQUENCE_HEADER:
            sequence = _Sequence.read(_Bits(payload))
        elif kind in (FRAME_HEADER, FRAME) and sequence is not None:
            if sequence.frame_has_own_size(_Bits(payload)):
                raise ValueError("a frame has a size of its own")
            pixels.append(sequence.pixels)
    return pixels


def _units(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the type and the first bytes of every unit."""
    at = 0
    while at < len(data):
        header = data[at]
        at += 2 if header & 4 else 1
        size = len(data) - at
        if header & 2:
            size = 0
            for position in range(8):
                if at >= len(data):
                    raise ValueError("a header is cut")
                size |= (data[at] & 127) << 7 * position
                at += 1
                if data[at - 1] < 128:
                    break
        yield header >> 3 & 15, data[at : at + min(size, HEADER_BYTES)]
        at += size


class _Bits:
    def __init__(self, data: bytes) -> None:
        self.number, self.left = int.from_bytes(data, "big"), 8 * len(data)

    def take(self, count: int) -> int:
        self.left -= count
        if self.left < 0:
            raise ValueError("a header is cut")
        return self.number >> self.left & ((1 << count) - 1)


@dataclass(frozen=True)
class _Sequence:
    """What a sequence header says of its frames."""

    pixels: int
    reduced: bool  # a still picture, whose frame has hardly a header
    time_bits: int  # of the time of a frame
    id_bits: int  # of its number
    screen_tools: int
    integer_vectors: int

    @staticmethod
    def read(bits: _Bits) -> _Sequence:
        bits.take(3 + 1)  # the profile; whether it is a still picture
        reduced, time_bits, id_bits = bool(bits.take(1)), 0, 0
        if reduced:
            bits.take(5)
        else:
            time_bits = _skip_operating_points(bits)
        width_bits, height_bits = bits.take(4) + 1, bits.take(4) + 1
        pixels = (bits.take(width_bits) + 1) * (bits.take(height_bits) + 1)
        screen_tools = integer_vectors = CHOSEN_BY_FRAME
        if not reduced:
            if bits.take(1):
                id_bits = bits.take(4) + bits.take(3) + 3
            bits.take(3 + 4)  # tools of prediction
            has_order = bits.take(1)
            bits.take(2 * has_order)
            if not bits.take(1):
                screen_tools = bits.take(1)
            if screen_tools and not bits.take(1):
                integer_vectors = bits.take(1)
        return _Sequence(pixels, reduced, time_bits, id_bits, screen_tools, integer_vectors)

    def frame_has_own_size(self, bits: _Bits) -> bool:
        if self.reduced or bits.take(1):  # a frame that is shown again
            return False
        kind, shown = bits.take(2), bits.take(1)
        bits.take(self.time_bits if shown else 1)
        if kind != SWITCH_FRAME and not (kind == KEY_FRAME and shown):
            bits.take(1)  # whether it is resilient to errors
        bits.take(1)
        screen_tools = bits.take(1) if self.screen_tools == CHOSEN_BY_FRAME else self.screen_tools
        if screen_tools and self.integer_vectors == CHOSEN_BY_FRAME:
            bits.take(1)
        bits.take(self.id_bits)
        return kind == SWITCH_FRAME or bool(bits.take(1))


def _skip_operating_points(bits: _Bits) -> int:
    """Return the bits of the time of a frame, 0 if it has none."""
    delay_bits = time_bits = 0
    if bits.take(1):  # timing
        bits.take(64)
        equal_intervals = bits.take(1)
        if equal_intervals:
            zeros = 0
            while not bits.take(1):
                zeros += 1
            if zeros >= 32:
                raise ValueError("a header is damaged")
            bits.take(zeros)
        if bits.take(1):  # the model of a decoder
            delay_bits = bits.take(5) + 1
            bits.take(32 + 5)
            time_bits = 0 if equal_intervals else bits.take(5) + 1
            bits.take(5 * equal_intervals)
    has_delay = bits.take(1)
    for _ in range(bits.take(5) + 1):
        bits.take(12)
        if bits.take(5) > 7:
            bits.take(1)
        if delay_bits and bits.take(1):
            bits.take(2 * delay_bits + 1)
        if has_delay and bits.take(1):
            bits.take(4)
    return time_bits
