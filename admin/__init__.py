"""The admin API: models, HTTP server and client.

- `api`: the admin API: HTTP and JSON over a LinkService; paths follow Confluent's REST v3 where it has the same
- `base`: names as all models of the admin API take them, and what all its answers share
- `client`: client of the admin API, for the CLI and for scripts
- `error_answers`: what a failed request of the admin API is answered: `{error_code, message}`, one line that says
  what to do
- `forward`: requests that only the link controller can answer, passed on to its admin API: any sidecar of a fleet may
  be asked
- `limits`: what guards the admin API before a request is looked at: who may ask, and how much may be sent
- `loading`: loading the admin API, for a process that serves others meanwhile: late, in a thread, and no more than it
  needs
- `metrics`: prometheus metrics
- `models/`: requests and answers of the admin API: one vocabulary for service, HTTP API, client and CLI
- `own_token`: the admin API's token where none is configured: made at the first start, in a file that only its owner
  may read
- `parameters`: what paths and queries of the admin API may hold
- `paths`: names in the paths of the admin API: any text is one segment, once it is percent-encoded
- `samples`: what the numbers of the metrics page are read from: one moment's, plain, without Prometheus
- `server`: serving the admin API inside the sidecar's own event loop: socket, start and stop
- `service`: what the admin API asks of the sidecar: the LinkService protocol and the errors that it may raise
- `validation_models`: what the admin API takes and gives about validation
"""
