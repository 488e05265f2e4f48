import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import harness  # noqa: E402


@pytest.fixture(scope="module")
def server():
    """A server with a random sliding-window model, shared by the tests of one file."""
    with harness.Server(harness.model_file("random-gemma4")) as s:
        yield s


@pytest.fixture(scope="module")
def loop_server():
    """A server whose model says w000 w001 ... w199 w000 ...: a token lost or doubled shows in the text."""
    with harness.Server(harness.model_file("script")) as s:
        yield s
