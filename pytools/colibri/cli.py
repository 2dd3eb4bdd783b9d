"""The command `colibri`: finds the subcommand, parses its options, turns errors into exit codes.

Exit codes: 0 ok, 1 the answer is no, 2 usage, 3 bad input, 4 a tool or target is missing, 5 does not fit,
70 our bug, 130 interrupted. Results go to stdout, everything else to stderr.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import traceback
from typing import NoReturn

from .errors import ColibriError
from .output import Output

# name -> (module below commands, one line of help)
COMMANDS = {
    "demo": (
        "demo",
        "the shipped model on every target that is here, and the proof that all answers are equal",
    ),
    "convert": ("convert", "make a .colibri file from a Hugging Face folder or hub id"),
    "match-keys": ("match_keys", "what the tensors of an unknown checkpoint are, and a family row for them"),
    "info": ("info", "what a .colibri file holds"),
    "check": ("check", "verify every byte of a .colibri file"),
    "plan": ("plan", "how much memory a session needs, to the byte"),
    "run": ("run", "continue a text or a chat message"),
    "chat": ("chat", "talk with a model"),
    "verify": ("verify", "run one job on all targets and compare the bits"),
    "replay": ("replay", "a recorded trace of experts through all policies of the slots"),
    "synth": ("synth", "make a small random model"),
    "bench": ("bench", "how fast a model runs here, beside what the memory can deliver"),
    "audit": ("audit", "what the core's archives need, define and weigh"),
    "luts": ("luts", "the generated C tables of the core"),
    "doctor": ("doctor", "which targets can run here, and how to get the others"),
    "targets": ("doctor", "the same as doctor"),
}
EPILOG = "`colibri COMMAND --help` shows a command's options and examples."
OUR_BUG = 70
INTERRUPTED = 130


class Parser(argparse.ArgumentParser):
    """argparse with our exit code and one-sentence errors."""

    def error(self, message: str) -> NoReturn:
        """Usage errors end with exit code 2."""
        self.exit(2, f"{self.prog}: {message}; see `{self.prog} --help`\n")


def command_parser(name: str) -> tuple[Parser, object]:
    """The parser of one subcommand, and its module."""
    module_name, line = COMMANDS[name]
    module = importlib.import_module(f".commands.{module_name}", __package__)
    examples = "examples:\n" + "\n".join(f"  {example}" for example in module.EXAMPLES)
    parser = Parser(
        prog=f"colibri {name}",
        description=line,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.arguments(parser)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument(
        "-v", "--verbose", action="count", default=0, help="say more on stderr; twice: tracebacks"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="nothing on stderr but errors")
    return parser, module


def top_help() -> str:
    """The text of `colibri --help`."""
    width = max(map(len, COMMANDS))
    lines = "\n".join(f"  {name.ljust(width)}  {line}" for name, (_, line) in COMMANDS.items())
    return (
        f"usage: colibri COMMAND [options]\n\ncommands:\n{lines}\n\n{EPILOG}\n\nexamples:\n"
        "  colibri demo\n  colibri run model.colibri -p 'Once upon a time' -n 60\n"
    )


def dispatch(argv: list[str]) -> int:
    """Parse and run; errors pass through."""
    if not argv or argv[0] in ("-h", "--help", "help"):
        (sys.stdout if argv else sys.stderr).write(top_help())
        return 0 if argv else 2
    if argv[0] == "--version":
        from .library import version

        print(f"colibri {version()}")
        return 0
    if argv[0] not in COMMANDS:
        sys.stderr.write(f"colibri: no command {argv[0]!r}; `colibri --help` lists them\n")
        return 2
    parser, module = command_parser(argv[0])
    options = parser.parse_args(argv[1:])
    output = Output(options.json, -1 if options.quiet else options.verbose)
    return int(module.run(options, output))  # type: ignore[attr-defined]


def main(argv: list[str] | None = None) -> int:
    """Entry point of the console script; returns the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    loud = "-vv" in arguments or arguments.count("-v") + arguments.count("--verbose") > 1
    try:
        code = dispatch(arguments)
        sys.stdout.flush()
        return code
    except ColibriError as error:
        if loud:
            traceback.print_exc()
        sys.stderr.write(f"colibri: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("\ncolibri: interrupted\n")
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our stdout went away: not an error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if loud:
            traceback.print_exc()
        sys.stderr.write(
            f"colibri: internal error: {type(error).__name__}: {error}; this is our bug, please report it "
            "with the output of the same command with -vv\n"
        )
        return OUR_BUG


if __name__ == "__main__":
    raise SystemExit(main())
