"""Opening a video file with FFmpeg (PyAV), and what FFmpeg's errors mean here.

Only known containers are opened, and only the file itself: a playlist that names other files or addresses is refused.
"""

import contextlib
import io
import math
from collections.abc import Generator
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

from dew.data.errors import DamagedSourceError, SourceError, SourceNotFoundError, StorageDeniedError

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.stream import VideoStream

VideoFile: TypeAlias = "str | bytes | io.BufferedIOBase | io.RawIOBase | Any"
"""A local path, the bytes of a file, or a seekable binary file object."""

FORMATS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,gif,mpegts,mpeg,flv,ogg,asf,ivf,mxf,h264,hevc,m4v,mpegvideo,obu,"
    "mp3,wav,flac,aac"
)
MOST_PIXELS = 100_000_000
_ATTACHED_PICTURE = 0x400


def library() -> ModuleType:
    """PyAV.

    Raises:
        ImportError: it is not installed; names the command.
    """
    try:
        import av
    except ImportError as error:
        raise ImportError("reading video needs PyAV: pip install 'dew-media[video]'", name="av") from error
    return av


def failures() -> tuple[type[BaseException], ...]:
    """What reading a damaged file raises in PyAV; an IndexError where a packet is of a stream that the header lacks."""
    return library().FFmpegError, EOFError, IndexError


def opened(file: VideoFile, *, name: str) -> "InputContainer":
    """The open container of `file`; the caller closes it.

    Raises:
        SourceNotFoundError: there is no file at the path.
        StorageDeniedError: the path may not be read.
        DamagedSourceError: it is empty, or not a video container that Dew reads.
    """
    av = library()
    target: Any = "file:" + file if isinstance(file, str) else file
    if isinstance(file, bytes):
        if not file:
            raise DamagedSourceError(f"{name} is empty (0 bytes)")
        target = io.BytesIO(file)
    elif not isinstance(file, str):
        file.seek(0)
    options = {"format_whitelist": FORMATS, "protocol_whitelist": "file"}
    with explained(name, "it cannot be opened as a video"):
        return av.open(target, mode="r", container_options=options, metadata_errors="ignore")


@contextlib.contextmanager
def explained(name: str, what: str) -> Generator[None]:
    """FFmpeg's errors inside, as Dew's: `what` could not be done with the file `name`."""
    av = library()
    try:
        yield
    except (av.error.FileNotFoundError, FileNotFoundError) as error:
        raise SourceNotFoundError(f"{name} does not exist") from error
    except av.error.PermissionError as error:
        raise StorageDeniedError(f"{name} may not be read: {error.strerror}") from error
    except failures() as error:
        raise DamagedSourceError(f"{name} is damaged, or is no video: {what}: {reason(error)}") from error


def reason(error: BaseException) -> str:
    """FFmpeg's sentence for an error, without the path that it was given."""
    if isinstance(error, IndexError):
        return "a packet belongs to none of its streams"
    return str(getattr(error, "strerror", None) or error or type(error).__name__)


def picture_stream(container: "InputContainer", *, name: str) -> "VideoStream":
    """The first video stream that is not a cover picture.

    Raises:
        SourceError: there is none.
        DamagedSourceError: its header declares a picture of no size, or of more than `MOST_PIXELS`.
    """
    streams = [stream for stream in container.streams.video if not int(stream.disposition) & _ATTACHED_PICTURE]
    if not streams:
        others = len(container.streams.audio)
        kinds = f"only sound ({others} stream{'s' * (others > 1)})" if others else "no stream that can be played"
        raise SourceError(f"{name} holds no video, {kinds}; leave it out, or exclude it by an index")
    stream = streams[0]
    context = stream.codec_context
    if context is None:  # pyright: ignore[reportUnnecessaryComparison] — PyAV has none for an unknown codec
        raise SourceError(f"{name}: this FFmpeg has no decoder for its video stream")
    if context.width * context.height > MOST_PIXELS:
        raise DamagedSourceError(
            f"{name} declares pictures of {context.width} x {context.height}, more than {MOST_PIXELS:,} pixels: refused"
        )
    return stream


def prepare(stream: "VideoStream", *, strict: bool = True) -> None:
    """One decoding thread, and errors instead of concealed damage; before the first packet is decoded.

    What is not decoded strictly may be concealed, but is marked as corrupt.
    """
    context = stream.codec_context
    context.thread_count = 1
    context.options = {"max_pixels": str(MOST_PIXELS)} | ({"err_detect": "explode"} if strict else {})


def seconds(ticks: int, time_base: Any) -> str:
    """A time for messages: seconds with three digits."""
    value = float(ticks * time_base)
    return f"{value:.3f} s" if math.isfinite(value) else f"{ticks} ticks"
