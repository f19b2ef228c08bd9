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
from metis.core.types import frozen
from metis.store.pack import Names, read_packed, write_packed


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


BOTH = Names({"leaf": Leaf, "branch": Branch})
NONE = Names({})


def round_trip(path: Path, value: object) -> Any:
    write_packed(path, value, BOTH)
    return read_packed(path, BOTH)


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
    found = round_trip(path, {"model": frozen(np.ones(2)), "sum": np.ones(2)})

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
    write_packed(path, Leaf("a"), BOTH)

    with pytest.raises(
        JournalError,
        match=r"state\.safetensors: holds a 'leaf', which this version does not know; finish the",
    ):
        read_packed(path, Names({"branch": Branch}))


def test_what_has_no_place_in_a_checkpoint_is_refused_and_nothing_is_written(path: Path) -> None:
    for value in (object(), len, bytearray(b"bytes"), 1j):
        with pytest.raises(TypeError, match="cannot checkpoint"):
            write_packed(path, {"inside": [value]}, BOTH)

    assert not path.exists()


def test_a_file_cut_short_anywhere_is_refused(path: Path) -> None:
    write_packed(path, {"a": np.arange(3), "b": [Leaf("x")]}, BOTH)
    whole = path.read_bytes()

    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(JournalError, match=r"state\.safetensors: not a readable checkpoint"):
            read_packed(path, BOTH)


def test_a_flipped_bit_is_refused_or_read_but_never_an_accident(path: Path) -> None:
    write_packed(path, {"a": np.arange(3), "b": [Leaf("x"), 1.5]}, BOTH)
    whole = path.read_bytes()

    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << position % 8
        path.write_bytes(damaged)
        with contextlib.suppress(JournalError):
            read_packed(path, BOTH)


def test_files_that_are_no_checkpoint_are_refused(path: Path) -> None:
    from safetensors.numpy import save_file

    with pytest.raises(JournalError, match="not a readable checkpoint"):
        read_packed(path, NONE)
    path.write_bytes(b"\xff" * 100)
    with pytest.raises(JournalError, match="not a readable checkpoint"):
        read_packed(path, NONE)
    save_file({"model": np.ones(3)}, path)
    with pytest.raises(JournalError, match="not a readable checkpoint"):
        read_packed(path, NONE)


def test_a_value_that_would_hold_itself_is_refused(path: Path) -> None:
    from safetensors.numpy import save_file

    document = '{"format": 1, "nodes": [["list",[0]]], "root": [0]}'
    save_file({"root": np.zeros(1)}, path, metadata={"checkpoint": document})

    with pytest.raises(JournalError, match="damaged checkpoint"):
        read_packed(path, NONE)


def test_a_write_that_fails_leaves_the_old_file(path: Path) -> None:
    write_packed(path, "old", BOTH)

    with pytest.raises(TypeError):
        write_packed(path, [np.ones(3), object()], BOTH)
    path.with_name(path.name + ".tmp").mkdir()  # where the new file would be written
    with pytest.raises(RunError, match=r"cannot write .*state\.safetensors"):
        write_packed(path, "new", BOTH)

    assert read_packed(path, NONE) == "old"


def test_a_write_leaves_no_other_file_behind(path: Path) -> None:
    write_packed(path, [1], BOTH)
    write_packed(path, [2], BOTH)

    assert [file.name for file in path.parent.iterdir()] == [path.name]


# ---- a file of another version ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Foliage:
    """What `Leaf` is called, and has, in a later version."""

    name: str
    number: float = 0.0
    colours: list[str] = field(default_factory=lambda: ["green"])
    season: str = "summer"


@dataclass(frozen=True, slots=True)
class Nameless:
    """Lacks a field that is in the file."""

    number: float = 0.0


@dataclass(frozen=True, slots=True)
class Rooted:
    """Has a field that is not in the file, and no default for it."""

    name: str
    root: str
    number: float = 0.0


class Counter:
    """No dataclass: it says itself what of it is stored."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.counts = [0]

    def state(self) -> object:
        return {"counts": list(self.counts)}

    def restore(self, state: Any) -> None:
        self.counts = state["counts"]


def test_a_class_that_was_renamed_still_loads_and_added_fields_get_their_defaults(
    path: Path,
) -> None:
    write_packed(path, [Leaf("a", 0.5), Leaf("b")], BOTH)

    first, second = read_packed(path, Names({"leaf": Foliage}))

    assert first == Foliage("a", 0.5, ["green"], "summer")
    assert first.colours is not second.colours


@pytest.mark.parametrize(
    ("known", "message"),
    [
        ({"leaf": Nameless}, "its 'leaf' has the unknown field 'name'"),
        ({"leaf": Rooted}, "its 'leaf' lacks the field 'root'"),
        ({"branch": Branch}, "holds a 'leaf', which this version does not know"),
    ],
)
def test_what_this_version_does_not_know_is_refused_with_the_file_the_name_and_what_would_help(
    path: Path, known: dict[str, type], message: str
) -> None:
    write_packed(path, [Leaf("a")], BOTH)

    with pytest.raises(JournalError) as error:
        read_packed(path, Names(known))

    assert str(error.value).startswith(f"{path}: {message}")
    assert "finish the run with the version of Metis that wrote it" in str(error.value)


def test_another_format_is_refused(path: Path) -> None:
    from safetensors.numpy import save_file

    note = '{"format": 2, "nodes": [], "root": 1}'
    save_file({"root": np.zeros(1)}, path, metadata={"checkpoint": note})
    with pytest.raises(JournalError, match=r"state\.safetensors: .*of format 2, not 1; finish the"):
        read_packed(path, NONE)
    save_file({"root": np.zeros(1)}, path, metadata={"nodes": "[]", "root": "1"})
    with pytest.raises(JournalError, match="without a format number; finish the run"):
        read_packed(path, NONE)


def test_an_object_that_is_no_dataclass_is_given_its_own_state_back(path: Path) -> None:
    counter = Counter(3)
    counter.counts += [4, 5]
    write_packed(path, {"one": counter, "same": [counter]}, Names({}, {"the counter": counter}))

    fresh = Counter(7)
    found = read_packed(path, Names({}, {"the counter": fresh}))

    assert found["one"] is found["same"][0] is fresh
    assert (fresh.counts, fresh.step) == ([0, 4, 5], 7)
    with pytest.raises(JournalError, match="holds the state of 'the counter', which is not there"):
        read_packed(path, NONE)


def test_a_dataclass_that_is_not_declared_is_refused_before_anything_is_written(
    path: Path,
) -> None:
    with pytest.raises(TypeError, match="cannot checkpoint a Foliage: it has no name"):
        write_packed(path, [Foliage("a")], BOTH)

    assert not path.exists()


def test_two_rooms_cannot_declare_one_name() -> None:
    with pytest.raises(AssertionError, match="leaf"):
        Names({"leaf": Leaf}) | Names({"leaf": Foliage})
