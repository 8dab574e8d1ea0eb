"""What Dew finds through the entry point: one hook that returns one provider."""

from dew.data.provider import LoadRequest, Provider, hookimpl
from dew.data.source import RecordSource

from dew_example.options import ExampleOptions


def open_split(request: LoadRequest, split: str) -> RecordSource:
    """The table `split` of the file `request.name`."""
    from dew_example.source import TableSource  # sqlite3 is imported only by those who read

    return TableSource(request.name, split, request.options.columns)


EXAMPLE = Provider(
    prefix="example",
    summary="Rows of the tables of a SQLite file.",
    options=ExampleOptions,
    open=open_split,
)


@hookimpl
def dew_provider() -> Provider:
    """The provider of the prefix "example"."""
    return EXAMPLE
