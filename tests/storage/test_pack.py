"""Checkpoints: what is written is what is read, shared where it was shared, whole or not at all."""

from __future__ import annotations

import contextlib
import math
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metis.codecs.packet import as_bytes
from metis.core.errors import JournalError, RunError
from metis.core.types import read_only
from metis.storage.pack import read_packed, write_packed


@dataclass(frozen=True, slots=True)
class Leaf:
    """A frozen value, made without its constructor."""

    name: str
    number: float = 0.0

    def __post_init__(self) -> None:
        assert self.name != "never checked again"


@dataclass(slots=True)
class Branch:
    leaves: list[Leaf] = field(default_factory=list)
    first: Leaf | None = None


def round_trip(path: Path, value: object) -> Any:
    write_packed(path, value)
    return read_packed(path, [Leaf, Branch])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.safetensors"


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        -(2**80),
        1.5,
        5e-324,
        "plain, ünïcode \u2028 and \x00",
        [],
        {},
        [1, [2, [3]], None],
        (1, (2,), "three"),
        {"a": 1, 2: "b", None: 3, (1, "x"): [4], 1.5: 5},
        {1, 5, 3},
        frozenset({"a"}),
        {frozenset({1}): {(): ()}},
        Leaf("a", math.pi),
        Branch([Leaf("a"), Leaf("b")]),
    ],
    ids=repr,
)
def test_values_come_back_equal_and_of_the_same_type(path: Path, value: object) -> None:
    found = round_trip(path, value)

    assert found == value
    assert type(found) is type(value)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text() | st.integers(), inner, max_size=4)
        | st.builds(Leaf, st.text(), st.floats(allow_nan=False))
    ),
    max_leaves=25,
)


@settings(max_examples=50)
@given(values)
def test_any_tree_of_plain_values_comes_back_equal(
    tmp_path_factory: pytest.TempPathFactory, value: object
) -> None:
    found = round_trip(tmp_path_factory.getbasetemp() / "tree.safetensors", value)

    assert found == value
    assert repr(found) == repr(value)  # tells 1 from True, -0.0 from 0.0 and tuples from lists


def test_numbers_that_are_not_finite_come_back(path: Path) -> None:
    found = round_trip(path, [math.nan, math.inf, -math.inf])

    assert math.isnan(found[0])
    assert found[1:] == [math.inf, -math.inf]


def test_numpy_scalars_come_back_as_python_numbers(path: Path) -> None:
    found = round_trip(path, [np.float32(0.5), np.int64(3), np.bool_(True)])

    assert found == [0.5, 3, True]
    assert [type(value) for value in found] == [float, int, bool]


def test_a_deque_keeps_its_order_and_stays_a_deque(path: Path) -> None:
    found = round_trip(path, deque([3, 1, 2]))

    assert found == deque([3, 1, 2])
    found.appendleft(0)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.array([math.nan, math.inf, -0.0]),
        np.arange(10)[::3],
        np.arange(6.0).reshape(2, 3).T,
        np.array(7.0),
        np.zeros((0, 3), dtype=np.uint8),
        np.array([[True], [False]]),
    ],
    ids=lambda a: f"{a.dtype}{list(a.shape)}",
)
def test_arrays_come_back_with_their_bytes_shape_and_type(path: Path, array: Any) -> None:
    found = round_trip(path, {"array": array})["array"]

    assert found.tobytes() == array.tobytes()
    assert (found.shape, found.dtype) == (array.shape, array.dtype)


@pytest.mark.parametrize("model", [np.arange(5, dtype=np.float32), np.zeros(0, np.float32)])
def test_views_of_a_packet_come_back_as_bytes(path: Path, model: Any) -> None:
    found = round_trip(path, ("packet", b"header", b"", as_bytes(model, "<f4")))

    assert found == ("packet", b"header", b"", model.tobytes())


def test_an_array_that_may_not_be_written_to_stays_so(path: Path) -> None:
    found = round_trip(path, {"model": read_only(np.ones(2)), "sum": np.ones(2)})

    assert not found["model"].flags.writeable
    found["sum"] += 1.0


def test_a_shared_array_is_stored_once_and_shared_again(path: Path) -> None:
    model = np.ones(10_000, dtype=np.float32)

    found = round_trip(path, {"tasks": [model] * 20, "current": model})

    assert all(task is found["current"] for task in found["tasks"])
    assert path.stat().st_size < 2 * model.nbytes


def test_a_shared_object_is_one_object_again(path: Path) -> None:
    leaf = Leaf("shared")
    branch = Branch([leaf, Leaf("shared")], leaf)

    found = round_trip(path, {"branch": branch, "queue": deque([branch])})

    assert found["queue"][0] is found["branch"]
    assert found["branch"].first is found["branch"].leaves[0]
    assert found["branch"].leaves[1] is not found["branch"].leaves[0]
    assert found["branch"].leaves[1] == found["branch"].leaves[0]


def test_a_class_that_was_not_named_is_refused(path: Path) -> None:
    write_packed(path, Leaf("a"))

    with pytest.raises(JournalError, match=r"state\.safetensors.*Leaf"):
        read_packed(path, [Branch])


def test_what_has_no_place_in_a_checkpoint_is_refused_and_nothing_is_written(path: Path) -> None:
    for value in (object(), len, bytearray(b"bytes"), 1j):
        with pytest.raises(TypeError, match="cannot checkpoint"):
            write_packed(path, {"inside": [value]})

    assert not path.exists()


def test_a_file_cut_short_anywhere_is_refused(path: Path) -> None:
    write_packed(path, {"a": np.arange(3), "b": [Leaf("x")]})
    whole = path.read_bytes()

    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(JournalError, match=r"state\.safetensors: not a readable checkpoint"):
            read_packed(path, [Leaf])


def test_a_flipped_bit_is_refused_or_read_but_never_an_accident(path: Path) -> None:
    write_packed(path, {"a": np.arange(3), "b": [Leaf("x"), 1.5]})
    whole = path.read_bytes()

    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << position % 8
        path.write_bytes(damaged)
        with contextlib.suppress(JournalError):
            read_packed(path, [Leaf])


def test_files_that_are_no_checkpoint_are_refused(path: Path) -> None:
    from safetensors.numpy import save_file

    with pytest.raises(JournalError, match="not a readable checkpoint"):
        read_packed(path, [])
    path.write_bytes(b"\xff" * 100)
    with pytest.raises(JournalError, match="not a readable checkpoint"):
        read_packed(path, [])
    save_file({"model": np.ones(3)}, path)
    with pytest.raises(JournalError, match="not a readable checkpoint"):
        read_packed(path, [])


def test_a_value_that_would_hold_itself_is_refused(path: Path) -> None:
    from safetensors.numpy import save_file

    nodes = '[["list",[0]]]'
    save_file({"root": np.zeros(1)}, path, metadata={"nodes": nodes, "root": "[0]"})

    with pytest.raises(JournalError, match="not a checkpoint"):
        read_packed(path, [])


def test_a_write_that_fails_leaves_the_old_file(path: Path) -> None:
    write_packed(path, "old")

    with pytest.raises(TypeError):
        write_packed(path, [np.ones(3), object()])
    path.with_name(path.name + ".tmp").mkdir()  # where the new file would be written
    with pytest.raises(RunError, match=r"cannot write checkpoint .*state\.safetensors"):
        write_packed(path, "new")

    assert read_packed(path, []) == "old"


def test_a_write_leaves_no_other_file_behind(path: Path) -> None:
    write_packed(path, [1])
    write_packed(path, [2])

    assert [file.name for file in path.parent.iterdir()] == [path.name]
