"""Sources by name: embedded ones, preparing from files and from a server, and the cache."""

from __future__ import annotations

import functools
import gzip
import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from metis.core.errors import DataError
from metis.data.dataset import Advice
from metis.data.fetch import RemoteFile, download
from metis.data.idx import read_mnist_like
from metis.data.sources import (
    SOURCES,
    Source,
    cache_directory,
    how_to_get,
    load,
    load_source,
    prepare,
    prepare_source,
)

RNG = np.random.default_rng(0)


def images(count: int, *shape: int) -> NDArray[np.uint8]:
    return RNG.integers(0, 256, (count, *shape), dtype=np.uint8)


def write_idx_files(folder: Path, num_examples: int, compressed: bool) -> None:
    """Write MNIST's four files with images of random bytes and every class."""
    folder.mkdir(exist_ok=True)
    for part in ("train", "t10k"):
        arrays = (images(num_examples, 28, 28), np.arange(num_examples, dtype=np.uint8) % 10)
        for kind, array in zip(("images-idx3", "labels-idx1"), arrays, strict=True):
            shape = b"".join(n.to_bytes(4, "big") for n in array.shape)
            content = bytes([0, 0, 8, array.ndim]) + shape + array.tobytes()
            name = f"{part}-{kind}-ubyte" + (".gz" if compressed else "")
            (folder / name).write_bytes(gzip.compress(content) if compressed else content)


class Quiet(SimpleHTTPRequestHandler):
    """Serves a folder; a file named `short` promises more than it sends."""

    def log_message(self, format: str, *args: Any) -> None: ...

    def do_GET(self) -> None:
        if self.path != "/short":
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Length", "100")
        self.end_headers()
        self.wfile.write(b"only this")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A dataset's home: a folder, and the address it is served under."""
    folder = tmp_path / "home"
    folder.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    thread.join()
    server.server_close()


def small_source(home: tuple[Path, str]) -> Source:
    """A source of four IDX files at that home, checksums and all."""
    folder, address = home
    write_idx_files(folder, 20, compressed=True)
    files = tuple(
        RemoteFile(file.name, address + file.name, f"md5:{md5(file)}")
        for file in sorted(folder.iterdir())
    )
    return Source(
        name="small",
        summary="",
        cite="",
        input_shape=(1, 28, 28),
        num_classes=10,
        advice=Advice(model="mnist_cnn"),
        read=read_mnist_like,
        files=files,
        accepts="a folder with four files",
    )


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes()).hexdigest()


def test_digits_are_ready_to_be_trained_on() -> None:
    data = load("digits")

    assert data.input_shape == (1, 8, 8)
    assert data.x_train.dtype == np.float32
    assert (data.x_train.min(), data.x_train.max()) == (0.0, 1.0)
    # 1,797 examples; a fifth of each class, rounded: 36 36 35 37 36 36 36 36 35 36
    assert np.bincount(data.y_test).tolist() == [36, 36, 35, 37, 36, 36, 36, 36, 35, 36]
    assert len(data.x_train) + len(data.x_test) == 1797
    assert data.advice.model == "digits_cnn"
    np.testing.assert_array_equal(data.x_test, load("digits").x_test)


def test_tables_are_standardised_with_training_statistics() -> None:
    for name in ("breast_cancer", "diabetes"):
        data = load(name)
        np.testing.assert_allclose(data.x_train.mean(axis=0), 0, atol=1e-5)
        np.testing.assert_allclose(data.x_train.std(axis=0), 1, atol=1e-5)
        assert data.num_classes == SOURCES[name].num_classes
    assert data.y_train.dtype == np.float32
    assert data.y_train.std() == pytest.approx(1, abs=1e-5)


def test_every_source_says_what_it_is_and_trains_as_the_papers_do() -> None:
    for name, source in SOURCES.items():
        assert source.name == name
        assert source.summary
        assert source.cite
        assert source.embedded or source.accepts
    cifar10 = SOURCES["cifar10"].advice
    assert (cifar10.learning_rate, cifar10.momentum, cifar10.batch_size) == (0.05, 0.75, 100)
    assert cifar10.weight_decay_on == ("fc1.weight", "fc2.weight")
    femnist = SOURCES["femnist"].advice
    assert (femnist.learning_rate, femnist.momentum, femnist.batch_size) == (0.1, 0.0, 16)


def test_a_source_is_prepared_from_its_home(home: tuple[Path, str], tmp_path: Path) -> None:
    source, seen = small_source(home), list[tuple[str, int, int | None]]()

    packed = prepare_source(source, None, tmp_path / "cache", lambda *call: seen.append(call))
    data = load_source(source, tmp_path / "cache")

    assert packed == tmp_path / "cache" / "small.npz"
    assert data.name == "small"
    assert data.advice.model == "mnist_cnn"
    np.testing.assert_array_equal(data.x_train, read_mnist_like(home[0]).x_train)
    assert {name for name, _, _ in seen} == {file.name for file in source.files}
    assert all(done == total for _, done, total in seen)  # each is smaller than one block
    assert not list((tmp_path / "cache" / "small").glob("*.tmp"))


def test_files_already_in_place_are_checked_not_fetched(
    home: tuple[Path, str], tmp_path: Path
) -> None:
    source = small_source(home)
    away = tuple(replace(file, url="http://127.0.0.1:9/") for file in source.files)
    folder = tmp_path / "small"
    folder.mkdir()
    for file in home[0].iterdir():
        (folder / file.name).write_bytes(file.read_bytes())

    prepare_source(replace(source, files=away), None, tmp_path)
    next(folder.iterdir()).write_bytes(b"damaged")

    with pytest.raises(DataError, match=r"expected md5:.*remove it and fetch it again"):
        prepare_source(replace(source, files=away), None, tmp_path)


def test_what_does_not_match_its_checksum_is_not_kept(
    home: tuple[Path, str], tmp_path: Path
) -> None:
    source = small_source(home)
    wrong = tuple(replace(file, checksum="sha256:" + "0" * 64) for file in source.files)

    with pytest.raises(DataError, match="expected sha256:000"):
        prepare_source(replace(source, files=wrong), None, tmp_path)
    assert not list(tmp_path.glob("small/*"))
    assert not list(tmp_path.glob("*.npz"))


def test_a_file_without_a_checksum_is_taken_and_its_user_told(
    home: tuple[Path, str], tmp_path: Path
) -> None:
    source = small_source(home)
    unchecked = replace(source, files=tuple(replace(f, checksum=None) for f in source.files))

    assert prepare_source(unchecked, None, tmp_path).is_file()
    assert "no checksum known" in how_to_get(unchecked, tmp_path)


def test_a_connection_that_ends_early_is_noticed(home: tuple[Path, str], tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"could not fetch .*short"):
        download(RemoteFile("short", home[1] + "short", None), tmp_path)
    assert not list(tmp_path.glob("short*"))


def test_offline_it_says_what_to_fetch_and_where_to_put_it(
    home: tuple[Path, str], tmp_path: Path
) -> None:
    source = small_source(home)
    gone = tuple(replace(file, url=home[1] + "gone/" + file.name) for file in source.files)

    with pytest.raises(DataError) as error:
        prepare_source(replace(source, files=gone), None, tmp_path)

    said = str(error.value)
    assert "404" in said
    assert all(file.url in said for file in gone)
    assert str(tmp_path / "small") in said
    assert "metis data prepare small --from PATH" in said


def test_missing_data_names_the_command_the_address_and_the_place(tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        load("cifar10", tmp_path)

    said = str(error.value)
    assert "metis data prepare cifar10 --from PATH" in said
    assert "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz" in said
    assert "md5:c32a1d4ab5d03f1284b67883e8d87530" in said
    assert str(tmp_path / "cifar10") in said


def test_a_source_is_prepared_from_a_local_folder(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    write_idx_files(folder, 10, compressed=False)

    prepare("fashion_mnist", folder, tmp_path)

    assert load("fashion_mnist", tmp_path).input_shape == (1, 28, 28)


def test_the_same_images_packed_anew_are_accepted(tmp_path: Path) -> None:
    folder = tmp_path / "debian"
    write_idx_files(folder, 10, compressed=True)

    assert prepare("fashion_mnist", folder, tmp_path).is_file()


def test_a_sample_of_writers_is_prepared_though_it_lacks_the_last_class(tmp_path: Path) -> None:
    for part in ("train", "test"):
        (tmp_path / part).mkdir()
        content = {
            "users": ["w1"],
            "num_samples": [2],
            "user_data": {"w1": {"x": [[0.0] * 784, [1.0] * 784], "y": [0, 1]}},
        }
        (tmp_path / part / "all_data_0.json").write_text(json.dumps(content))

    prepare("femnist", tmp_path, tmp_path / "cache")
    data = load("femnist", tmp_path / "cache")

    assert data.num_classes == 62
    assert data.owners is not None
    assert data.owners.tolist() == ["w1", "w1"]


def test_a_local_archive_that_is_not_the_official_one_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "cifar-10-binary.tar.gz"
    archive.write_bytes(b"something else")

    for path in (archive, tmp_path):
        with pytest.raises(DataError, match="expected md5:c32a1d4ab5d03f1284b67883e8d87530"):
            prepare("cifar10", path, tmp_path / "cache")


def save_cifar_like(path: Path, num_classes: int) -> None:
    x, y = images(num_classes, 32, 32, 3), np.arange(num_classes, dtype=np.uint8)
    np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y)


def test_an_npz_is_accepted_for_a_source_it_fits(tmp_path: Path) -> None:
    save_cifar_like(tmp_path / "c10.npz", 10)

    prepare("cifar10", tmp_path / "c10.npz", tmp_path / "cache")

    data = load("cifar10", tmp_path / "cache")
    assert data.input_shape == (3, 32, 32)
    assert data.advice.augment == "cifar10"
    with pytest.raises(DataError, match=r"c10\.npz is not cifar100: .*10 classes, expected .*100"):
        prepare("cifar100", tmp_path / "c10.npz", tmp_path / "cache")


def test_an_npz_is_loaded_by_its_path_and_trained_like_the_source_it_resembles(
    tmp_path: Path,
) -> None:
    save_cifar_like(tmp_path / "my photos.npz", 10)
    np.savez(tmp_path / "table.npz", x=np.zeros((20, 4)), y=np.arange(20) % 2)

    photos = load(str(tmp_path / "my photos.npz"))

    assert photos.name == "my photos"
    assert photos.advice.model == "cifar_cnn"
    assert load(str(tmp_path / "table.npz")).advice.model == "mlp"


def test_names_that_lead_nowhere_are_answered_kindly(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"did you mean 'cifar10'\?.*or the path of an \.npz"):
        load("cifar", tmp_path)
    with pytest.raises(DataError, match=r"nowhere\.npz does not exist"):
        load(str(tmp_path / "nowhere.npz"))
    with pytest.raises(DataError, match="nothing to prepare"):
        prepare("digits", None, tmp_path)
    with pytest.raises(DataError, match=r"femnist has no file to download(.|\n)*preprocess\.sh"):
        prepare("femnist", None, tmp_path)
    with pytest.raises(DataError, match="nowhere does not exist"):
        prepare("cifar10", tmp_path / "nowhere", tmp_path)


def test_a_cache_that_cannot_be_written_is_named(home: tuple[Path, str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    with pytest.raises(DataError, match=r"cannot write .*small\.npz"):
        prepare_source(small_source(home), home[0], tmp_path / "file")
    with pytest.raises(DataError, match="could not fetch"):
        prepare_source(small_source(home), None, tmp_path / "file")


def test_the_cache_is_where_the_environment_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("METIS_DATA", str(tmp_path))
    assert cache_directory() == tmp_path
    monkeypatch.delenv("METIS_DATA")
    assert cache_directory() == Path.home() / ".cache" / "metis"
