"""Entry point of the console script: runs the app and turns every failure into one line and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from linker.cli.output import complain, one_line


def main() -> None:
    try:
        if sys.argv[1:2] == ["run"]:
            _only_run(sys.argv[2:])
        else:
            # Otherwise pydantic looks through all that is installed for plugins: a tenth of what a command takes.
            os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
            from linker.cli.app import app

            app()
    except KeyboardInterrupt:
        _fail("interrupted")
    except BrokenPipeError:
        # The reader of our output (head, less) has seen enough. Python would complain at exit: replace stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        if os.environ.get("LINKER_DEBUG"):
            raise
        _fail(one_line(str(error)) if _is_ours(error) else _internal(error))


def _only_run(given: Sequence[str]) -> None:
    """The command line without its other commands; arguments begin after `run`."""
    from linker.cli.run import plain_arguments, run

    arguments = plain_arguments(given, os.environ)
    if arguments is not None:
        run(arguments)
        return
    from linker.cli.run_command import only_run

    only_run()(args=given, prog_name="linker run")


def _is_ours(error: BaseException) -> bool:
    """Errors that are written for people. Looked up, not imported: what is not loaded raised nothing."""
    for module, name in (("admin.client", "AdminError"), ("wire.errors", "LinkerError")):
        loaded = sys.modules.get(module)
        if loaded is not None and isinstance(error, getattr(loaded, name)):
            return True
    return isinstance(error, BaseExceptionGroup) and all(_is_ours(one) for one in error.exceptions)


def _internal(error: Exception) -> str:
    return one_line(f"internal error: {type(error).__name__}: {error} (LINKER_DEBUG=1 shows where)")


def _fail(message: str) -> None:
    complain(message)
    sys.exit(1)
