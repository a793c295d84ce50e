"""Target client to source: dispatch, produce forwarding, fetch serving, pass-through, authorization."""
