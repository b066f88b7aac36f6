import pytest
from loopback import Server

from mlt_jax.network import reach


def test_a_server_that_answers_is_reached_whatever_it_says_and_a_closed_one_is_not():
    with Server() as server:
        reach(f"{server.url}/none")
        assert server.asked == [("HEAD", "/none")]
    with pytest.raises(ConnectionError, match=r"http://127\.0\.0\.1:\d+/none: .*refused"):
        reach(f"{server.url}/none")
