"""Image files: the provider `images`, and the specifications of collections of images."""

from dew_media.images.flowers import OxfordFlowers
from dew_media.images.options import ImageOptions
from dew_media.images.specs import ImageFolder, ImageParquet, ImageTar

__all__ = ["ImageFolder", "ImageOptions", "ImageParquet", "ImageTar", "OxfordFlowers"]
