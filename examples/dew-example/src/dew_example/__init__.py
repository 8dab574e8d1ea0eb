"""Dew provider "example": training data from the tables of a SQLite file."""

from dew_example.options import ExampleOptions

__all__ = ["ExampleOptions"]
