"""The admin API: models, HTTP server and client.

- `api`: the application: HTTP and JSON over a LinkService
- `base`: the base of all models, patterns of names, and values that all answers share
- `client`: client of the admin API, for the CLI and for scripts
- `error_answers`: the answer to a failed request: `{error_code, message}`, one line that says what to do
- `forward`: any sidecar of a fleet may be asked: it passes requests on to the link controller
- `limits`: checks before a request reaches a route: token, origin, and the body's size, speed and type
- `loading`: late import of the admin API, in a thread, while the process serves clients
- `metrics`: prometheus metrics
- `models/`: requests and answers of the admin API: one vocabulary for service, HTTP API, client and CLI
- `openapi`: the OpenAPI document, made from the table; pydantic makes the schemas
- `operation`: one operation: its request, its answer, its errors and its command
- `operations`: the table of all operations, from which routes, client calls and reference are made
- `own_token`: the token that a sidecar makes at its first start if none is configured
- `paths`: names in the paths of the admin API: any text is one segment, once it is percent-encoded
- `routes`: one for each operation: its row in the table says how a request is read and answered
- `samples`: the numbers of one moment for the metrics page, without Prometheus
- `server`: serving the admin API inside the sidecar's own event loop: socket, start and stop
- `service`: the errors that the service behind the API may raise
- `validation_models`: requests and answers about validation
"""
