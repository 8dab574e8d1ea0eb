"""Dew's provider `hf`: Hugging Face datasets. Importing it imports no reader."""

from dew_hf.options import HFOptions

__all__ = ["HFOptions"]
