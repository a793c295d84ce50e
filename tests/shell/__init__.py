"""Config, CLI, admin API, metrics, logging and the reference pages, over an in-memory service."""
