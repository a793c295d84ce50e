"""A busy machine must not fail a property test: hypothesis' deadline per example is off."""

from hypothesis import settings

settings.register_profile("wire", deadline=None)
settings.load_profile("wire")
