"""The library that reads parquet, imported when a parquet file is."""

from typing import Any


def pyarrow() -> Any:
    """The `pyarrow` package, with its parquet module.

    Raises:
        ImportError: it is not installed.
    """
    try:
        import pyarrow as arrow  # pyright: ignore[reportMissingTypeStubs]
        import pyarrow.compute  # pyright: ignore[reportMissingTypeStubs, reportUnusedImport]
        import pyarrow.parquet  # pyright: ignore[reportMissingTypeStubs, reportUnusedImport]
    except ImportError as error:
        raise ImportError("parquet files need pyarrow: pip install 'dew-media[parquet]'") from error
    return arrow
