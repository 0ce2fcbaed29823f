"""`python -m txl VERB ...` is `txl VERB ...`, and what `accelerate launch -m txl VERB ...` starts."""

from txl.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
