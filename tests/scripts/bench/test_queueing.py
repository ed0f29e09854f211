"""The simulation of many replicas."""

from __future__ import annotations

from scripts.bench.cluster.queueing import figures


def test_a_pool_lets_more_replies_start_at_once_than_its_parts():
    own, hashed = (
        figures(4, 20, 0.9, 120.0, own_admission=own_admission) for own_admission in (True, False)
    )
    assert own["at_once"] > hashed["at_once"] and own["replies"] > 100
    assert hashed["at_preferred"] == 1.0 > own["at_preferred"] > 0.5


def test_little_load_waits_for_nothing():
    found = figures(2, 20, 0.3, 60.0, own_admission=True)
    assert (found["at_once"], found["wait_p99_s"], found["rejected"]) == (1.0, 0.0, 0.0)
