"""The shape of the code: imports point up only, one place has the clock, nothing grows too big."""

from __future__ import annotations

import ast
import itertools
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "metis"
#: A distribution of its own, which may know all of Metis while Metis knows nothing of it.
PAPERS = ROOT / "papers" / "src" / "metis_papers"
FILES = [*sorted(SOURCE.rglob("*.py")), *sorted(PAPERS.rglob("*.py"))]

#: Which parts of Metis each part may know of when it is imported, itself not named.
MAY_KNOW = {
    "core": set[str](),
    "paper": set[str](),
    "codecs": {"core"},
    "data": {"core"},
    "models": {"core"},
    "storage": {"core"},
    "training": {"core", "data"},
    "config": {
        "core",
        "paper",
        "codecs.settings",
        "data.settings",
        "training.settings",
        "service.settings",
    },
    "certs": {"core", "storage"},
    "journal": {"core", "storage"},
    "federation": {"core", "codecs", "config", "journal", "storage"},
    "simulation": {
        "core",
        "paper",
        "codecs",
        "data",
        "models",
        "storage",
        "training",
        "config",
        "journal",
        "federation",
    },
    "replay": {"core", "codecs", "storage", "config", "journal", "federation", "simulation"},
    "service": {
        "core",
        "paper",
        "codecs",
        "data",
        "storage",
        "training",
        "config",
        "certs",
        "journal",
        "federation",
        "simulation",
    },
    "report": {"core", "journal"},
    "metis_papers": {
        "cli",
        "core",
        "codecs",
        "config",
        "data",
        "federation",
        "journal",
        "training",
        "paper",
        "report",
        "simulation",
        "storage",
        "models",
    },
    "cli": {"core", "config"},
    "__main__": {"cli"},
    "__init__": {"core", "data"},
}

#: Which packages of others each part may import, and in brackets those it may import only inside
#: a function, so that Metis starts without them.
MAY_USE = {
    "core": {"numpy"},
    "paper": set[str](),
    "codecs": {"numpy"},
    "data": {"numpy", "(sklearn)"},
    "models": {"numpy", "torch"},
    "storage": {"numpy", "safetensors"},
    "training": {"numpy", "torch", "safetensors"},
    "config": set[str](),
    "certs": {"cryptography"},
    "journal": {"numpy"},
    "federation": set[str](),
    "simulation": {"numpy", "(torch)"},
    "replay": set[str](),
    "service": {
        "numpy",
        "grpc",
        "google",
        "prometheus_client",
        "(grpc_health)",
        "(grpc_reflection)",
    },
    "report": {"numpy", "rich", "(matplotlib)"},
    "metis_papers": {"numpy", "rich", "typer", "(matplotlib)", "(torch)"},
    "cli": {"rich", "typer"},
    "__main__": set[str](),
    "__init__": set[str](),
}

#: Single files that may do what their part may not.
EXCEPTIONS = {
    ("core/kernels.py", "numba"),  # optional: the fused loop
    ("codecs/packet.py", "isal"),  # optional: a faster checksum
    ("models/ops/batch_norm_relu_cuda.py", "triton"),
    ("models/ops/conv3x3_cuda.py", "triton"),
    ("models/ops/bias_relu_lrn_cuda.py", "triton"),  # read only where there is a GPU
    ("models/ops/conv5x5_cuda.py", "triton"),
    ("models/ops/max_pool_cuda.py", "triton"),
    ("data/picture.py", "rich"),
    ("data/picture.py", "matplotlib"),
    ("service/site_setup.py", "torch"),  # a site's own model is a module
    ("service/initial_model.py", "torch"),
}

#: Parts of the service that a federation without a network, and one without torch, never import.
GRPC = ("service/grpc/", "service/controller_process.py", "service/learner_process.py")

CLOCKS = {"time", "datetime", "sched", "timeit"}
READINGS = {"now", "utcnow", "today", "time", "monotonic"}
UNSAFE = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
BAD_NAMES = re.compile("manager|handler|helper|util|factory|wrapper|client", re.IGNORECASE)
MAX_CLASS_LINES = 350
MAX_FILE_LINES = 500


@dataclass(frozen=True, slots=True)
class Import:
    """One imported module, and whether that happens when the file itself is imported."""

    file: Path
    line: int
    module: str
    inside_function: bool

    @property
    def where(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line}"

    @property
    def name_in_metis(self) -> str:
        return name_of(self.file)


def name_of(file: Path) -> str:
    """Return a file's path below metis; the papers' package is named with it."""
    return str(file.relative_to(PAPERS.parent if file.is_relative_to(PAPERS) else SOURCE))


def part_of(file: Path) -> str:
    """Return the folder below metis, or the name of a file that lies in metis itself."""
    return Path(name_of(file)).with_suffix("").parts[0]


def imports_of(file: Path) -> list[Import]:
    """Return what a file imports; what only a type checker sees is left out."""
    return list(_imports(file, ast.parse(file.read_text()), inside_function=False))


def _imports(file: Path, node: ast.AST, inside_function: bool) -> Iterator[Import]:
    match node:
        case ast.Import(names=names):
            for name in names:
                yield Import(file, node.lineno, name.name, inside_function)
        case ast.ImportFrom(module=module, names=names, level=level):
            assert level == 0, f"{file}:{node.lineno}: imports are absolute here"
            # `from metis import paper` imports metis.paper, not (only) metis.
            for name in names if module == "metis" else ():
                yield Import(file, node.lineno, f"metis.{name.name}", inside_function)
            if module != "metis":
                yield Import(file, node.lineno, str(module), inside_function)
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return
    inside_function |= isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    for child in ast.iter_child_nodes(node):
        yield from _imports(file, child, inside_function)


IMPORTS = [found for file in FILES for found in imports_of(file)]


def breaches_of_others(found: Import) -> bool:
    """Whether an import of somebody else's package is one too many."""
    package = found.module.partition(".")[0]
    if package in sys.stdlib_module_names or package in ("metis", part_of(found.file)):
        return False
    allowed = MAY_USE[part_of(found.file)]
    if package in allowed or (found.inside_function and f"({package})" in allowed):
        return False
    return (found.name_in_metis, package) not in EXCEPTIONS


def breaches_of_ours(found: Import) -> bool:
    """Whether an import inside Metis points the wrong way."""
    package, _, inner = found.module.partition(".")
    if package != "metis":
        return False
    own = part_of(found.file)
    if inner.partition(".")[0] == own or (found.name_in_metis, found.module) in EXCEPTIONS:
        return False
    if found.inside_function and own in ("simulation", "service", "cli", "__init__"):
        return False  # shells and verbs fetch what they start when they start it
    return not any(inner == known or inner.startswith(f"{known}.") for known in MAY_KNOW[own])


def test_every_part_is_known_to_this_test() -> None:
    assert {part_of(file) for file in FILES} <= set(MAY_KNOW) == set(MAY_USE)
    assert len(IMPORTS) > 200


def test_imports_inside_metis_point_up_only() -> None:
    assert [f"{i.where}: {i.module}" for i in IMPORTS if breaches_of_ours(i)] == []


def test_each_part_uses_only_the_packages_it_may() -> None:
    assert [f"{i.where}: {i.module}" for i in IMPORTS if breaches_of_others(i)] == []


def test_torch_is_imported_by_training_and_models_alone() -> None:
    users = [i for i in IMPORTS if i.module.partition(".")[0] == "torch"]
    files = {i.name_in_metis for i in users if not i.inside_function}
    elsewhere = {file for file in files if not file.startswith(("training/", "models/"))}
    assert elsewhere == {"service/site_setup.py", "service/initial_model.py"}


def test_no_package_needs_one_that_needs_it() -> None:
    """A room's `settings`, which config nests, count apart. Imports inside functions count too."""
    needs: dict[str, set[str]] = {}
    for found in IMPORTS:
        own, inner = part_of(found.file), found.module.partition("metis.")[2].split(".")
        other = inner[0]
        if found.file.stem == "settings":
            own = f"{own}.settings"
        if inner[1:] == ["settings"]:
            other = f"{other}.settings"
        excepted = (found.name_in_metis, ".".join(found.module.split(".")[:2])) in EXCEPTIONS
        is_inside = other.partition(".")[0] == own.partition(".")[0]
        if other.partition(".")[0] in MAY_KNOW and not is_inside and not excepted:
            needs.setdefault(own, set()).add(other)
    names = sorted(needs)
    for _ in names:  # until nothing is added: who needs whom, however many rooms lie between
        for name in names:
            needs[name] |= set().union(*(needs.get(other, set()) for other in needs[name]))
    assert [name for name in names if name in needs[name]] == []


def test_exceptions_are_all_still_needed() -> None:
    used = {(i.name_in_metis, i.module) for i in IMPORTS}
    used |= {(file, module.partition(".")[0]) for file, module in used}
    assert used >= EXCEPTIONS


def test_a_clock_is_read_in_the_shells_and_the_live_view_alone() -> None:
    readers = {i.name_in_metis for i in IMPORTS if i.module.partition(".")[0] in CLOCKS}
    strangers = {
        name
        for name in readers
        if not name.startswith(("simulation/", "service/", "journal/", "certs/", "metis_papers/"))
    }
    assert strangers <= {"report/live.py", "cli/certs.py"}


def test_grpc_is_imported_by_the_network_side_of_the_service_alone() -> None:
    users = {i.name_in_metis for i in IMPORTS if i.module.partition(".")[0] == "grpc"}
    assert {file for file in users if not file.startswith(GRPC)} == set()


def test_certs_know_dates_but_are_given_the_day() -> None:
    modules = {i.module for i in IMPORTS if part_of(i.file) == "certs"}
    assert modules & CLOCKS == {"datetime"}
    for file in (SOURCE / "certs").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                assert node.func.attr not in READINGS, f"{file.name}:{node.lineno}"


def test_nothing_that_is_read_can_run_code() -> None:
    unsafe = [i.where for i in IMPORTS if i.module.partition(".")[0] in UNSAFE]
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.Call(func=ast.Name(id="eval" | "exec" | "compile" | "__import__")):
                    unsafe.append(f"{file}:{node.lineno}")
                case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr="load")):
                    unsafe.append(f"{file}:{node.lineno}")
                case ast.keyword(arg="allow_pickle", value=ast.Constant(value=True)):
                    unsafe.append(f"{file}:{node.lineno}")
    assert unsafe == []


def test_names_say_what_a_thing_is() -> None:
    found = [str(file.relative_to(ROOT)) for file in FILES if BAD_NAMES.search(file.stem)]
    found.remove("src/metis/service/grpc/client.py")  # which is what gRPC calls it
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and BAD_NAMES.search(node.name):
                found.append(f"{file.relative_to(ROOT)}:{node.lineno}: {node.name}")
    assert found == []


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_no_file_and_no_class_grows_too_big(file: Path) -> None:
    text = file.read_text()
    assert len(text.splitlines()) <= MAX_FILE_LINES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef):
            num_lines = (node.end_lineno or node.lineno) - node.lineno + 1
            assert num_lines <= MAX_CLASS_LINES, f"{node.name} has {num_lines} lines"


def declared_fields(file: Path) -> Iterator[tuple[str, str, str]]:
    """Yield the class, the name and the default of each field of a file's dataclasses."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ClassDef) and "dataclass" in map(_name_of, node.decorator_list):
            for one in node.body:
                if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
                    default = "" if one.value is None else ast.unparse(one.value)
                    yield node.name, one.target.id, default


def _name_of(decorator: ast.expr) -> str:
    return ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator)


TRIVIAL = {"None", "0", "0.0", "1", "1.0", "False", "True", "''", "()"}


def test_no_config_key_is_declared_twice() -> None:
    """A key's default is written once: not again in another table, nor in the class it configures.

    The names of parts of a table may be declared again, as facts of a run that follow from it.
    """
    defaults: dict[str, set[str]] = {}
    tables: list[set[str]] = []
    for file in FILES:
        found: dict[str, set[str]] = {}
        for of, name, default in declared_fields(file):
            if default.startswith("key("):
                (call,) = ast.parse(default).body
                assert isinstance(call, ast.Expr)
                assert isinstance(call.value, ast.Call)
                defaults.setdefault(name, set()).add(ast.unparse(call.value.args[0]))
                found.setdefault(of, set()).add(name)
        tables += found.values()
    again = [
        f"{file.relative_to(SOURCE)}: {of}.{name} = {default}"
        for file in sorted(SOURCE.rglob("*.py"))  # a paper's cell says what was run
        for of, name, default in declared_fields(file)
        if default in defaults.get(name, set()) - TRIVIAL and not default[0].isupper()
    ]

    assert len(tables) == 14
    assert again == []
    assert not any(len(one & other) > 1 for one, other in itertools.combinations(tables, 2))


def test_inheritance_is_for_exceptions_modules_and_protocols_alone() -> None:
    found = []
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef):
                bases = {ast.unparse(base) for base in node.bases}
                found += [
                    f"{file.relative_to(ROOT)}:{node.lineno}: {node.name}({base})"
                    for base in bases
                    - {"Protocol", "TypedDict", "nn.Module", "torch.autograd.Function"}
                    if not base.endswith(("Error", "Exception"))
                ]
    assert found == []


@pytest.mark.parametrize(
    "missing", ["torch", "sklearn", "matplotlib", "numba", "cryptography"], ids="without {}".format
)
def test_a_controller_starts_without_what_only_learners_need(missing: str) -> None:
    script = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        "import metis.core.controller, metis.core.policies, metis.federation.build\n"
        "import metis.replay.verify, metis.simulation.simulator, metis.journal.file\n"
        "import metis.storage.pack, metis.storage.weights, metis.codecs.dense, metis.data.sources\n"
        "import metis.report.page, metis.config, metis.cli, metis\n"
    )

    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False
    )

    assert done.stderr == ""
    assert done.returncode == 0


def test_a_breach_would_be_found() -> None:
    def breaches(file: str, text: str) -> list[str]:
        found = list(_imports(SOURCE / file, ast.parse(text), inside_function=False))
        return [i.module for i in found if breaches_of_ours(i) or breaches_of_others(i)]

    assert breaches("core/types.py", "import torch") == ["torch"]
    assert breaches("core/types.py", "from metis.simulation import run") == ["metis.simulation"]
    assert breaches("core/types.py", "def f():\n    import rich.table") == ["rich.table"]
    assert breaches("storage/pack.py", "from metis.data.dataset import Dataset") == [
        "metis.data.dataset"
    ]
    assert breaches("simulation/run.py", "from torch import nn") == ["torch"]
    assert breaches("simulation/run.py", "def f():\n    from torch import nn") == []
    assert breaches("simulation/run.py", "if TYPE_CHECKING:\n    from torch import nn") == []
    assert breaches("report/page.py", "from metis.journalist.file import x") == [
        "metis.journalist.file"
    ]
    assert breaches("data/npz.py", "from metis import cli") == ["metis.cli"]
    assert breaches("cli/runs.py", "def f():\n    import metis_papers") == ["metis_papers"]
    assert breaches("simulation/run.py", "from metis_papers.cells import Cell") == [
        "metis_papers.cells"
    ]
