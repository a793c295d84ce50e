"""One small application per client library, all started and read in the same way.

A program takes `key=value` arguments and prints one JSON object per line; it knows nothing of links. It ends
in good order on SIGTERM: it stops sending or reading, waits for every outcome, commits, leaves, says `closed`.

Arguments: `role` (producer, transactions, consumer, streams), `bootstrap`, `name` (identity and client id),
`topic`, `partitions`; of producers `rate` (records per second), `first` (the number of the first record),
`transactional_id`, `commit_ms` (length of a transaction); of consumers `group`, `instance` (static
membership), `assignor`, `protocol` (classic, consumer), `isolation`; of Streams `output`, `guarantee`,
`state`. `set.PROPERTY=VALUE` goes to the library as it is.

Lines, each with `t`, milliseconds since the epoch (a record's acknowledgement carries its own):

    {"e": "ready", "version": "4.3.1"}                  the client is there
    {"e": "acked", "r": [[number, offset, t], ...]}     -1 for an offset that the library does not tell
    {"e": "failed", "r": [number, ...], "written": false, "error": "..."}   written false: certainly not in the log
    {"e": "error", "error": "..."}                      any other error that reached the application
    {"e": "notice", "error": "..."}                     told to the application for its information
    {"e": "assigned", "p": [["topic", 0], ...]}         what was added; likewise "revoked"
    {"e": "records", "topic": "t", "p": 3, "r": [[offset, "name", number], ...]}   number -1: nobody's
    {"e": "committed", "n": 17}                         a transaction or the offsets of what was read so far
    {"e": "closed", "next": 1234}                       a producer's next number

Record n goes to partition n modulo `partitions`; its value is `live|NAME|n|filler`. What a library reported as
failed is never sent again.
"""
