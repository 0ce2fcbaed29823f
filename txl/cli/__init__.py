"""The command line: argv -> one verb with its arguments -> an exit code.

Exit codes: 0 done; 2 bad config, data or arguments; 3 not finite; 130 and 143 stopped by Ctrl-C or a signal, and saved;
1 a fault of txl itself, with a traceback. Knows nothing of what a verb does (`txl.verbs`), and loads no torch.
"""

from __future__ import annotations

import argparse
import difflib
import errno
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from txl import verbs
from txl.cli.table import VERBS

EXIT_CODES = {"ConfigError": 2, "DataError": 2, "CheckpointError": 2, "NonFiniteError": 3}
"""Errors of this package that a user can meet, by the name of their class, for importing their rooms takes seconds."""
DISK = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT)
"""What the operating system says where a file may not be written or does not fit: a user's to mend."""


def script() -> NoReturn:
    """What the command `txl` runs: `main`, then the end of this process."""
    end_process(main())


def end_process(code: int) -> NoReturn:
    """End with an exit code, one of several processes at once, without what the interpreter does last.

    Where weights are in parts, torch keeps gloo's threads to the end. A thread that drops a tensor while the
    interpreter goes away aborts the process, though all work was done (github.com/pytorch/pytorch/issues/190489).
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def main(words: Sequence[str] | None = None) -> int:
    """Run one verb; `words` are those after `txl`. Returns the exit code; argparse exits by itself for --help."""
    words = list(sys.argv[1:] if words is None else words)
    if not words or words[0] in ("-h", "--help", "help"):
        print(overview())
        return 0 if words else 2
    if words[0] == "--version":
        from txl import __version__

        print(f"txl {__version__}")
        return 0
    if words[0] not in VERBS:
        near = difflib.get_close_matches(words[0], VERBS, 1)
        hint = f"did you mean {near[0]}?" if near else f"allowed: {', '.join(VERBS)}"
        print(f"txl: unknown verb {words[0]!r}; {hint}", file=sys.stderr)
        return 2
    arguments = vars(parser_of(words[0]).parse_intermixed_args(words[1:]))
    try:
        verbs.function(VERBS[words[0]].function)(**arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of a pipe has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        print("\ntxl: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        code = exit_code(error)
        if code is None:
            raise
        print(f"txl {words[0]}: {error}", file=sys.stderr)
        return code
    return 0


def exit_code(error: Exception) -> int | None:
    """The code an error of this package ends with; None for one that no user can cause."""
    if isinstance(error, FloatingPointError):
        return EXIT_CODES["NonFiniteError"]
    if isinstance(error, OSError) and error.errno in DISK:
        return EXIT_CODES["DataError"]
    for kind in type(error).__mro__:
        if kind.__module__.split(".")[0] == "txl" and kind.__name__ in EXIT_CODES:
            return EXIT_CODES[kind.__name__]
        if kind.__module__.split(".")[0] == "txl" and kind.__name__ == "Preempted":
            return int(error.exit_code)  # type: ignore[attr-defined]
    return None


def overview() -> str:
    """What `txl --help` prints."""
    lines = ["txl: Transformer-XL language models, from text to a trained model, its measurements and text without end"]
    lines += ["", "usage: txl VERB ...        (txl VERB --help says more)", ""]
    lines += [f"  {name:<10}{verb.summary}" for name, verb in VERBS.items()]
    return "\n".join([*lines, "", "begin with: txl compare configs/quickstart.yaml"])


def parser_of(name: str) -> argparse.ArgumentParser:
    """The parser of one verb's arguments; what it gives are the keyword arguments of the verb's function."""
    summary = VERBS[name].summary
    parser = argparse.ArgumentParser(
        prog=f"txl {name}",
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog="\n  ".join(["for example:", *VERBS[name].examples.splitlines()]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    VERBS[name].arguments(parser)
    return parser
