"""Run in an environment with TensorFlow: prepares datasets, and writes down what TensorFlow reads from them.

Beside each version's directory stands `expected.json`: a list of records, each value with its type, its bytes in hex.
"""

import contextlib
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds
from PIL import Image

F = tfds.features
COUNT = 8


class Pictures(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """Images as TensorFlow encodes them, and as files in many encodings."""

    VERSION = tfds.core.Version("1.0.0")
    name = "pictures"

    def _info(self) -> Any:
        features = {
            "png": F.Image(shape=(16, 24, 3), encoding_format="png"),
            "jpeg": F.Image(shape=(None, None, 3), encoding_format="jpeg"),
            "grey": F.Image(shape=(16, 24, 1)),
            "alpha": F.Image(shape=(16, 24, 4), encoding_format="png"),
            "deep": F.Image(shape=(16, 24, 3), dtype=np.uint16, encoding_format="png"),
            "depth": F.Image(shape=(16, 24, 1), dtype=np.float32),
            "file": F.Image(),
            "file_grey": F.Image(shape=(None, None, 1)),
            "mask": F.LabeledImage(labels=["a", "b"], shape=(16, 24, 1)),
            "frames": F.Sequence(F.Image(shape=(16, 24, 3))),
            "labels": F.Sequence(F.ClassLabel(names=["x", "y"])),
            "name": F.Text(),
        }
        return tfds.core.DatasetInfo(builder=self, features=F.FeaturesDict(features))

    def _split_generators(self, _downloads: Any) -> Any:
        return {"train": self._generate_examples(), "test": self._generate_examples()}

    def _generate_examples(self) -> Iterator[Any]:
        files = encoded()
        for number in range(COUNT):
            rng = np.random.default_rng(number)
            rgb = rng.integers(0, 256, (16, 24, 3), np.uint8)
            smooth = np.asarray(Image.fromarray(rgb).resize((40, 32), Image.Resampling.BICUBIC))
            name, data, grey = files[number % len(files)]
            yield (
                number,
                {
                    "png": rgb,
                    "jpeg": smooth,
                    "grey": rgb[..., :1],
                    "alpha": np.dstack([rgb, rgb[..., 0]]),
                    "deep": rng.integers(0, 65536, (16, 24, 3), np.uint16),
                    "depth": rng.random((16, 24, 1), dtype=np.float32),
                    "file": io.BytesIO(data),
                    "file_grey": io.BytesIO(grey),
                    "mask": rgb[..., 1:2] % 2,
                    "frames": [rgb, rgb[::-1]][: number % 3],
                    "labels": ["y", "x"][: number % 3],
                    "name": f"{name} é",
                },
            )


def encoded() -> list[tuple[str, bytes, bytes]]:
    """Name, a file for three channels, and one for a single channel."""
    noise = np.random.default_rng(9).integers(0, 256, (16, 24, 3), np.uint8)
    smooth = Image.fromarray(noise[:4, :6]).resize((24, 16), Image.Resampling.BICUBIC)
    image = Image.fromarray(noise)

    def file(image: Any, kind: str, **options: Any) -> bytes:
        buffer = io.BytesIO()
        image.save(buffer, kind, **options)
        return buffer.getvalue()

    grey = file(image.convert("L"), "PNG")
    return [
        ("palette", file(image.quantize(16), "PNG"), file(image.quantize(16), "PNG")),
        ("1-bit", file(image.convert("1"), "PNG"), file(image.convert("1"), "PNG")),
        ("grey and alpha", file(image.convert("LA"), "PNG"), file(image.convert("LA"), "PNG")),
        ("alpha", file(image.convert("RGBA"), "PNG"), file(image.convert("RGBA"), "PNG")),
        ("16-bit", file(image.convert("I;16"), "PNG"), file(image.convert("I;16"), "PNG")),
        ("cmyk", file(smooth.convert("CMYK"), "JPEG", quality=95), grey),
        ("bmp", file(image, "BMP"), grey),
        ("colours", file(image, "PNG"), file(image, "PNG")),
    ]


class Kinds(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """What only TensorFlow prepares: videos, audio, sequences within sequences; and numbers of every kind."""

    VERSION = tfds.core.Version("1.0.0")
    name = "kinds"

    def _info(self) -> Any:
        features = {
            "video": F.Video(shape=(None, 8, 12, 3)),
            "clip": F.Video(shape=(2, None, None, 1)),
            "audio": F.Audio(shape=(None,)),
            "stereo": F.Audio(shape=(None, 2), dtype=np.int16),
            "rows": F.Sequence(F.Sequence(np.int32)),
            "words": F.Sequence(F.Sequence(F.Text())),
            "objects": F.Sequence({"box": F.BBoxFeature(), "tags": F.Sequence(F.ClassLabel(num_classes=3))}),
            "u64": np.uint64,
            "flag": np.bool_,
            "f64": np.float64,
            "zipped": F.Tensor(shape=(None, None), dtype=np.int16, encoding="zlib"),
            "plain": F.Tensor(shape=(3,), dtype=np.float16),
            "translation": F.Translation(languages=["de", "en"]),
        }
        return tfds.core.DatasetInfo(builder=self, features=F.FeaturesDict(features))

    def _split_generators(self, _downloads: Any) -> Any:
        return {"train": self._generate_examples()}

    def _generate_examples(self) -> Iterator[Any]:
        for number in range(COUNT):
            rng = np.random.default_rng(number)
            many = number % 3
            yield (
                number,
                {
                    "video": rng.integers(0, 256, (many, 8, 12, 3), np.uint8),
                    "clip": rng.integers(0, 256, (2, 4 + number, 6, 1), np.uint8),
                    "audio": rng.integers(-9, 9, 5 + number),
                    "stereo": rng.integers(-9, 9, (3, 2)).astype(np.int16),
                    "rows": [list(range(length)) for length in range(many)],
                    "words": [["é"] * length for length in range(many)],
                    "objects": [
                        {"box": F.BBox(ymin=0.25, xmin=0.5, ymax=0.5, xmax=1.0), "tags": [1, 2][:length]}
                        for length in range(many)
                    ],
                    "u64": 2**64 - 1 - number,
                    "flag": bool(many),
                    "f64": 0.25 * number,
                    "zipped": rng.integers(-9, 9, (many, 3)).astype(np.int16),
                    "plain": rng.random(3).astype(np.float16),
                    "translation": {"de": "Satz", "en": "sentence"},
                },
            )


def written_down(value: Any) -> Any:
    """A value as JSON."""
    if isinstance(value, dict):
        return {name: written_down(part) for name, part in value.items()}
    if isinstance(value, tf.RaggedTensor):
        return {"ragged": nested(value.to_list())}
    if value.dtype == tf.string:
        array = np.asarray(value.numpy(), object)
        texts = [text.hex() for text in array.reshape(-1)]
        return {"strings": texts, "shape": list(array.shape)}
    array = value.numpy()
    return {"dtype": str(array.dtype), "shape": list(array.shape), "hex": array.tobytes().hex()}


def nested(value: Any) -> Any:
    if isinstance(value, list):
        return [nested(part) for part in value]
    return value.decode() if isinstance(value, bytes) else value


def main(directory: Path) -> None:
    config = tfds.download.DownloadConfig(num_shards=2, try_download_gcs=False)
    builders: list[Any] = [Pictures, Kinds, tfds.testing.DummyMnist, tfds.testing.DummyDataset]
    for kind in builders:
        with contextlib.redirect_stdout(io.StringIO()):
            builder = kind(data_dir=str(directory), file_format="array_record")
            builder.download_and_prepare(download_config=config)
        raw = builder.as_data_source("train", deserialize_method=tfds.decode.DeserializeMethod.RAW_BYTES)
        features = builder.info.features
        records = [written_down(features.deserialize_example(raw[index])) for index in range(len(raw))]
        (Path(builder.data_dir) / "expected.json").write_text(json.dumps(records))
        print(f"{builder.info.full_name}: {len(records)} records")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
