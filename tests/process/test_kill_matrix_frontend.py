"""The kill matrix of the frontend: see matrix.py."""
import pytest

import matrix


@pytest.mark.parametrize("action", matrix.ACTIONS)
def test_frontend(action):
    matrix.run("frontend", action)


@pytest.mark.parametrize("action", matrix.ACTIONS)
def test_frontend_while_draining(action):
    matrix.run_draining("frontend", action)
