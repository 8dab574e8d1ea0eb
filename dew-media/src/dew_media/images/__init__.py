"""Image files: the provider `images`."""

from dew_media.images.options import ImageOptions

__all__ = ["ImageOptions"]
