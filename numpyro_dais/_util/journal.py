# Copyright Contributors to the numpyro_dais project.
# SPDX-License-Identifier: Apache-2.0

"""
Journals: what each stage of a long run has given, in a file from which the same run goes on.

All randomness of a run comes from its key, so what is between its stages need not be kept: it is
decided again, in the same way, from what the stages gave. What the clock says is a stage like any
other. So the outcomes, in their order, are the whole state; and they are few, small, and on the
host, whatever devices have made them. There are no shardings to be restored, and a plain file of
NumPy's serves, without a dependency on orbax. Nothing in it is pickled: it holds arrays, and a text
that says of which named tuples they are.
"""

from collections.abc import Callable
from importlib import import_module
import io
import json
import os
from pathlib import Path
import time
from typing import Any, NoReturn, TypeVar
import zipfile
import zlib

import jax
from jax.experimental import multihost_utils
import numpy as np

__all__ = ["NO_JOURNAL", "Journal"]

T = TypeVar("T")

_TITLE = "checkpoint of numpyro_dais"
_PACKAGE = __name__.partition(".")[0]
# Writing between rounds may take this share of the time. A round number.
_WRITING_SHARE = 0.05
_REMEDY = "Give another path, or remove the file to begin anew."
_TORN = (
    OSError,
    EOFError,
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    AttributeError,
    zlib.error,
    zipfile.BadZipFile,
)


class Journal:
    """
    The outcomes of a run's stages so far, on disk. Without a path it keeps nothing.

    On several hosts the first one reads and writes, and tells the others what it has read.

    :param path: of the file; it is made at the first writing, and replaced as a whole at each.
    :param identity: what the outcomes depend on, by name. A file with another one is refused.
    :param home: the device that JAX arrays are read to; None if JAX is to choose.
    """

    def __init__(
        self,
        path: str | os.PathLike | None = None,
        identity: dict[str, str] | None = None,
        home: jax.Device | None = None,
    ) -> None:
        self._path = None if path is None else Path(path)
        self._identity = identity or {}
        self._home = home
        self._stages: list[dict[str, Any]] = []
        self._arrays: list[np.ndarray] = []
        self._next = 0
        self._num_written = 0
        self._written_at = self._began = time.perf_counter()
        self._writing_seconds = 0.0
        # Of earlier processes, up to what they have written.
        self.earlier_seconds = 0.0
        if self._path is not None:
            self._read(self._path)

    def seconds(self) -> float:
        """Returns the seconds that the run has taken, those of earlier processes included."""
        return self.earlier_seconds + time.perf_counter() - self._began

    def stage(self, name: str, fn: Callable[[], T]) -> T:
        """
        Returns what a stage gives, or what it gave when this run has been here before.

        :param name: of the stage.
        :param fn: the stage; a function of nothing but what :attr:`identity` names and of the
            stages before it. It gives numbers, words, arrays and named tuples of the package.
        """
        if self._path is None:
            return fn()
        if self._next < len(self._stages):
            stage = self._stages[self._next]
            if stage["name"] != name:
                self._refuse(
                    f"does not fit: its stage {self._next} is {stage['name']!r}, and this run has come to {name!r}"
                )
            self._next += 1
            known: T = self._decoded(stage["value"])
            return known
        value = fn()
        self._stages.append({"name": name, "value": self._encoded(value)})
        self._next += 1
        pause = time.perf_counter() - self._written_at
        if pause * _WRITING_SHARE > self._writing_seconds:
            self.write()
        return value

    def write(self) -> None:
        """Writes all stages so far: the whole file or, if the process ends meanwhile, nothing."""
        if self._path is None or self._num_written == len(self._stages):
            return
        began = time.perf_counter()
        header = {
            "title": _TITLE,
            "identity": self._identity,
            "seconds": self.seconds(),
            "stages": self._stages,
        }
        if jax.process_index() == 0:
            arrays = {f"array {i}": array for i, array in enumerate(self._arrays)}
            _replace_file(self._path, {"header": np.array(json.dumps(header)), **arrays})
        self._num_written = len(self._stages)
        self._written_at = time.perf_counter()
        self._writing_seconds = self._written_at - began

    def _read(self, path: Path) -> None:
        if not path.parent.is_dir():
            raise FileNotFoundError(
                f"checkpoint= is the path of a file, in a directory that is there; got {os.fspath(path)!r}. Make the "
                "directory first."
            )
        try:
            data = _shared_bytes(path)
            if data is None:
                return
            with np.load(io.BytesIO(data), allow_pickle=False) as file:
                arrays = dict(file)
            header = json.loads(str(arrays.pop("header")))
            is_ours = header["title"] == _TITLE
            self._arrays = [arrays[f"array {i}"] for i in range(len(arrays))]
        except _TORN as error:
            self._refuse(f"is not a checkpoint, or is damaged ({type(error).__name__}: {error})")
        if not is_ours:
            self._refuse("is not a checkpoint")
        self._compare(header["identity"])
        self._stages, self.earlier_seconds = header["stages"], header["seconds"]
        self._num_written = len(self._stages)

    def _compare(self, other: dict[str, str]) -> None:
        names = dict.fromkeys([*self._identity, *other])
        reasons = []
        for name in names:
            was, now = (identity.get(name, "nothing") for identity in (other, self._identity))
            if was != now:
                reasons.append(f"{name} ({was}, and now {now})")
        if reasons:
            self._refuse("is of another run: it differs in " + "; ".join(reasons))

    def _refuse(self, reason: str) -> NoReturn:
        raise ValueError(f"The file {os.fspath(self._path or '')!r} {reason}. {_REMEDY}")

    def _encoded(self, value: Any) -> Any:
        """A value as JSON has it; arrays are put beside it."""
        if isinstance(value, (jax.Array, np.ndarray, np.generic)):
            kind = "jax" if isinstance(value, jax.Array) else type(value).__name__
            self._arrays.append(np.asarray(value))
            return {"kind": kind, "array": len(self._arrays) - 1}
        if isinstance(value, tuple):
            cls = type(value)
            kind = "tuple" if cls is tuple else f"{cls.__module__}:{cls.__name__}"
            return {"kind": kind, "parts": [self._encoded(part) for part in value]}
        assert value is None or isinstance(value, (bool, int, float, str)), type(value)
        return value

    def _decoded(self, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        kind = value["kind"]
        if "array" in value:
            array = self._arrays[value["array"]]
            if kind == "jax":
                return jax.device_put(array, self._home)
            return array if kind == "ndarray" else array[()]
        parts = [self._decoded(part) for part in value["parts"]]
        if kind == "tuple":
            return tuple(parts)
        module, name = kind.split(":")
        is_ours = module.startswith(f"{_PACKAGE}.")
        cls: Any = getattr(import_module(module), name) if is_ours else None
        if not hasattr(cls, "_fields"):
            self._refuse(f"holds a {kind!r}, which is no named tuple of this package")
        return cls(*parts)


# For what has no use for its clock.
NO_JOURNAL = Journal()


def _replace_file(path: Path, arrays: dict[str, Any]) -> None:
    """Writes a file beside the old one, waits until it is on disk, and puts it in its place."""
    beside = path.with_name(f"{path.name}.tmp")
    with open(beside, "wb") as file:
        np.savez(file, **arrays)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)
    if hasattr(os, "O_DIRECTORY"):  # the new name is to be on disk, too
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def _shared_bytes(path: Path) -> bytes | None:
    """The bytes of a file as the first host reads them; None if there is none."""
    data = path.read_bytes() if jax.process_index() == 0 and path.exists() else None
    if jax.process_count() == 1:
        return data
    size = int(multihost_utils.broadcast_one_to_all(np.array(-1 if data is None else len(data))))
    if size < 0:
        return None
    buffer = np.frombuffer(data or bytes(size), np.uint8)
    return bytes(np.asarray(multihost_utils.broadcast_one_to_all(buffer)))
