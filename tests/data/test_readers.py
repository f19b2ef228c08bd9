"""Every file format, on small files written here: read right, and refused clearly."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from metis.core.errors import DataError
from metis.data.cifar import read_cifar10, read_cifar100
from metis.data.dataset import Dataset
from metis.data.idx import parse_idx, read_emnist_byclass, read_mnist_like
from metis.data.leaf import read_femnist
from metis.data.npz import read_npz, write_npz
from metis.data.tabular import read_heart_disease

RNG = np.random.default_rng(0)


def idx(array: NDArray[Any]) -> bytes:
    shape = b"".join(int(n).to_bytes(4, "big") for n in array.shape)
    return bytes([0, 0, 8, array.ndim]) + shape + array.astype(np.uint8).tobytes()


def images(count: int, *shape: int) -> NDArray[np.uint8]:
    return RNG.integers(0, 256, (count, *shape), dtype=np.uint8)


def write_mnist_like(folder: Path, x: NDArray[Any], y: NDArray[Any], compressed: bool) -> None:
    files = {
        "train-images-idx3-ubyte": x,
        "train-labels-idx1-ubyte": y,
        "t10k-images-idx3-ubyte": x[:3],
        "t10k-labels-idx1-ubyte": y[:3],
    }
    for name, array in files.items():
        if compressed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(idx(array)))
        else:
            (folder / name).write_bytes(idx(array))


def write_tar(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def leaf_file(users: dict[str, tuple[NDArray[np.uint8], list[int]]]) -> str:
    return json.dumps(
        {
            "users": list(users),
            "num_samples": [len(y) for _, y in users.values()],
            "user_data": {
                user: {"x": (x.reshape(len(x), -1) / 255).tolist(), "y": y}
                for user, (x, y) in users.items()
            },
        }
    )


@pytest.mark.parametrize("compressed", [True, False])
def test_idx_files_are_read_plain_or_gzipped(tmp_path: Path, compressed: bool) -> None:
    x, y = images(7, 28, 28), np.arange(7)
    write_mnist_like(tmp_path, x, y, compressed)

    data = read_mnist_like(tmp_path)

    np.testing.assert_array_equal(data.x_train[:, 0], x)
    assert data.x_train.dtype == np.uint8
    assert data.input_shape == (1, 28, 28)
    assert data.y_train.tolist() == list(range(7))
    assert len(data.x_test) == 3


def test_emnist_is_turned_upright_from_its_zip_or_from_files(tmp_path: Path) -> None:
    x, y = images(5, 28, 28), np.array([0, 61, 5, 6, 7])
    contents = {
        f"emnist-byclass-{part}-ubyte.gz": gzip.compress(idx(array))
        for part, array in (
            ("train-images-idx3", np.swapaxes(x, 1, 2)),
            ("train-labels-idx1", y),
            ("test-images-idx3", np.swapaxes(x, 1, 2)),
            ("test-labels-idx1", y),
        )
    }
    unpacked = tmp_path / "unpacked"
    unpacked.mkdir()
    with zipfile.ZipFile(tmp_path / "gzip.zip", "w") as zipped:
        for name, content in contents.items():
            zipped.writestr(f"gzip/{name}", content)
            (unpacked / name).write_bytes(content)

    for path in (tmp_path / "gzip.zip", tmp_path, unpacked):
        data = read_emnist_byclass(path)
        np.testing.assert_array_equal(data.x_train[:, 0], x)
        assert data.num_classes == 62


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "must start with 00 00 08, not nothing"),
        (b"\x00\x00\x0d\x01" + bytes(8), "not an IDX file of unsigned bytes"),
        (idx(images(4, 2))[:-1], "cut short or too long: 19 bytes, expected 20"),
        (idx(images(4, 2))[:6], "cut short"),
        (gzip.compress(idx(images(4, 2)), mtime=0)[:-9], "damaged gzip"),
    ],
)
def test_a_damaged_idx_file_is_named(content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=f"here.*{message}"):
        parse_idx(content, "here")


def test_a_missing_idx_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte or .*\.gz"):
        read_mnist_like(tmp_path)
    with pytest.raises(DataError, match=r"not NIST's gzip\.zip"):
        read_emnist_byclass(tmp_path / "gzip.zip")


def test_cifar10_is_read_from_its_binary_archive(tmp_path: Path) -> None:
    x, y = images(12, 3, 32, 32), np.arange(12, dtype=np.uint8) % 10
    records = [bytes([label]) + pixels.tobytes() for label, pixels in zip(y, x, strict=True)]
    members = {f"data_batch_{i + 1}.bin": b"".join(records[2 * i : 2 * i + 2]) for i in range(5)}
    members["test_batch.bin"] = b"".join(records[10:])
    write_tar(
        tmp_path / "cifar-10-binary.tar.gz",
        {f"cifar-10-batches-bin/{name}": content for name, content in members.items()},
    )

    data = read_cifar10(tmp_path)

    np.testing.assert_array_equal(data.x_train, x[:10])
    np.testing.assert_array_equal(data.y_test, y[10:])
    assert data.num_classes == 10


def test_cifar100_takes_the_fine_labels(tmp_path: Path) -> None:
    x = images(2, 3, 32, 32)
    archive = tmp_path / "renamed.tar.gz"
    members = {
        f"cifar-100-binary/{name}": b"".join(bytes([3, 97]) + pixels.tobytes() for pixels in x)
        for name in ("train.bin", "test.bin")
    }
    write_tar(archive, members)

    data = read_cifar100(archive)

    assert data.y_train.tolist() == [97, 97]
    np.testing.assert_array_equal(data.x_train, x)


def test_a_damaged_cifar_archive_is_named(tmp_path: Path) -> None:
    archive = tmp_path / "cifar-100-binary.tar.gz"
    with pytest.raises(DataError, match="does not exist"):
        read_cifar100(tmp_path)
    archive.write_bytes(b"no archive")
    with pytest.raises(DataError, match=r"cannot be read as a \.tar\.gz"):
        read_cifar100(tmp_path)
    write_tar(archive, {"cifar-100-python/train": b"pickle"})
    with pytest.raises(DataError, match=r"lacks test\.bin, train\.bin: is it the binary version"):
        read_cifar100(tmp_path)
    write_tar(archive, {"train.bin": bytes(3073), "test.bin": bytes(3074)})
    with pytest.raises(DataError, match=r"train\.bin is cut short: 3073 bytes"):
        read_cifar100(tmp_path)
    archive.write_bytes(archive.read_bytes()[:-20])
    with pytest.raises(DataError):
        read_cifar100(tmp_path)


def test_leaf_users_become_owners(tmp_path: Path) -> None:
    x = images(5, 28, 28)
    for part in ("train", "test"):
        (tmp_path / part).mkdir()
        users = {"f0001_41": (x[:2], [0, 61]), "f0002_07": (x[2:4], [5, 6])}
        (tmp_path / part / "all_data_0.json").write_text(leaf_file(users))
        (tmp_path / part / "all_data_1.json").write_text(leaf_file({"f3": (x[4:], [7])}))

    data = read_femnist(tmp_path)

    np.testing.assert_array_equal(data.x_train[:, 0], x)
    assert data.y_train.tolist() == [0, 61, 5, 6, 7]
    assert data.owners is not None
    assert data.owners.tolist() == ["f0001_41"] * 2 + ["f0002_07"] * 2 + ["f3"]


@pytest.mark.parametrize(
    "content",
    [
        "not json",
        "[]",
        '{"users": ["a"], "num_samples": [1]}',
        '{"users": ["a"], "num_samples": [2], "user_data": {"a": {"x": [[0]], "y": [0]}}}',
        '{"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": [[0]], "y": [0]}}}',
    ],
)
def test_a_file_not_in_leafs_layout_is_named(tmp_path: Path, content: str) -> None:
    with pytest.raises(DataError, match=r"preprocess\.sh"):
        read_femnist(tmp_path)
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "all_data_0.json").write_text(content)
    with pytest.raises(DataError, match=r"all_data_0\.json is not in LEAF's layout"):
        read_femnist(tmp_path)


HEART_ROW = "63,1,1,145,233,1,2,150,0,2.3,3,0,6"


def test_hospitals_become_owners_and_missing_cells_the_training_mean(tmp_path: Path) -> None:
    header = "site,age,sex,cp,trestbps,chol,fbs,restecg,thalach,exang,oldpeak,slope,ca,thal,num"
    rows = [f"{site},{HEART_ROW},{i % 2 * 3}" for site in ("a", "b") for i in range(20)]
    rows += [f"b,,{HEART_ROW.partition(',')[2]},0", f"b,?,{HEART_ROW.partition(',')[2]},0"]
    path = tmp_path / "anything.csv"
    path.write_text("\n".join([header, *rows]))

    data = read_heart_disease(path)

    assert data.owners is not None
    # 10 and 10 of a, 12 and 10 of b: a fifth of each, rounded, is 2 of everything.
    assert np.unique(data.owners, return_counts=True)[1].tolist() == [16, 18]
    assert len(data.x_test) == 8
    assert set(data.y_train) == {0, 1}
    assert (
        np.abs(data.x_train).max() < 1e-6
    )  # all rows are alike once the holes are filled with means


def test_heart_disease_is_read_from_ucis_own_files_too(tmp_path: Path) -> None:
    for site in ("cleveland", "hungarian", "switzerland", "va"):
        (tmp_path / f"processed.{site}.data").write_text(f"{HEART_ROW},0\n{HEART_ROW},2\n" * 3)

    data = read_heart_disease(tmp_path)

    assert data.owners is not None
    assert sorted(set(data.owners)) == ["cleveland", "hungarian", "switzerland", "va"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("a,1,2,3", "13 features and a diagnosis"),
        (f"a,{HEART_ROW},", "13 features and a diagnosis"),
        (f"a,{HEART_ROW},ill", "could not convert"),
    ],
)
def test_a_bad_row_of_heart_disease_is_named(tmp_path: Path, row: str, message: str) -> None:
    path = tmp_path / "heart.csv"
    path.write_text(f"site,...\n{row}\n")

    with pytest.raises(DataError, match=f"heart.csv.*{message}"):
        read_heart_disease(path)
    with pytest.raises(DataError, match="cannot read"):
        read_heart_disease(tmp_path)


def saved(folder: Path, **arrays: Any) -> Path:
    path = folder / "some.npz"
    np.savez(path, **arrays)
    return path


def test_x_and_y_alone_are_split_by_class(tmp_path: Path) -> None:
    y = np.repeat(np.arange(3, dtype=np.uint8), 10)
    data = read_npz(saved(tmp_path, x=images(30, 8, 8), y=y, writer=np.arange(30)))

    assert np.bincount(data.y_test).tolist() == [2, 2, 2]
    assert data.x_train.shape == (24, 1, 8, 8)
    assert data.y_train.dtype == np.int64
    assert data.owners is not None
    assert len(data.owners) == 24
    assert data.num_classes == 3


@pytest.mark.parametrize("owners", ["owners_train", "writer_train", "owner", "user"])
def test_train_and_test_are_taken_as_given(tmp_path: Path, owners: str) -> None:
    x, y = images(6, 32, 32, 3), np.arange(6)
    path = saved(
        tmp_path, x_train=x[:4], y_train=y[:4], x_test=x[4:], y_test=y[4:], **{owners: y[:4] // 2}
    )

    data = read_npz(path)

    np.testing.assert_array_equal(data.x_train, np.moveaxis(x[:4], 3, 1))
    assert data.num_classes == 6
    assert data.owners is not None
    assert data.owners.tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("x", "shape", "dtype"),
    [
        (images(4, 3, 8, 8), (3, 8, 8), np.uint8),
        (images(4, 8, 8, 1), (1, 8, 8), np.uint8),
        (images(4, 9), (9,), np.float32),
        (np.zeros((4, 6, 128)), (6, 128), np.float32),
    ],
)
def test_inputs_end_up_channels_first_or_as_floats(
    tmp_path: Path, x: NDArray[Any], shape: tuple[int, ...], dtype: type
) -> None:
    data = read_npz(saved(tmp_path, x=x, y=np.array([0, 0, 1, 1])))

    assert data.input_shape == shape
    assert data.x_train.dtype == dtype


def test_float_targets_make_a_regression(tmp_path: Path) -> None:
    data = read_npz(saved(tmp_path, x=np.zeros((10, 2)), y=np.linspace(0, 1, 10)[:, None]))

    assert data.num_classes == 0
    assert data.y_train.dtype == np.float32
    assert len(data.y_test) == 2


def test_what_is_written_reads_back_the_same(tmp_path: Path) -> None:
    y = np.array([0, 1, 2])
    written = Dataset("n", images(3, 1, 8, 8), y, images(3, 1, 8, 8), y, 3, np.array(list("abc")))
    write_npz(tmp_path / "deep" / "n.npz", written)

    read = read_npz(tmp_path / "deep" / "n.npz")

    for name in ("x_train", "y_train", "x_test", "y_test", "owners"):
        np.testing.assert_array_equal(getattr(read, name), getattr(written, name))
    assert [file.name for file in (tmp_path / "deep").iterdir()] == ["n.npz"]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": np.zeros(3)}, "lacks x_train, y_train, x_test, y_test .it has a."),
        ({"x": np.zeros((3, 1))}, "lacks y "),
        ({"x": np.array([[{}]]), "y": np.zeros(1)}, "pickled objects"),
        ({"x": np.array([["a"]]), "y": np.zeros(1)}, "x must hold numbers"),
        ({"x": np.zeros(5), "y": np.zeros(5)}, "one row per example"),
        ({"x": np.full((5, 1), np.nan), "y": np.zeros(5)}, "not finite"),
        ({"x": np.zeros((5, 1)), "y": np.full(5, np.inf)}, "not finite"),
        ({"x": np.zeros((5, 1)), "y": np.zeros((5, 2))}, "one number per example"),
        ({"x": np.zeros((5, 1)), "y": np.zeros(4, int)}, "5 inputs in x but 4 targets"),
        ({"x": np.zeros((1, 1)), "y": np.zeros(1, int)}, "no test examples"),
        ({"x": np.zeros((9, 1)), "y": np.full(9, -1)}, "labels span -1..-1"),
        (
            {
                "x_train": np.zeros((2, 1)),
                "y_train": np.zeros(2),
                "x_test": np.zeros((2, 2)),
                "y_test": np.zeros(2),
            },
            "not of the same kind and shape",
        ),
    ],
)
def test_an_npz_that_will_not_do_says_what_would(
    tmp_path: Path, arrays: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=rf"some\.npz.*{message}"):
        read_npz(saved(tmp_path, **arrays))


def test_an_unreadable_npz_is_named(tmp_path: Path) -> None:
    path = saved(tmp_path, x=images(30, 8, 8), y=np.zeros(30, int))
    whole = path.read_bytes()
    with pytest.raises(DataError, match="does not exist"):
        read_npz(tmp_path / "other.npz")
    for content in (b"", b"no zip", whole[: len(whole) // 2], whole.replace(b"descr", b"dscer")):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"some\.npz cannot be read as an \.npz.*expected x_"):
            read_npz(path)
