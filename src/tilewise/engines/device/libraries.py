"""Array libraries that a device is driven by, through the array API standard.

NumPy and array-api-strict stand in for a device: their "device memory" is memory of this computer, filled by real
copies.  torch drives a CUDA device where there is one and stands in like NumPy where there is none.  CuPy drives CUDA
devices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tilewise.errors import InputError

Array = npt.NDArray[Any]

LIBRARIES = ("numpy", "array_api_strict", "torch", "cupy")
"""Names that ``library=`` takes."""


class Library(Protocol):
    """What the engine asks of an array library; `number` is that of the device."""

    name: str
    """What ``library=`` calls it."""

    def upload(self, host: Array, number: int) -> Any:
        """A copy of a host array in the memory of a device."""

    def download(self, array: Any) -> Array:
        """A copy of a device array in memory of this computer."""

    def copy(self, array: Any, number: int) -> Any:
        """A copy of an array of another device."""

    def zeros(self, shape: tuple[int, ...], dtype: np.dtype[Any], number: int) -> Any:
        """Zeros in the memory of a device."""

    def add_product(self, target: Any, left: Any, right: Any) -> None:
        """Add a product of (stacks of) matrices to an array of the same device."""

    def queue(self, number: int) -> Callable[[], Any]:
        """For one queue of a device: makes a context in which its operations run, and after which they are done."""


class StandIn:
    """A namespace of the array API whose arrays lie in memory of this computer."""

    def __init__(self, name: str, namespace: Any) -> None:
        self.name = name
        self.xp = namespace

    def upload(self, host: Array, number: int) -> Any:
        """A copy of a host array."""
        return self.xp.asarray(np.ascontiguousarray(host), copy=True)

    def download(self, array: Any) -> Array:
        """A copy as a NumPy array."""
        return np.array(np.from_dlpack(array), copy=True)

    def copy(self, array: Any, number: int) -> Any:
        """A copy."""
        return self.xp.asarray(array, copy=True)

    def zeros(self, shape: tuple[int, ...], dtype: np.dtype[Any], number: int) -> Any:
        """Zeros."""
        return self.xp.zeros(shape, dtype=getattr(self.xp, dtype.name))

    def add_product(self, target: Any, left: Any, right: Any) -> None:
        """Add a product in place."""
        target += self.xp.matmul(left, right)

    def queue(self, number: int) -> Callable[[], Any]:
        """Operations are done when the call returns."""
        return _at_once


@contextmanager
def _at_once() -> Iterator[None]:
    yield


class Torch(StandIn):
    """torch: on CUDA devices where there are some, else in memory of this computer."""

    def __init__(self) -> None:
        super().__init__("torch", import_module("array_api_compat.torch"))
        self.torch = import_module("torch")
        self.cuda = bool(self.torch.cuda.is_available())

    def _device(self, number: int) -> Any:
        return self.torch.device("cuda", number) if self.cuda else self.torch.device("cpu")

    def upload(self, host: Array, number: int) -> Any:
        """A copy of a host array."""
        own = np.array(host, order="C", copy=True)  # torch warns of arrays that cannot be written to
        moved = self.torch.from_numpy(own)
        return moved.to(self._device(number)) if self.cuda else moved

    def download(self, array: Any) -> Array:
        """A copy as a NumPy array."""
        return np.array(array.cpu().numpy(), copy=True)

    def copy(self, array: Any, number: int) -> Any:
        """A copy on another device."""
        return array.to(self._device(number), copy=True)

    def zeros(self, shape: tuple[int, ...], dtype: np.dtype[Any], number: int) -> Any:
        """Zeros."""
        return self.torch.zeros(shape, dtype=getattr(self.torch, dtype.name), device=self._device(number))

    def queue(self, number: int) -> Callable[[], Any]:
        """A CUDA stream of its own; without CUDA operations are done when the call returns."""
        if not self.cuda:
            return _at_once
        stream = self.torch.cuda.Stream(self._device(number))

        @contextmanager
        def own() -> Iterator[None]:
            with self.torch.cuda.stream(stream):
                yield
            stream.synchronize()

        return own


class Cupy(StandIn):
    """CuPy: CUDA devices, one stream for each queue."""

    def __init__(self) -> None:
        super().__init__("cupy", import_module("array_api_compat.cupy"))
        self.cupy = import_module("cupy")

    def upload(self, host: Array, number: int) -> Any:
        """A copy of a host array on the present stream."""
        target = self.cupy.empty(host.shape, host.dtype)
        target.set(np.ascontiguousarray(host), stream=self.cupy.cuda.get_current_stream())
        return target

    def download(self, array: Any) -> Array:
        """A copy as a NumPy array, complete when the call returns."""
        return np.asarray(array.get(stream=self.cupy.cuda.get_current_stream(), blocking=True))

    def queue(self, number: int) -> Callable[[], Any]:
        """A non-blocking stream of its own."""
        with self.cupy.cuda.Device(number):
            stream = self.cupy.cuda.Stream(non_blocking=True)

        @contextmanager
        def own() -> Iterator[None]:
            with self.cupy.cuda.Device(number), stream:
                yield
                stream.synchronize()

        return own


def load_library(name: str) -> Library:
    """A library by its name."""
    if name not in LIBRARIES:
        raise InputError(
            f"library={name!r} drives no device. Expected one of {', '.join(LIBRARIES)}. Correct the name."
        )
    try:
        if name == "numpy":
            return StandIn(name, np)
        if name == "array_api_strict":
            return StandIn(name, import_module("array_api_strict"))
        return Torch() if name == "torch" else Cupy()
    except ImportError as error:
        raise InputError(
            f"library={name!r} is not installed ({error}). Expected a library that can be imported. Install it, and "
            "array-api-compat with it for torch and cupy."
        ) from error
