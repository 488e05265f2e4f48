"""The kill matrix of the supervisor: see matrix.py."""
import pytest

import matrix


@pytest.mark.parametrize("action", matrix.ACTIONS)
def test_supervisor(action):
    matrix.run("supervisor", action)


@pytest.mark.parametrize("action", matrix.ACTIONS)
def test_supervisor_while_draining(action):
    matrix.run_draining("supervisor", action)
