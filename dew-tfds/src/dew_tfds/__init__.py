"""Dew's provider `tfds`: datasets that tensorflow-datasets has prepared. Importing it imports no reader."""

from dew_tfds.options import TFDSOptions

__all__ = ["TFDSOptions"]
