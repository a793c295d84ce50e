"""Single functions of the hot path, without a broker.

- `hot_path`: what the hand-written hot path costs: stamping batches, parsing fetches, building answers
"""
