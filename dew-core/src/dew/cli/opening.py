"""From the words of a command line to a `Dataset`: what the commands that look at a source share."""

import json
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import click

from dew.cli.output import json_option, stdout_kept_clean
from dew.cli.program import is_program, program_dataset
from dew.data.errors import DewDataError, OptionsError

if TYPE_CHECKING:
    from dew.data.dataset import Batch, Dataset
    from dew.data.loading import Loading
    from dew.data.provider import Provider
    from dew.data.stream import RecordStream

_SEED = click.IntRange(0, 2**64 - 1)
_Command = TypeVar("_Command", bound=Callable[..., Any])


@attrs.frozen(kw_only=True)
class Asked:
    """What the command line said of a source; see `source_options`.

    A source is `PREFIX/NAME`, as for `dew.data.load`, or `FILE.py:NAME`, a dataset of the user's own program, which
    brings its batch, seed and options with it.
    """

    source: str
    batch: int | None = None
    split: str = "train"
    seed: int = 0
    pairs: tuple[str, ...] = ()

    @contextmanager
    def opened(self, loading: "Loading | None" = None) -> "Generator[Dataset, None, None]":
        """The dataset whose `train` reads the split that was asked for; of a program, for as long as it is in use.

        By default a loaded source is read in this process without read-ahead: a command looks at a step or two. Rows
        that need a `preprocess` are read as they are stored, since their records are the same with any. A program's
        dataset is what the program made of it, `loading` too. What is printed while it is in use goes to stderr.

        Raises:
            click.UsageError: a batch was not given, and a loaded source needs one.
            OptionsError: the program has another batch, or was given a seed or options; and as `load`.
        """
        with stdout_kept_clean():
            if is_program(self.source):
                with program_dataset(self.source) as dataset:
                    yield self._split_of(dataset)
            else:
                yield self._loaded(loading)

    @property
    def stored_rows(self) -> bool:
        """Whether rows are read as they are stored, because the provider leaves their shape to `preprocess`."""
        return not is_program(self.source) and self._provider().needs_preprocess

    def provider(self) -> "Provider | None":
        """The provider of the source; a program has none."""
        return None if is_program(self.source) else self._provider()

    def _loaded(self, loading: "Loading | None") -> "Dataset":
        from dew.data.build import identity
        from dew.data.load import load
        from dew.data.loading import Loading

        provider = self._provider()
        if self.batch is None:
            raise click.UsageError("Missing option '--batch'.")
        return load(
            self.source,
            batch=self.batch,
            split=self.split,
            seed=self.seed,
            options=options_from(provider, self.pairs),
            preprocess=identity if provider.needs_preprocess else None,
            # Nothing is trained here, so any split may be looked at.
            allow_overlap=True,
            loading=Loading(workers=0, read_buffer=0) if loading is None else loading,
        )

    def _split_of(self, dataset: "Dataset") -> "Dataset":
        if self.batch not in (None, dataset.batch):
            raise OptionsError(
                f"--batch {self.batch} was given, and {self.source} has a batch of {dataset.batch}; leave --batch out"
            )
        given = [f"-o {pair}" for pair in self.pairs] + ([f"--seed {self.seed}"] if self.seed else [])
        if given:
            raise OptionsError(f"{given[0]} was given, and {self.source} has its own; change it in the program")
        if self.split == "train":
            return dataset
        if self.split != "val":
            raise OptionsError(f"--split of a program's dataset is train or val, got {self.split!r}")
        if dataset.val is None:
            raise OptionsError(f"--split val was given, and {self.source} has no validation data")
        return attrs.evolve(dataset, train=dataset.val, val=None, records=None, ramp=None)

    def _provider(self) -> "Provider":
        from dew.data import registry

        prefix, slash, name = self.source.partition("/")
        if not prefix or not slash or not name:
            raise OptionsError(
                f"a source is written PREFIX/NAME, such as tokens/path/to/corpus, or FILE.py:NAME, a dataset of your "
                f"own program, got {self.source!r}"
            )
        return registry.find(prefix)


def source_options(command: _Command) -> _Command:
    """SOURCE, `--batch`, `--split`, `--seed`, `-o` and `--json`."""
    for decorate in reversed(
        [
            click.argument("source", metavar="SOURCE"),
            click.option(
                "--batch", type=click.IntRange(min=1), help="The global batch, in rows; a program brings its."
            ),
            click.option("--split", default="train", show_default=True, help="The split to read."),
            click.option("--seed", type=_SEED, default=0, metavar="SEED", help="Of the order [0]."),
            click.option("-o", "pairs", multiple=True, metavar="KEY=VALUE", help="An option of the provider."),
            json_option,
        ]
    ):
        command = decorate(command)
    return command


def options_from(provider: "Provider", pairs: Sequence[str]) -> Any:
    """An instance of the provider's options class from `key=value` words, whose values are JSON, else strings.

    None where the provider has no options class.

    Raises:
        OptionsError: the provider has no options, a key is unknown or a needed one missing (lists the fields), or the
            class refuses a value.
    """
    wanted = provider.options
    if wanted is None or not attrs.has(wanted):
        if pairs:
            raise OptionsError(f"the provider {provider.prefix!r} takes no options, got -o {pairs[0]}")
        return None if wanted is None else wanted()
    fields = {field.alias: field for field in attrs.fields(wanted) if field.init}
    known = f"the options of {provider.prefix!r} are {', '.join(fields)}"
    values = pairs_of(pairs)
    if unknown := [key for key in values if key not in fields]:
        raise OptionsError(f"there is no option {unknown[0]!r}; {known}")
    needed = [key for key, field in fields.items() if field.default is attrs.NOTHING and key not in values]
    if needed:
        raise OptionsError(f"{provider.prefix!r} needs {' '.join(f'-o {key}=...' for key in needed)}; {known}")
    try:
        return wanted(**values)
    except DewDataError:
        raise
    except (TypeError, ValueError) as error:
        raise OptionsError(f"{wanted.__name__} refuses {' '.join(pairs)}: {error}; {known}") from error


def pairs_of(pairs: Sequence[str]) -> dict[str, Any]:
    """`key=value` words as a mapping; values are JSON, else strings."""
    return dict(_pair(pair) for pair in pairs)


def _pair(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise OptionsError(f"an option is written key=value, got -o {text}")
    return key, _value(value)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def record_stream(dataset: "Dataset", source: str) -> "RecordStream":
    """The stream of the whole global batch.

    Raises:
        OptionsError: the source is read as a stream without random access, so it has no order to ask.
    """
    from dew.data.stream import RecordStream

    stream = dataset_stream(dataset)
    if not isinstance(stream, RecordStream):
        raise OptionsError(
            f"{source} is read as a stream without random access ({type(stream).__name__}): "
            "which record comes at which step is known only by reading it"
        )
    return stream


def dataset_stream(dataset: "Dataset") -> "Iterator[Batch]":
    """A fresh training stream that reads every row of a step.

    Raises:
        OptionsError: what `train` returns is no iterator.
    """
    from dew.data.dataset import DataPartition

    stream = dataset.train(DataPartition())
    if not hasattr(stream, "__next__"):
        raise OptionsError(f"train of a Dataset must return an iterator over batches, got {type(stream).__name__}")
    return stream
