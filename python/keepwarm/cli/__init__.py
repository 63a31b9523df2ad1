"""The command line: one file per command; this one only assembles them and maps errors to exits.

A command is a function in a file of its own, or an app of several, and a name in `_COMMANDS`. Its
file imports what is heavy when it is called. It returns its exit code, or None for 0, and raises
Keepwarm's errors.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import cyclopts

import keepwarm
from keepwarm.cli.bench import bench
from keepwarm.cli.certs import certs
from keepwarm.cli.demo import app as demo
from keepwarm.cli.doctor import app as doctor
from keepwarm.cli.drop import drop
from keepwarm.cli.exits import FAILED, UNREACHABLE, USAGE, UnreachableError
from keepwarm.cli.lint import lint
from keepwarm.cli.output import abandon, complain
from keepwarm.cli.serve import serve
from keepwarm.cli.stat import stat
from keepwarm.cli.workload import app as workload
from keepwarm.errors import ArgumentError, ConfigError, IdentityError, KeepwarmError

HELP = """\
A shared context memory for LLM inference fleets.

A node keeps the KV blocks that engines have computed, and gives them
back to any engine on this machine that needs them, instead of computing
them again. Begin with two commands:

  keepwarm serve --capacity 16GiB   run a node, until Ctrl-C
  keepwarm stat                     what it holds, and how often it hits

Then, in Python: memory = keepwarm.connect()
"""
EPILOGUE = "Exit codes: 0 ok, 1 failed, 2 usage, 3 node unreachable."

# In the order in which help shows them.
_COMMANDS: tuple[Callable[..., object] | cyclopts.App, ...] = (
    serve,
    stat,
    doctor,
    drop,
    demo,
    bench,
    workload,
    lint,
)


def _app() -> cyclopts.App:
    app = cyclopts.App(
        name="keepwarm",
        help=HELP,
        help_epilogue=EPILOGUE,
        help_format="plaintext",
        version=keepwarm.__version__,
        version_flags=["--version"],
        result_action="return_value",
    )
    for place, command in enumerate(_COMMANDS):
        if isinstance(command, cyclopts.App):
            command.sort_key = place
            app.command(command)
        else:
            app.command(command, sort_key=place)
    app.command(certs)
    return app


app = _app()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the ``keepwarm`` command; returns its exit code."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        code = app(given, exit_on_error=False, print_error=False)
        if sys.stdout is not None:
            sys.stdout.flush()  # here, where its failure is ours to tell
    except cyclopts.CycloptsError as error:
        return _failed(_usage(error), USAGE)
    except (ArgumentError, ConfigError, IdentityError) as error:
        return _failed(str(error), USAGE)
    except UnreachableError as error:
        return _failed(str(error), UNREACHABLE)
    except KeepwarmError as error:
        return _failed(str(error), FAILED)
    except BrokenPipeError:
        abandon()  # whoever read the output went away
        return FAILED
    except OSError as error:
        abandon()
        return _failed(f"{error.filename or 'output'}: {error.strerror or error}", FAILED)
    return code if isinstance(code, int) else 0


def _usage(error: cyclopts.CycloptsError) -> str:
    """What was wrong with the words of a command, and whose help explains them."""
    command = " ".join(["keepwarm", *(error.command_chain or ())])
    return f"{str(error).strip().removesuffix('.')}: {command} --help explains"


def _failed(text: str, code: int) -> int:
    complain(f"keepwarm: {' '.join(text.split())}")
    return code
