"""Arrays in npy and npz files, without pickle."""

from pathlib import Path

import numpy as np


def load_npy(path: str | Path) -> np.ndarray:
    """The array in an npy file.

    Raises:
      ValueError: the file is no npy file of numbers or words.
      OSError: it cannot be opened.
    """
    with open(path, "rb") as file:  # NumPy leaves a file open that it cannot read
        try:
            return np.lib.format.read_array(file, allow_pickle=False)
        except Exception as error:  # of many kinds, for bytes that are not what they seem
            raise ValueError(f"{path}: is no npy file of numbers ({error or 'it is empty'})") from None


def load_npz(path: str | Path) -> dict[str, np.ndarray]:
    """The arrays in an npz file, by name.

    Raises:
      ValueError: the file is no npz file of arrays.
      OSError: it cannot be opened.
    """
    with open(path, "rb") as file:
        try:
            with np.lib.npyio.NpzFile(file, allow_pickle=False) as archive:
                return dict(archive)
        except Exception as error:  # zipfile, zlib and numpy each have their own
            raise ValueError(f"{path}: is no npz file of arrays without pickle ({error or 'it is empty'})") from None
