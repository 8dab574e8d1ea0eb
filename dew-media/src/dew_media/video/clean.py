"""Whether an H.264 key packet is a clean start (IDR), or the first picture of an open group.

After a picture of the second kind a decoder may keep books of pictures that it never had, though none is needed: told
to be strict, FFmpeg takes that for damage. So a file that begins with one is decoded less strictly there.
"""

_IDR = 5


def is_clean(packet: bytes, header: bytes | None) -> bool:
    """Whether an H.264 packet holds an IDR picture; `header` is the decoder's."""
    if header and header[0] == 1 and len(header) > 4:
        kinds = _by_length(packet, (header[4] & 3) + 1)
    else:
        kinds = [part[0] & 31 for part in packet.split(b"\0\0\1")[1:] if part]
    return _IDR in kinds


def _by_length(packet: bytes, width: int) -> list[int]:
    """Types of units that are written behind their length, as MP4 and Matroska have them."""
    kinds: list[int] = []
    place = 0
    while place + width < len(packet):
        kinds.append(packet[place + width] & 31)
        place += width + int.from_bytes(packet[place : place + width], "big")
    return kinds
