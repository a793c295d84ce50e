"""Comparing logs batch by batch, and the verdict.

- `cleaner_bounds`: where no log cleaner can have been: what is missing there was lost
- `columns`: the columns of `kafka-batches`, and how headers in a buffer become Arrow batches: field by field for all
  batches at once
- `digest`: a digest of a set of batches that does not depend on their order and adds up over ranges
- `facts`: findings of a comparison: the kinds of difference, the batches concerned, and the small types that go with
  them
- `judging`: from sorted rows to verdicts: finds the runs in which all sides agree column by column, shows the rest to
  a Judge
- `logs`: the Spark jobs of one group of ranges
- `matching`: holds the sides of a range against each other while they are read, as long as they are alike
- `side_by_side`: one task that reads all sides of its ranges at the same time and settles those in which all sides
  are alike
- `small_ranges`: one task that reads all sides of small ranges, sorts what they hold in memory, and judges it
- `tail`: the last batch of a partition, at the source and on each target replica, compared by its checksum
- `tail_range`: the batches behind a watermark, at the source and on each replica, compared by their checksums inside
  a fence
- `tally`: adds the verdicts of a replica's ranges up to one result, and judges where the replica starts and ends
- `verdict`: decides how a replica differs, from the batches that source and replica hold at the same offsets
"""
