"""Proof that the source's log and every target replica's log are equal.

Lives here: reading batches from a *named* replica and comparing what two replicas hold.
Does not live here: when a comparison is asked for (the promote decides that) and what happens on a mismatch.
"""
