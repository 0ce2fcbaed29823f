"""Wrong arguments in the words the user gave them in."""

from __future__ import annotations

import pytest

from txl.config import ConfigError
from txl.verbs.checked import arguments_checked, files_and_settings, options_named, overrides_of


def test_parameters_are_named_as_options() -> None:
    with pytest.raises(ConfigError) as caught, arguments_checked("top_k", "window"):
        raise ValueError("top_k is 0: must be more; my_top_k is 1; window: found 3; the window is wide")
    assert str(caught.value) == "--top-k is 0: must be more; my_top_k is 1; --window: found 3; the --window is wide"


def test_named_errors_pass_as_they_are() -> None:
    class NamedError(ValueError):
        pass

    with pytest.raises(NamedError, match=r"^top_k is 0$"), arguments_checked("top_k"):
        raise NamedError("top_k is 0")


def test_overrides_that_were_options_are_named_as_options() -> None:
    options = {"eval.window": ("--window", -1), "eval.batch_size": ("--batch-size", None)}
    assert overrides_of(options) == ["eval.window=-1"]
    with pytest.raises(ConfigError) as caught, options_named(options):
        raise ConfigError(
            [
                "override eval.window=-1: eval.window: found -1; allowed: more",
                "override eval.window=-10: eval.window: found -10",
                "override eval.batch_size=0: eval.batch_size: found 0",
            ]
        )
    assert caught.value.problems == (
        "--window: found -1; allowed: more",
        "override eval.window=-10: eval.window: found -10",
        "override eval.batch_size=0: eval.batch_size: found 0",
    )


def test_files_and_settings_are_told_apart() -> None:
    words = ["a.txt", "data.document_pattern=^=", "-", "b=c.txt", "./data.x=y"]
    assert files_and_settings(words) == (["a.txt", "-", "b=c.txt", "./data.x=y"], ["data.document_pattern=^="])
