"""A module on the training's device: its weights in one vector, its arithmetic, its chance."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from metis.core.errors import ConfigError
from metis.core.types import Layout, Vector
from metis.training.evaluator import (
    Examples,
    check_outputs,
    each_cross_entropy,
    each_squared_error,
    squared_error,
)
from metis.training.flat import flatten
from metis.training.recent import RecentTensors
from metis.training.settings import TrainSettings
from metis.training.step import Loss, device_named, new_optimizer, trained_parameters

#: Trained models that stay on a GPU, since they will be scored soon.
RECENT_MODELS = 32


class ModuleOnDevice:
    """Takes a module over: its parameters become views of one vector on the training's device.

    The network holds the weights that were computed or loaded last. Filters are kept with their
    channels last if the network takes such inputs, which is tried out here; that is faster on CPUs
    and GPUs alike.
    """

    def __init__(
        self,
        network: nn.Module,
        training: TrainSettings,
        device: str,
        precision: str,
        examples: Examples,
        prepare: Callable[[Tensor], Tensor],
        num_classes: int,
    ) -> None:
        """`examples` are for trial runs; `prepare` makes them inputs for evaluation."""
        self.device = device_named(device)
        self.precision = precision
        self.training = training
        self.loss: Loss = F.cross_entropy if num_classes else squared_error
        self.losses: Loss = each_cross_entropy if num_classes else each_squared_error
        self.has_batch_norm = has_batch_norm(network)
        self._examples = examples
        self._prepare = prepare

        self.network = network.to(self.device)
        self.counters = [b for b in network.buffers() if not b.is_floating_point()]
        self.initial_counters = [counter.clone() for counter in self.counters]
        self.trained = trained_parameters(network)
        new_optimizer(training, network)  # raises now for wrong settings, not in a task
        self.flat = flatten(network)
        check_outputs(network, self._inputs(2), num_classes)
        if self._takes_channels_last():
            self.flat = flatten(network, channels_last=True)
        self._own_values = self.flat.values  # not those of a learner
        self._statistics = torch.from_numpy(self.layout.running_statistics()).to(self.device)
        self._recent = RecentTensors(RECENT_MODELS)
        self.draws_chance = self._draws_chance()

    @property
    def layout(self) -> Layout:
        """The place of each tensor in a vector."""
        return self.flat.layout

    # ---- models -------------------------------------------------------------------------------

    def load(self, weights: Vector) -> None:
        """Have the network hold a model for evaluation, not for training."""
        values = self._recent.get(weights)
        if values is not None:
            self.flat.point_to(values)
            return
        self.flat.point_to(self._own_values)
        self.flat.load_vector(weights)

    def load_with(self, weights: Vector, statistics: Vector | None) -> None:
        """Load a model, with other running statistics than its own if some are given."""
        self.flat.point_to(self._own_values)  # not where a learner's model may be
        self.flat.load_vector(weights)
        if statistics is not None:
            self.put_statistics(self._own_values, statistics)

    def put_statistics(self, values: Tensor, statistics: Vector) -> None:
        """Write running statistics to their places in a model."""
        values[self._statistics] = torch.from_numpy(statistics.copy()).to(values.device)

    def trained_vector(self, values: Tensor) -> Vector:
        """Return a trained model as a vector. `load` finds the last few still on the GPU."""
        vector = self.flat.as_vector(values)
        if self.device.type == "cuda":
            self._recent.put(vector, values)
        return vector

    def anchors(
        self, start: Tensor | None, network: nn.Module | None = None
    ) -> list[tuple[nn.Parameter, Tensor]]:
        """Return each trained parameter with its value at the start, if the loss asks for it."""
        if start is None:
            return []
        parts = self.flat.parts(start)
        named = self.trained if network is None else trained_parameters(network)
        return [(parameter, parts[name]) for name, parameter in named]

    def new_velocity(self, kept: object | None) -> dict[str, Tensor]:
        """Return SGD's state at the start of a task: zero, or a copy of the kept one."""
        if kept is not None:
            assert isinstance(kept, dict)
            return {name: value.clone() for name, value in kept.items()}
        if not self.training.momentum:
            return {}
        return {"momentum": torch.zeros_like(self.flat.values)}

    def arranged(self, x: Tensor) -> Tensor:
        """Return inputs in the memory order of the network's filters."""
        if self.flat.channels_last and x.ndim == 4:
            return x.contiguous(memory_format=torch.channels_last)
        return x

    # ---- arithmetic and chance ----------------------------------------------------------------

    @contextmanager
    def arithmetic(self) -> Iterator[None]:
        """Compute with the config's precision and, on a GPU, with repeatable algorithms."""
        precision = self.precision
        cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
        before = cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32, matmul.allow_tf32
        with ExitStack() as stack:
            if precision == "bf16":
                # No cache of converted weights: a captured graph would go on reading an old one.
                stack.enter_context(
                    torch.autocast(self.device.type, dtype=torch.bfloat16, cache_enabled=False)
                )
            if self.device.type == "cuda":
                stack.callback(_set_flags, *before)
                _set_flags(False, True, precision != "float32", precision != "float32")
            yield

    @contextmanager
    def chance(self) -> Iterator[Callable[[int], object]]:
        """Give a way to seed torch; afterwards its generators are as they were before."""
        if self.device.type != "cuda":
            with torch.random.fork_rng(devices=[]):
                yield torch.default_generator.manual_seed
            return
        index = torch.cuda.current_device() if self.device.index is None else self.device.index
        generator = torch.cuda.default_generators[index]

        def seed_both(seed: int) -> None:
            torch.default_generator.manual_seed(seed)
            generator.manual_seed(seed)

        with torch.random.fork_rng(devices=[index]):
            yield seed_both

    # ---- trial runs ---------------------------------------------------------------------------

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Let a trial run train the network; afterwards it has its old weights and counters."""
        own, held = self.flat.values, self.flat.values.clone()
        counted = [counter.clone() for counter in self.counters]
        with self.chance():
            try:
                yield
            finally:
                self.flat.point_to(own)
                own.copy_(held)
                for counter, value in zip(self.counters, counted, strict=True):
                    counter.copy_(value)

    def step_bytes(self) -> int:
        """Return the memory that a mini-batch keeps between its forward and its backward pass."""
        own = self.flat.values.untyped_storage().data_ptr()
        saved: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() != own:
                saved[storage.data_ptr()] = storage.nbytes()
            return tensor

        few = torch.arange(min(self.training.batch_size, len(self._examples.y)), device=self.device)
        with self.unchanged(), torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            x = self.arranged(self._prepare(self._examples.x[few]))
            held = self.loss(self.network.train()(x), self._examples.y[few])
            del held
        return sum(saved.values()) + x.nbytes

    def _inputs(self, count: int) -> Tensor:
        return self.arranged(self._prepare(self._examples.x[:count]))

    def _takes_channels_last(self) -> bool:
        """Try the network on two examples; `view` in its forward, say, cannot take such inputs."""
        if self._inputs(2).ndim != 4:
            return False
        self.network.eval()
        with torch.no_grad():
            plain = self.network(self._inputs(2))
            self.flat = flatten(self.network, channels_last=True)
            try:
                moved = self.network(self._inputs(2))
                with self.unchanged():
                    self.network.train()(self._inputs(2))
            except Exception:  # whatever the user's own module raises
                moved = None
            self.flat = flatten(self.network)
        return moved is not None and torch.allclose(plain, moved, rtol=1e-3, atol=1e-4)

    def _draws_chance(self) -> bool:
        """Try whether the network draws random numbers from torch in training, as dropout does."""
        with self.unchanged(), torch.no_grad():
            before = _generators(self.device)
            try:
                self.network.train()(self._inputs(2))
            except Exception:  # it fails in training only, where the error is reported
                return True
            after = _generators(self.device)
        return any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))


def has_batch_norm(network: nn.Module) -> bool:
    return any(isinstance(part, _BatchNorm) for part in network.modules())


def check_batch_size(network: nn.Module, training: TrainSettings) -> None:
    """Raise ConfigError for batches that batch-norm cannot take."""
    if training.batch_size == 1 and has_batch_norm(network):
        raise ConfigError("batch_size = 1: batch-norm needs at least 2 examples in a batch")


def _generators(device: torch.device) -> list[Tensor]:
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return states


def _set_flags(benchmark: bool, deterministic: bool, cudnn_tf32: bool, matmul_tf32: bool) -> None:
    torch.backends.cudnn.benchmark = benchmark
    torch.backends.cudnn.deterministic = deterministic
    torch.backends.cudnn.allow_tf32 = cudnn_tf32
    torch.backends.cuda.matmul.allow_tf32 = matmul_tf32
