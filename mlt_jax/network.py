"""Whether there is a network, and files fetched over it that a later call can go on with."""

import http.client
import urllib.error
import urllib.request
from pathlib import Path

from tqdm import tqdm

_TIMEOUT = 60  # seconds without a byte
_PIECE = 2**20


def reach(url: str) -> None:
    """ConnectionError at once where no server answers; download libraries would try for minutes."""
    try:
        urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=30).close()
    except urllib.error.HTTPError as answer:
        answer.close()  # the server is there; what it says of the file is for whoever fetches it
    except (urllib.error.URLError, TimeoutError) as error:
        raise ConnectionError(f"{url}: {getattr(error, 'reason', error)}") from error


def download(url: str, path: Path, *, size: int) -> None:
    """Fetches a file, from where an earlier call was cut; it bears its name once it has all its bytes.

    A connection that breaks is made again as long as each one brings something. What came stays beside `path`, with
    `.part` behind its name.

    Raises:
      ConnectionError: the server cannot be reached, has no such file, or broke off without a further byte.
      OSError: the file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    came = part.stat().st_size if part.exists() else 0
    if came > size:
        part.unlink()
        came = 0
    with tqdm(desc=path.name, total=size, initial=came, unit="B", unit_scale=True, disable=None) as bar:
        while came < size:
            before, problem = came, "it sent nothing more"
            try:
                came = _go_on(url, part, came, bar)
            except urllib.error.HTTPError as answer:
                answer.close()
                raise ConnectionError(f"{url}: the server answers {answer.code} ({answer.reason})") from answer
            except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError) as error:
                problem, came = str(getattr(error, "reason", error)), part.stat().st_size if part.exists() else 0
            if came <= before:
                kept = f"broke off after {came} of {size} bytes; the same command goes on from there"
                raise ConnectionError(f"{url}: {problem}" + f" ({kept})" * (came > 0))
    part.replace(path)


def _go_on(url: str, part: Path, start: int, bar: tqdm) -> int:
    """One connection: adds to the file what it sends from byte `start` on; the bytes that the file then has."""
    asked = urllib.request.Request(url, headers={"Range": f"bytes={start}-"} if start else {})
    with urllib.request.urlopen(asked, timeout=_TIMEOUT) as answer:
        if answer.status != 206:  # all of it, from a server that knows no ranges
            start = 0
            bar.reset()
        with part.open("ab" if start else "wb") as file:
            while piece := answer.read(_PIECE):
                file.write(piece)
                bar.update(len(piece))
            return file.tell()
