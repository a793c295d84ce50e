"""The evidence of a promote: page, JSON and Parquet.

- `charts`: curves as inline SVG. No script, no font and no colour of its own: classes `c0` to `c7` get theirs from
  the page
- `model`: evidence as data
- `page`: the evidence as one HTML page: the verdict first, then how it came about, then every replica; its template,
  style and script lie beside it
- `parquet`: the evidence as a Parquet file: one row per replica, so that many promotes fit one table
- `samples`: a bounded number of looks out of many, for charts: the first, the last, and those between at even steps
- `series`: the curves of the page out of the samples: validated offsets of all partitions per broker, lag and
  throughput of the partitions that matter most
- `text`: numbers, times and foreign texts as the page shows them
- `verdict`: the evidence's verdict in one word, and why
- `write`: evidence into a directory: `evidence.html`, `evidence.json`, `evidence.parquet`
"""
