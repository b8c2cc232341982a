"""JPEG files shortened to their first rows, so that a decoder stops there (ITU-T T.81, 1992, annex B)."""

from __future__ import annotations

# A file consists of segments: a marker of two bytes, the length of the rest in two bytes, and the rest.
_START, _END, _SCAN = b"\xff\xd8", b"\xff\xd9", b"\xff\xda"
_SEQUENTIAL = b"\xff\xc0", b"\xff\xc1"  # the header of files whose rows of blocks lie one after the other


def first_rows(content: bytes, num_rows: int) -> bytearray | None:
    """Return a JPEG whose header says that it has `num_rows` rows; the bytes of the other rows are left at its end.

    Its last two rows may differ from those of the whole image, as decoders interpolate color between rows. None: the
    file has no more rows, its rows do not lie one after the other, or its end is missing.

    >>> header = bytes([0xFF, 0xC0, 0, 11, 8, 1, 44, 1, 144, 1, 1, 0x11, 0])  # 300 rows of 400 pixels
    >>> first_rows(b"\\xff\\xd8" + header + b"\\xff\\xd9", 7)[7:11] == bytes([0, 7, 1, 144])
    True
    """
    if not (content.startswith(_START) and content.endswith(_END)):
        return None
    place, marker = 2, content[2:4]
    while marker.startswith(b"\xff") and marker not in (*_SEQUENTIAL, _SCAN):
        place += 2 + int.from_bytes(content[place + 2 : place + 4], "big")
        marker = content[place : place + 2]
    height = slice(place + 5, place + 7)  # after the marker, the length and the bits of a sample
    if marker not in _SEQUENTIAL or num_rows >= int.from_bytes(content[height], "big"):
        return None
    shortened = bytearray(content)
    shortened[height] = num_rows.to_bytes(2, "big")
    return shortened
