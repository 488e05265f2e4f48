"""The kill matrix of the worker: see matrix.py."""
import pytest

import matrix


@pytest.mark.parametrize("action", matrix.ACTIONS)
def test_rank(action):
    matrix.run("rank", action)


@pytest.mark.parametrize("action", matrix.ACTIONS)
def test_rank_while_draining(action):
    matrix.run_draining("rank", action)
