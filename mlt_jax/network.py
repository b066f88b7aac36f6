"""Whether there is a network."""

import urllib.error
import urllib.request


def reach(url: str) -> None:
    """ConnectionError at once where no server answers; download libraries would try for minutes."""
    try:
        urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=30).close()
    except urllib.error.HTTPError as answer:
        answer.close()  # the server is there; what it says of the file is for whoever fetches it
    except (urllib.error.URLError, TimeoutError) as error:
        raise ConnectionError(f"{url}: {getattr(error, 'reason', error)}") from error
