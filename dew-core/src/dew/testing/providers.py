"""`ProviderSuite`: what every provider must do; with it come the tests of its streams and of its source."""

import functools
from collections.abc import Mapping
from typing import Any

from dew.data.dataset import DataPartition, Dataset
from dew.data.load import load
from dew.data.loading import Loading
from dew.data.source import RecordSource
from dew.testing import provider_checks as checks
from dew.testing.apart import another_process_reads_the_same, loaded
from dew.testing.sources import SourceSuite
from dew.testing.stream_checks import record_streams
from dew.testing.streams import StreamSuite
from dew.testing.subject import closing
from dew.testing.suite import skip

_DEFAULT_LOADING = Loading()


class ProviderSuite(StreamSuite, SourceSuite):
    """Subclass and set `source`; define `arguments` where `load` needs more than a batch.

    Attributes:
        source: what is loaded, `"prefix/name"`.
        batch: the global batch; one with many divisors finds the most.
        splits: splits there are, which the refusal of an unknown one must list.
    """

    source: str = ""
    batch: int = 12
    splits: tuple[str, ...] = ("train",)

    def arguments(self) -> dict[str, Any]:
        """Further arguments of `dew.data.load`, such as `{"options": ..., "val_split": "val"}`."""
        return {}

    def load(self, changes: Mapping[str, Any]) -> Dataset:
        """`dew.data.load` of the source with the suite's arguments, and with `changes`."""
        if not self.source:
            raise TypeError(f'{type(self).__name__} must say what to load: source = "prefix/name"')
        arguments: dict[str, Any] = {"batch": self.batch, **self.arguments(), **changes}
        return load(self.source, **arguments)

    def make_dataset(self, *, seed: int = 0, loading: Loading = _DEFAULT_LOADING) -> Dataset:
        """The dataset that `load` makes."""
        return self.load({"seed": seed, "loading": loading})

    def make_source(self) -> RecordSource:
        """The record source of the training split."""
        if not self.random_access:
            skip("the stream has no random access, so there is no source")
        with closing([self.make_dataset().train(DataPartition())]) as streams:
            return record_streams(streams)[0].source

    def test_is_found_by_its_prefix(self) -> None:
        """The registry finds the provider, which says what it is in one line."""
        self.check(checks.is_found_by_its_prefix(self.source))

    def test_wrong_options_are_a_type_error(self) -> None:
        """Options of another class are refused, naming both classes."""
        self.check(checks.refuses_foreign_options(self.source, self.load))

    def test_options_are_values(self) -> None:
        """No field of the options can be set."""
        options = self.arguments().get("options")
        wanted = checks.provider_of(self.source).options
        if options is None and wanted is None:
            skip("the provider has no options")
        self.check(checks.options_are_frozen(wanted() if options is None and wanted is not None else options))

    def test_an_unknown_split_lists_those_there_are(self) -> None:
        """A `SplitError` that names the split asked for, and each of `splits`."""
        self.check(checks.lists_the_splits(self.splits, self.load))

    def test_asks_for_preprocess(self) -> None:
        """Where rows have a shape of their own, a missing `preprocess` is a TypeError."""
        self.check(checks.asks_for_preprocess(self.source, self.load))

    def test_another_process_reads_the_same(self) -> None:
        """A process with another hash seed, which loads the source for itself, reads the same rows."""
        if not checks.is_installed(self.source):
            skip("the provider is registered in this process alone")
        opens = functools.partial(loaded, self.source, {"batch": self.batch, **self.arguments()})
        self.check(another_process_reads_the_same(self.subject([1]), opens))

    def test_imports_lightly(self) -> None:
        """Importing the plugin imports no library that reads data or computes."""
        self.check(checks.imports_lightly(self.source))

    def test_the_distribution_owns_no_file_of_dew(self) -> None:
        """The package installs nothing under `dew/`."""
        self.check(checks.owns_no_file_of_dew(self.source))
