"""Checkpoints of a run: asynchronous, checked when read, the one before taken where the newest is broken.

The only file that knows orbax.
"""

import errno
import hashlib
import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental.multihost_utils import broadcast_one_to_all
from jaxtyping import PyTree

from mlt_jax.processes import agree


class Checkpoints:
    """Numbered checkpoints in one folder: a pytree of arrays and a small JSON record each.

    In a run of several processes all of them call it; process 0 alone touches the folder.
    """

    def __init__(self, folder: str | Path, *, keep: int = 2) -> None:
        self._manager = None
        if jax.process_index() == 0:
            alone = ocp.options.MultiprocessingOptions(primary_host=0, active_processes={0})
            options = ocp.CheckpointManagerOptions(
                max_to_keep=keep,
                cleanup_tmp_directories=True,
                create=False,
                multiprocessing_options=alone if jax.process_count() > 1 else ocp.options.MultiprocessingOptions(),
            )
            Path(folder).mkdir(parents=True, exist_ok=True)
            self._manager = ocp.CheckpointManager(Path(folder).resolve(), options=options)
            self._next = max(self._manager.all_steps(), default=-1) + 1

    def save(self, tree: PyTree, record: dict[str, Any]) -> None:
        """Starts to write; the arrays are copied first, so that the caller may go on and change them."""
        if self._manager is None:
            return
        host = jax.tree.map(_to_host, tree)
        args = ocp.args.Composite(
            tree=ocp.args.StandardSave(host),
            record=ocp.args.JsonSave({"record": record, "digest": _digest(host, record)}),
        )
        with _disk_errors():
            self._manager.save(self._next, args=args)
        self._next += 1

    def restore(self, template: PyTree) -> tuple[PyTree, dict[str, Any]] | None:
        """The newest whole checkpoint as numpy arrays in the form of `template`, with its record; None if none is.

        A checkpoint that cannot be read, or does not hold what was written, is passed over with a warning.
        """
        found = self._read(template) if self._manager is not None else None
        return found if jax.process_count() == 1 else _broadcast(found, template)

    def close(self) -> None:
        """Waits for writing to end."""
        if self._manager is not None:
            with _disk_errors():
                self._manager.wait_until_finished()
                self._manager.close()

    def _read(self, template: PyTree) -> tuple[PyTree, dict[str, Any]] | None:
        assert self._manager is not None
        shapes = jax.tree.map(_to_host, template)
        args = ocp.args.Composite(tree=ocp.args.StandardRestore(shapes), record=ocp.args.JsonRestore())
        broken = []
        for number in sorted(self._manager.all_steps(), reverse=True):
            try:
                found = self._manager.restore(number, args=args)
                if found.record["digest"] != _digest(found.tree, found.record["record"]):
                    raise ValueError("its content is not what was written")
            except Exception as error:  # whatever a broken file makes orbax raise
                reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
                warnings.warn(f"checkpoint {number} is broken and passed over: {reason}", RuntimeWarning, stacklevel=3)
                broken.append(number)
            else:
                # Only now: were they all unreadable, the fault might be the reader's.
                for other in broken:
                    self._manager.delete(other)
                return jax.tree.map(_from_host, found.tree, template), found.record["record"]
        return None


# How tensorstore says what the operating system said.
_SAID = {"No space left": errno.ENOSPC, "quota exceeded": errno.EDQUOT, "File too large": errno.EFBIG,
         "Permission denied": errno.EACCES, "Read-only file system": errno.EROFS}  # fmt: skip


@contextmanager
def _disk_errors() -> Iterator[None]:
    """Errors of the disk as OSError, whatever orbax made of them."""
    try:
        yield
    except Exception as error:
        for words, number in _SAID.items():
            if words in str(error) and not isinstance(error, OSError):
                raise OSError(number, words) from error
        raise


def _to_host(leaf: Any) -> np.ndarray:
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.array(leaf)


def _from_host(leaf: np.ndarray, template: Any) -> Any:
    if isinstance(template, jax.Array) and jnp.issubdtype(template.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(jnp.asarray(leaf), impl=jax.random.key_impl(template))
    return leaf


def _digest(host: PyTree, record: dict[str, Any]) -> str:
    """A hash of the record and of all arrays with their places: a flipped bit is otherwise read without complaint."""
    total = hashlib.blake2b(json.dumps(record, sort_keys=True).encode(), digest_size=16)
    for path, leaf in jax.tree_util.tree_leaves_with_path(host):
        total.update(f"{jax.tree_util.keystr(path)} {leaf.dtype} {leaf.shape}".encode())
        total.update(np.ascontiguousarray(leaf).data)
    return total.hexdigest()


def _broadcast(found: tuple[PyTree, dict[str, Any]] | None, template: PyTree) -> tuple[PyTree, dict[str, Any]] | None:
    """What process 0 read, in every process."""
    record = agree(found and found[1])
    if record is None:
        return None
    host = jax.tree.map(_to_host, found[0] if found else template)
    tree = jax.tree.map(np.asarray, broadcast_one_to_all(host))
    return jax.tree.map(_from_host, tree, template), record
