"""Records of the KRaft metadata log, and the image of the cluster that they add up to.

- `decode`: values of metadata records, decoded by the generated tables
- `fields`: the form of the generated tables
- `image`: the target cluster as its metadata log describes it
- `replay`: batches of the log and of snapshots, applied to an image
- `schemas`: the generated tables: record types by api key
"""
