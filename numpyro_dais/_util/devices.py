# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Work in equal pieces, laid out over devices and over processes.

Each piece is computed by one device, by the same program as if it were alone, and processes
exchange what they have computed, and nothing else. So a piece has the same bits wherever it is
computed. One program for all devices would not do, be it that of ``shard_map``, in which they do
not communicate: XLA simplifies programs of several partitions by other rules, and sums come out in
another order. It serves where values are traced.
"""

from collections.abc import Callable, Iterator, Sequence
import pickle
from typing import Any, NamedTuple, TypeVar

import jax
from jax import lax
from jax.experimental import multihost_utils
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
import numpy as np

from numpyro_dais._util.concreteness import is_concrete
from numpyro_dais._util.programs import call_on_devices

__all__ = [
    "Devices",
    "Layout",
    "agreed",
    "caller",
    "check_devices",
    "gathered",
    "home_of",
    "is_leader",
    "layout_of",
    "mapped",
    "spread",
]

T = TypeVar("T")
# What a user may say of devices.
Devices = Sequence[jax.Device] | Mesh | None

# The name of the only axis of a mesh of ours.
_AXIS = "pieces"


class Layout(NamedTuple):
    """
    Who computes the pieces.

    :param devices: those of this process.
    :param num_processes: the number of processes that share the pieces, each with as many devices.
    :param rank: the place of this process among them.
    :param home: the device that the user has chosen for results; None if JAX is to choose.
    """

    devices: tuple[jax.Device, ...]
    num_processes: int = 1
    rank: int = 0
    home: jax.Device | None = None

    @property
    def is_shared(self) -> bool:
        """True if other processes compute some of the pieces."""
        return self.num_processes > 1

    def num_own(self, num_pieces: int) -> int:
        """Returns the number of pieces that this process computes."""
        number = -(-num_pieces // self.num_processes)
        return max(min(number, num_pieces - self.rank * number), 1)

    def copies(self, tree: Any) -> list[Any]:
        """Returns a tree with its arrays on each of the devices."""
        return [jax.device_put(tree, device) for device in self.devices]


def check_devices(devices: Any) -> tuple[jax.Device, ...] | None:
    """
    Returns devices as a tuple, or None if they were left out.

    :param devices: a sequence of devices, or a mesh, whose axes do not matter.
    """
    if devices is None:
        return None
    rule = (
        "devices must be a sequence of JAX devices, such as jax.devices(), or a jax.sharding.Mesh"
    )
    if isinstance(devices, Mesh):
        found = tuple(devices.devices.flat)
    elif isinstance(devices, (Sequence, np.ndarray)) and not isinstance(devices, str):
        found = tuple(np.asarray(devices, object).flat)
    else:
        raise ValueError(f"{rule}; got {devices!r}.")
    strangers = [device for device in found if not isinstance(device, jax.Device)]
    if strangers or not found:
        got = repr(strangers[0]) if strangers else "none"
        raise ValueError(f"{rule}; got {got}. Leave it out for all devices that there are.")
    if len(set(found)) < len(found):
        raise ValueError(f"devices must be different devices; got {list(found)}.")
    if len({device.platform for device in found}) > 1:
        raise ValueError(
            "devices must be of one kind, since a number has other bits on another; got "
            f"{sorted({device.platform for device in found})}."
        )
    _of_processes(found)
    return found


def layout_of(
    devices: tuple[jax.Device, ...] | None,
    tree: Any,
    num_pieces: int | None = None,
    is_alone: bool = False,
) -> Layout | None:
    """
    Returns who is to compute the pieces of a run; None for one device, as JAX chooses it.

    :param devices: those that the user has named. Left out, all that there are, of all processes:
        unless something is traced, or is on a device that was chosen for it.
    :param tree: what the run is called with.
    :param num_pieces: the number of pieces, one of which needs one device; many if None.
    :param is_alone: whether this process is to compute all of it by itself.
    """
    is_traced, is_named = not is_concrete(tree), devices is not None
    if devices is None:
        if is_traced or _is_default_chosen() or any(map(_is_committed, jax.tree.leaves(tree))):
            return None
        devices = tuple(jax.devices())
        if len(devices) == 1:
            return None
    else:
        _refuse_sharded(tree)
    by_process = _of_processes(devices)
    mine = by_process.get(jax.process_index(), ())
    if not mine:
        raise ValueError(
            f"devices must have some of each process that makes the run; got none of process {jax.process_index()}."
        )
    if num_pieces == 1:
        mine = mine[:1]
    if is_alone or len(by_process) == 1:
        return Layout(mine, home=mine[0] if is_named and len(devices) == 1 else None)
    if is_traced:
        raise NotImplementedError(
            "Under jit, vmap and grad the devices must be those of one process; got devices of "
            f"{len(by_process)}. Pass devices=jax.local_devices()."
        )
    if len(by_process) < jax.process_count():
        raise ValueError(
            "devices must be those of one process, or have some of all processes; got devices of "
            f"{len(by_process)} of {jax.process_count()} processes."
        )
    return Layout(mine, len(by_process), sorted(by_process).index(jax.process_index()))


def home_of(layout: Layout | None, tree: Any) -> jax.Device | None:
    """
    Returns the device that results are put on: the one that what a run is called with is on, or the
    only one of the run, if that was chosen; None if JAX is to choose.

    :param layout: who computes pieces.
    :param tree: what the run is called with.
    """
    for leaf in filter(_is_committed, jax.tree.leaves(tree)):
        if len(leaf.devices()) == 1:
            return next(iter(leaf.devices()))
    return None if layout is None else layout.home


def mapped(layout: Layout, fn: Callable[..., T], items: Any, *shared: Any) -> T:
    """
    Returns what a function returns for each item, along a leading axis, where values are traced:
    each device has its part of the items, one after the other. There may be more results than
    items, to fill up the devices.

    :param layout: the devices.
    :param fn: of one item and what is shared.
    :param items: arrays with the items along their leading axis.
    :param shared: what all of them need.
    """
    missing = -_num_items(items) % len(layout.devices)
    items = jax.tree.map(lambda x: jnp.concatenate([x, *[x[-1:]] * missing]), items)

    def of_device(items: Any, *shared: Any) -> T:
        return lax.map(lambda item: fn(item, *shared), items)

    spec = PartitionSpec(_AXIS)
    in_specs = spec, *(PartitionSpec(),) * len(shared)
    mesh = Mesh(np.array(layout.devices), (_AXIS,))
    # Pieces do not communicate: there is nothing for the check of replication to find.
    sharded = jax.shard_map(
        of_device, mesh=mesh, in_specs=in_specs, out_specs=spec, check_vma=False
    )
    return sharded(items, *shared)


def spread(
    layout: Layout | None, items: Any, call_fn: Callable[[Sequence[Any]], Sequence[Any]]
) -> Iterator[Any]:
    """
    Yields what a program returns for each item, in NumPy arrays.

    :param layout: who computes them.
    :param items: NumPy arrays with the items along their leading axis.
    :param call_fn: calls the program with as many items as there are devices in this process, or
        fewer, each on its device.
    """
    num_items = _num_items(items)
    if layout is None:
        yield from _called(1, items, call_fn)
        return
    if not layout.is_shared:
        yield from _called(len(layout.devices), items, call_fn)
        return
    number = -(-num_items // layout.num_processes)
    first = layout.rank * number
    # A process without a piece of its own computes one for its shape.
    mine = _row(items, slice(first, first + number) if first < num_items else slice(1))
    results = list(_called(len(layout.devices), mine, call_fn))
    results += results[-1:] * (number - len(results))
    whole = gathered(jax.tree.map(lambda *leaves: np.stack(leaves), *results))
    yield from (_row(whole, index) for index in range(num_items))


def caller(
    layout: Layout | None, program: Callable[..., T], inputs: tuple, **static: Any
) -> Callable[[Sequence[Any]], Sequence[T]]:
    """
    Returns what calls a program for :func:`spread`: with an item, inputs and static arguments.

    :param layout: the devices.
    :param program: the program.
    :param inputs: what all items need; each device gets a copy.
    :param static: static arguments.
    """
    if layout is None:
        return lambda items: [program(item, *inputs, **static) for item in items]
    devices, copies = layout.devices, layout.copies(inputs)

    def call(items: Sequence[Any]) -> Sequence[T]:
        calls = [(item, *copy) for item, copy in zip(items, copies, strict=False)]
        return call_on_devices(program, devices, calls, **static)

    return call


def _called(
    width: int, items: Any, call_fn: Callable[[Sequence[Any]], Sequence[Any]]
) -> Iterator[Any]:
    num_items = _num_items(items)
    for first in range(0, num_items, width):
        group = [_row(items, index) for index in range(first, min(first + width, num_items))]
        yield from (jax.tree.map(np.asarray, result) for result in call_fn(group))


def _num_items(items: Any) -> int:
    return len(jax.tree.leaves(items)[0])


def _row(tree: Any, index: int | slice) -> Any:
    return jax.tree.map(lambda x: x[index], tree)


def gathered(tree: Any) -> Any:
    """
    Returns arrays that all processes have a part of, one part after the other. To be called by all.

    :param tree: NumPy arrays, of the same shapes on each process.
    """
    return multihost_utils.process_allgather(tree, tiled=True)


def agreed(layout: Layout | None, fn: Callable[[], T]) -> T:
    """
    Returns what a function returns, or raises what it raises: if processes share the pieces, on the
    first of them. Others wait, so that all go on with the same bits.

    :param layout: who computes pieces.
    :param fn: the function, which does not communicate.
    """
    if layout is None or not layout.is_shared:
        return fn()
    message = b""
    if is_leader():
        message = _message_of(fn)
    length = int(multihost_utils.broadcast_one_to_all(np.int32(len(message))))
    content = np.zeros(length, np.uint8)
    content[: len(message)] = np.frombuffer(message, np.uint8)
    is_raised, result = pickle.loads(multihost_utils.broadcast_one_to_all(content).tobytes())
    if is_raised:
        raise result
    return result


def is_leader() -> bool:
    """Returns whether this process is the one that shows a progress bar and decides."""
    return jax.process_index() == 0


def _message_of(fn: Callable[[], Any]) -> bytes:
    try:
        return pickle.dumps((False, fn()))
    except Exception as error:
        return pickle.dumps((True, error))


def _of_processes(devices: tuple[jax.Device, ...]) -> dict[int, tuple[jax.Device, ...]]:
    """Devices by their process, as many of each."""
    by_process: dict[int, tuple[jax.Device, ...]] = {}
    for device in devices:
        by_process[device.process_index] = (*by_process.get(device.process_index, ()), device)
    numbers = {process: len(found) for process, found in sorted(by_process.items())}
    if len(set(numbers.values())) > 1:
        raise ValueError(
            "devices must be as many of each process, since their parts are gathered; got, by process, "
            f"{numbers}."
        )
    return by_process


def _is_default_chosen() -> bool:
    """Returns whether the user has told JAX which device to use."""
    config: Any = jax.config
    return config.jax_default_device is not None


def _is_committed(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and leaf.committed


def _refuse_sharded(tree: Any) -> None:
    for leaf in jax.tree.leaves(tree):
        if isinstance(leaf, jax.core.Tracer) or not _is_committed(leaf):
            continue
        if len(leaf.devices()) > 1 and not leaf.is_fully_replicated:
            raise ValueError(
                "devices= says over which devices particles are divided, each with a copy of the data; got an argument "
                f"of shape {leaf.shape} that is itself divided over {len(leaf.devices())} devices. Leave devices= "
                "out, or pass the data whole."
            )
