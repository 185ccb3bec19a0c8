"""Errors that are for the person at the keyboard: shown as one line, without a traceback."""

from __future__ import annotations


class UserError(Exception):
    """Something the user can mend; the message names the remedy."""

    exit_code = 1


class ConfigError(UserError):
    """Bad configuration: names the variable and the remedy. Stops the start."""

    exit_code = 2


class WrongUse(UserError):
    """The command was given something that it cannot take."""

    exit_code = 2


class StartError(UserError):
    """The start cannot go on."""
