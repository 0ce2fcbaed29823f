"""`python -m txl VERB ...` is `txl VERB ...`, and what `accelerate launch -m txl VERB ...` starts."""

from txl.cli import script

if __name__ == "__main__":
    script()
