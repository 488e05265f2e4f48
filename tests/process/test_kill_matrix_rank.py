"""The kill matrix of the workers: see matrix.py. Rank 1 is one of two."""
import pytest

import matrix


RANKS = ["rank", "rank1"]


@pytest.mark.parametrize("action", matrix.ACTIONS)
@pytest.mark.parametrize("rank", RANKS)
def test_rank(rank, action):
    matrix.run(rank, action)


@pytest.mark.parametrize("action", matrix.ACTIONS)
@pytest.mark.parametrize("rank", RANKS)
def test_rank_while_draining(rank, action):
    matrix.run_draining(rank, action)
