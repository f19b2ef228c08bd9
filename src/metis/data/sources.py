"""Every dataset Metis knows by name: where it lives, how it is read, how it is trained on.

`prepare` reads the files of a dataset's home (or a local copy) once and keeps one plain `.npz` in
the cache; `load` reads that. Data inside scikit-learn needs no preparing.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from metis.core.errors import DataError, unknown
from metis.data.cifar import read_cifar10, read_cifar100
from metis.data.dataset import Advice, Dataset
from metis.data.fetch import OnProgress, RemoteFile, download, silent, verify
from metis.data.idx import read_emnist_byclass, read_mnist_like
from metis.data.leaf import read_femnist
from metis.data.npz import read_npz, write_npz
from metis.data.tabular import (
    read_breast_cancer,
    read_diabetes,
    read_digits,
    read_heart_disease,
)


@dataclass(frozen=True, slots=True)
class Source:
    """A dataset by name.

    `read` takes the folder with the source's files (or its one file, where there is one) and
    returns the examples; name and advice are put in afterwards.
    """

    name: str
    summary: str
    cite: str
    input_shape: tuple[int, ...]
    num_classes: int  # 0: regression
    advice: Advice
    read: Callable[[Path], Dataset]
    files: tuple[RemoteFile, ...] = ()
    accepts: str = ""  # what `--from` takes besides an .npz
    embedded: bool = False  # inside scikit-learn, nothing to fetch
    # Debian, for one, packs the same IDX files anew: then only gzip's own checksum can be trusted.
    verify_local: bool = True


def _mirrored(base: str, *files: tuple[str, str, int]) -> tuple[RemoteFile, ...]:
    return tuple(RemoteFile(name, base + name, f"md5:{md5}", size) for name, md5, size in files)


_IDX_FILES = (
    "a folder with train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte "
    "and t10k-labels-idx1-ubyte, each plain or .gz"
)
_SMALL_IMAGES = Advice(model="mnist_cnn", learning_rate=0.05, momentum=0.9, batch_size=32)
_TABLE = Advice(model="mlp", learning_rate=0.05, momentum=0.9, batch_size=16)

_ALL = (
    Source(
        name="digits",
        summary="1,797 handwritten digits of 8x8 pixels",
        cite="Alpaydin & Kaynak 1998, UCI; copy in scikit-learn",
        input_shape=(1, 8, 8),
        num_classes=10,
        advice=Advice(model="digits_cnn", learning_rate=0.05, momentum=0.9, batch_size=16),
        read=read_digits,
        embedded=True,
    ),
    Source(
        name="breast_cancer",
        summary="569 tumours, 30 features, benign or malignant",
        cite="Wolberg et al. 1995, UCI; copy in scikit-learn",
        input_shape=(30,),
        num_classes=2,
        advice=_TABLE,
        read=read_breast_cancer,
        embedded=True,
    ),
    Source(
        name="diabetes",
        summary="442 patients, 10 features, progression after a year (regression)",
        cite="Efron et al. 2004; copy in scikit-learn",
        input_shape=(10,),
        num_classes=0,
        advice=replace(_TABLE, learning_rate=0.01),
        read=read_diabetes,
        embedded=True,
    ),
    Source(
        name="heart_disease",
        summary="920 patients of four hospitals, 13 features, diseased or not; owners: hospitals",
        cite="Janosi et al. 1988, UCI, https://archive.ics.uci.edu/dataset/45/heart+disease",
        input_shape=(13,),
        num_classes=2,
        advice=_TABLE,
        read=read_heart_disease,
        files=tuple(
            RemoteFile(
                f"processed.{site}.data",
                "https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease/"
                f"processed.{site}.data",
                None,
            )
            for site in ("cleveland", "hungarian", "switzerland", "va")
        ),
        accepts="a folder with UCI's four processed.*.data, or one CSV with site in front",
    ),
    Source(
        name="fashion_mnist",
        summary="70,000 pictures of clothes, 28x28 grey",
        cite="Xiao et al. 2017, https://github.com/zalandoresearch/fashion-mnist",
        input_shape=(1, 28, 28),
        num_classes=10,
        advice=_SMALL_IMAGES,
        read=read_mnist_like,
        files=_mirrored(
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            ("train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d", 26_421_880),
            ("train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe", 29_515),
            ("t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79", 4_422_102),
            ("t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310", 5_148),
        ),
        accepts=f"{_IDX_FILES} (Debian's dataset-fashion-mnist: /usr/share/datasets/fashion-mnist)",
        verify_local=False,
    ),
    Source(
        name="mnist",
        summary="70,000 handwritten digits, 28x28 grey",
        cite="LeCun et al. 1998",
        input_shape=(1, 28, 28),
        num_classes=10,
        advice=_SMALL_IMAGES,
        read=read_mnist_like,
        files=_mirrored(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            ("train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873", 9_912_422),
            ("train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432", 28_881),
            ("t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3", 1_648_877),
            ("t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c", 4_542),
        ),
        accepts=_IDX_FILES,
        verify_local=False,
    ),
    Source(
        name="cifar10",
        summary="60,000 colour photographs of 32x32 pixels, 10 classes",
        cite="Krizhevsky 2009, https://www.cs.toronto.edu/~kriz/cifar.html",
        input_shape=(3, 32, 32),
        num_classes=10,
        advice=Advice(
            model="cifar_cnn",
            learning_rate=0.05,
            momentum=0.75,
            batch_size=100,
            weight_decay=0.004,
            weight_decay_on=("fc1.weight", "fc2.weight"),
            augment="cifar10",
        ),
        read=read_cifar10,
        files=_mirrored(
            "https://www.cs.toronto.edu/~kriz/",
            ("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530", 170_052_171),
        ),
        accepts="the official archive of the binary version",
    ),
    Source(
        name="cifar100",
        summary="60,000 colour photographs of 32x32 pixels, 100 classes",
        cite="Krizhevsky 2009, https://www.cs.toronto.edu/~kriz/cifar.html",
        input_shape=(3, 32, 32),
        num_classes=100,
        advice=Advice(
            model="resnet50_cifar",
            learning_rate=0.1,
            momentum=0.9,
            batch_size=128,
            weight_decay=2e-4,
            augment="cifar100",
        ),
        read=read_cifar100,
        files=_mirrored(
            "https://www.cs.toronto.edu/~kriz/",
            ("cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8", 168_513_733),
        ),
        accepts="the official archive of the binary version",
    ),
    Source(
        name="femnist",
        summary="handwritten characters of 3,500 writers, 28x28 grey, 62 classes; owners: writers",
        cite="Caldas et al. 2018 (LEAF), https://github.com/TalwalkarLab/leaf",
        input_shape=(1, 28, 28),
        num_classes=62,
        advice=Advice(model="femnist_cnn", learning_rate=0.1, momentum=0.0, batch_size=16),
        read=read_femnist,
        accepts=(
            "the folder with train/ and test/ that LEAF makes: clone its repository, and in "
            "data/femnist run ./preprocess.sh -s niid --sf 1.0 -k 0 -t sample"
        ),
    ),
    Source(
        name="emnist_byclass",
        summary="814,255 handwritten characters, 28x28 grey, 62 classes",
        cite="Cohen et al. 2017, https://www.nist.gov/itl/products-and-services/emnist-dataset",
        input_shape=(1, 28, 28),
        num_classes=62,
        advice=Advice(model="leaf_cnn", learning_rate=0.01, momentum=0.5, batch_size=100),
        read=read_emnist_byclass,
        files=_mirrored(
            "https://biometrics.nist.gov/cs_links/EMNIST/",
            ("gzip.zip", "58c8d27c78d21e728a6bc7b3cc06412e", 561_753_746),
        ),
        accepts="NIST's gzip.zip, or a folder with its emnist-byclass-*-ubyte files, plain or .gz",
    ),
)

SOURCES: dict[str, Source] = {source.name: source for source in _ALL}


def cache_directory() -> Path:
    """Return where prepared data is kept: `$METIS_DATA`, or else `~/.cache/metis`."""
    return Path(os.environ.get("METIS_DATA") or "~/.cache/metis").expanduser()


def find(name: str) -> Source:
    """Return the source of that name."""
    if name not in SOURCES:
        raise DataError(f"{unknown('data source', name, SOURCES)}, or the path of an .npz file")
    return SOURCES[name]


def load(name: str, directory: Path | None = None) -> Dataset:
    """Return a dataset by its name, or by the path of an `.npz` file.

    An `.npz` with the shape and classes of a known source is trained as that source is.
    """
    if name.endswith(".npz"):
        dataset = read_npz(Path(name).expanduser())
        shape = (dataset.input_shape, dataset.num_classes)
        alike = (s.advice for s in _ALL if (s.input_shape, s.num_classes) == shape)
        return replace(dataset, name=Path(name).stem, advice=next(alike, _TABLE))
    return load_source(find(name), directory or cache_directory())


def load_source(source: Source, directory: Path) -> Dataset:
    """Return a source's examples, from the cache unless it is embedded."""
    if source.embedded:
        dataset = source.read(directory)
    else:
        packed = _packed(source, directory)
        if not packed.is_file():
            raise DataError(
                f"{source.name} is not prepared: {packed} does not exist\n"
                f"{how_to_get(source, directory)}"
            )
        # A sample of a source need not show its last class, so the file alone cannot tell.
        dataset = replace(read_npz(packed), num_classes=source.num_classes)
        _fitting(source, dataset, packed)
    return replace(dataset, name=source.name, advice=source.advice)


def is_ready(source: Source, directory: Path) -> bool:
    """Whether `load` would find this source."""
    return source.embedded or _packed(source, directory).is_file()


def prepare(
    name: str,
    source_path: Path | None = None,
    directory: Path | None = None,
    on_progress: OnProgress = silent,
) -> Path:
    """Put a dataset into the cache, from its home or from a local file or folder; return where."""
    return prepare_source(find(name), source_path, directory or cache_directory(), on_progress)


def prepare_source(
    source: Source, source_path: Path | None, directory: Path, on_progress: OnProgress = silent
) -> Path:
    """Prepare one source. What ends up in the cache has been read and found fit."""
    if source.embedded:
        raise DataError(f"{source.name} comes with scikit-learn: there is nothing to prepare")
    if source_path is None:
        dataset = source.read(_fetched(source, directory, on_progress))
    elif not source_path.exists():
        raise DataError(f"{source_path} does not exist\n{how_to_get(source, directory)}")
    elif source_path.suffix == ".npz":
        dataset = read_npz(source_path)
    else:
        _verify_local(source, source_path)
        dataset = source.read(source_path)
    packed = _packed(source, directory)
    write_npz(packed, _fitting(source, dataset, source_path or packed))
    return packed


def how_to_get(source: Source, directory: Path) -> str:
    """Say what to fetch, from where, and what to do with it."""
    lines = []
    where = "" if directory == cache_directory() else f" --directory {directory}"
    if source.files:
        lines.append(f"with a connection:  metis data prepare {source.name}{where}")
    lines.append(f"from a local copy:  metis data prepare {source.name} --from PATH{where}")
    lines.append(f"  PATH: {source.accepts}; or an .npz with x_train, y_train, x_test, y_test")
    if source.files:
        lines.append(
            f"  or put these into {_folder(source, directory)} and prepare without --from:"
        )
    for file in source.files:
        lines.append(f"    {file.url} ({file.checksum or 'no checksum known, cannot be verified'})")
    return "\n".join(lines)


def _packed(source: Source, directory: Path) -> Path:
    return directory / f"{source.name}.npz"


def _folder(source: Source, directory: Path) -> Path:
    return directory / source.name


def _fetched(source: Source, directory: Path, on_progress: OnProgress) -> Path:
    folder = _folder(source, directory)
    if not source.files:
        raise DataError(f"{source.name} has no file to download\n{how_to_get(source, directory)}")
    try:
        for file in source.files:
            download(file, folder, on_progress)
    except DataError as error:
        raise DataError(f"{error}\n{how_to_get(source, directory)}") from error
    return folder


def _verify_local(source: Source, path: Path) -> None:
    if not source.verify_local:
        return
    for file in source.files:
        copy = path / file.name if path.is_dir() else path
        if copy.is_file():
            verify(copy, file)


def _fitting(source: Source, dataset: Dataset, origin: Path) -> Dataset:
    found = (dataset.input_shape, dataset.num_classes)
    if found != (source.input_shape, source.num_classes):
        raise DataError(
            f"{origin} is not {source.name}: inputs of {dataset.input_shape} and "
            f"{dataset.num_classes} classes, expected {source.input_shape} and {source.num_classes}"
        )
    return dataset
