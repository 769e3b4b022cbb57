"""The few calls of the CUDA driver that start a built kernel, through ctypes.

torch has started the driver and made the device's context; nothing here waits for the device.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

LIBRARY = "libcuda.so.1"
_SHARED_BYTES = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
TENSOR_TYPES = {"fp16": 6, "bf16": 9}  # CU_TENSOR_MAP_DATA_TYPE_FLOAT16, _BFLOAT16
_NO_INTERLEAVE = 0
_SWIZZLE_128 = 3  # CU_TENSOR_MAP_SWIZZLE_128B
_PROMOTION_256 = 3  # CU_TENSOR_MAP_L2_PROMOTION_L2_256B
_FILL_WITH_ZEROS = 0
_MAP_BYTES, _MAP_ALIGNMENT = 128, 64
_CLUSTER = 4  # CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
_EARLY = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION

_POINTER = ctypes.c_void_p
_SIGNATURES: dict[str, list[Any]] = {
    "cuGetErrorString": [ctypes.c_int, _POINTER],
    "cuCtxGetCurrent": [_POINTER],
    "cuCtxSetCurrent": [_POINTER],
    "cuDeviceGet": [_POINTER, ctypes.c_int],
    "cuDevicePrimaryCtxRetain": [_POINTER, ctypes.c_int],
    "cuModuleLoadData": [_POINTER, _POINTER],
    "cuModuleGetFunction": [_POINTER, _POINTER, ctypes.c_char_p],
    "cuFuncSetAttribute": [_POINTER, ctypes.c_int, ctypes.c_int],
    "cuLaunchKernelEx": [*[_POINTER] * 4],
    "cuTensorMapEncodeTiled": [
        *(_POINTER, ctypes.c_int, ctypes.c_uint32),
        *[_POINTER] * 5,
        *[ctypes.c_int] * 4,
    ],
}


class DriverError(RuntimeError):
    """A call of the CUDA driver failed."""


class _Attribute(ctypes.Structure):
    """``CUlaunchAttribute``: which, and 64 bytes of value."""

    _fields_ = (("which", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_uint32 * 16))


class _Launch(ctypes.Structure):
    """``CUlaunchConfig``."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", _POINTER),
        ("attributes", _POINTER),
        ("count", ctypes.c_uint),
    )


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel loaded on one device."""

    handle: int
    shared_bytes: int
    module: int
    """Keeps its number only; modules stay loaded as long as the process."""

    def launch(
        self,
        programs: int,
        threads: int,
        stream: int,
        parameters: Sequence[ctypes.Structure | ctypes.Array[ctypes.c_char]],
        *,
        cluster: int,
        early: bool,
    ) -> None:
        """Starts it on a stream; the parameters are copied before this returns.

        Args:
            programs: a multiple of ``cluster``.
            threads: of each program.
            stream: its handle.
            parameters: of the kernel.
            cluster: programs that read each other's shared memory; 1: none do.
            early: whether programs may be placed before the kernel ahead on the stream has ended;
                the kernel must wait for it.

        Raises:
            DriverError: the driver refused.
        """
        pointers = (_POINTER * len(parameters))(*map(ctypes.addressof, parameters))
        made = []
        if cluster > 1:
            made.append(_Attribute(_CLUSTER, 0, (cluster, 1, 1)))
        if early:
            made.append(_Attribute(_EARLY, 0, (1,)))
        attributes = (_Attribute * len(made))(*made)
        started = _Launch(
            *((programs, 1, 1), (threads, 1, 1), self.shared_bytes, stream),
            *(ctypes.addressof(attributes) if made else None, len(made)),
        )
        addresses = ctypes.addressof(started), self.handle, ctypes.addressof(pointers)
        _call("cuLaunchKernelEx", *addresses, None)


@cache
def load(code: bytes, name: str, shared_bytes: int, device: int) -> Kernel:
    """A kernel of a module, on the device whose context is current.

    Args:
        code: a cubin.
        name: the kernel's symbol.
        shared_bytes: shared memory of a program.
        device: its number, to keep one for each.

    Raises:
        DriverError: the driver refused.
    """
    module, function = _POINTER(), _POINTER()
    _call("cuModuleLoadData", ctypes.byref(module), code)
    _call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
    _call("cuFuncSetAttribute", function, _SHARED_BYTES, shared_bytes)
    assert module.value is not None and function.value is not None
    return Kernel(function.value, shared_bytes, module.value)


def use_device(device: int) -> None:
    """Makes the context that torch uses on a device current where this thread has none.

    Raises:
        DriverError: the driver refused.
    """
    context = _POINTER()
    _call("cuCtxGetCurrent", ctypes.byref(context))
    if context.value is None:
        handle = ctypes.c_int()
        _call("cuDeviceGet", ctypes.byref(handle), device)
        _call("cuDevicePrimaryCtxRetain", ctypes.byref(context), handle)
        _call("cuCtxSetCurrent", context)


@lru_cache(maxsize=4096)
def tensor_map(
    address: int,
    element: str,
    sizes: tuple[int, ...],
    strides: tuple[int, ...],
    box: tuple[int, ...],
) -> ctypes.Array[ctypes.c_char]:
    """How the copy engine finds boxes of a tensor; what lies outside of it is read as zeros.

    A function of its arguments alone, so it is kept: a model calls with the same pools each round.

    Args:
        address: of the first element.
        element: fp16 or bf16.
        sizes: of each axis, the one with adjacent elements first.
        strides: in bytes, of all axes but the first.
        box: sizes of a box.

    Returns:
        The 128 bytes of a ``CUtensorMap``.

    Raises:
        DriverError: the driver refused.
    """
    rank = len(sizes)
    storage = ctypes.create_string_buffer(_MAP_BYTES + _MAP_ALIGNMENT)
    offset = -ctypes.addressof(storage) % _MAP_ALIGNMENT
    made = (ctypes.c_char * _MAP_BYTES).from_buffer(storage, offset)
    arrays = (
        (ctypes.c_uint64 * rank)(*sizes),
        (ctypes.c_uint64 * (rank - 1))(*strides),
        (ctypes.c_uint32 * rank)(*box),
        (ctypes.c_uint32 * rank)(*[1] * rank),
    )
    _call(
        "cuTensorMapEncodeTiled",
        *(ctypes.addressof(made), TENSOR_TYPES[element], rank, address),
        *[ctypes.addressof(array) for array in arrays],
        *(_NO_INTERLEAVE, _SWIZZLE_128, _PROMOTION_256, _FILL_WITH_ZEROS),
    )
    return made


@cache
def _library() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise DriverError(f"the CUDA driver ({LIBRARY}) cannot be loaded: {error}") from error
    for name, types in _SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = types, ctypes.c_int
    return library


def _call(name: str, *arguments: object) -> None:
    library = _library()
    code = getattr(library, name)(*arguments)
    if code != 0:
        text = ctypes.c_char_p()
        library.cuGetErrorString(code, ctypes.byref(text))
        said = "unknown error" if text.value is None else text.value.decode()
        raise DriverError(f"{name} failed: {said} ({code})")
