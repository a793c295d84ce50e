"""The admin side of the sidecar: models, the LinkService protocol, the HTTP API over it and its client."""
