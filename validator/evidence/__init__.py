"""The evidence of a promote: what was compared, until where, with which result; as a page, as JSON and as Parquet.

Lives here: the model (`model`), its verdict (`verdict`), samples thinned to a bounded number (`samples`), rendering and
writing (`write`). The sidecar imports `model`, `verdict` and `samples`; they need neither Spark nor pyarrow.
Does not live here: the comparison itself, and when evidence is written (the promote decides that).
"""
