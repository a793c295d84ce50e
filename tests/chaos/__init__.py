"""Chaos on real brokers: random faults while a topic is mirrored, written to and promoted, judged by the checker.

`python -m tests.chaos --runs 3`; a run's seed is printed and plays the same faults again (their effect depends on timing).
"""
