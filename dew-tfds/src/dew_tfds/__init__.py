"""Dew's provider `tfds`: datasets that tensorflow-datasets has prepared. Importing it imports no reader."""

from dew_tfds.options import TFDSOptions
from dew_tfds.splits import even_splits

__all__ = ["TFDSOptions", "even_splits"]
