"""`phaze settings`: every variable with its value, or the text of .env.example."""

from __future__ import annotations

import click
from pydantic import SecretStr

from agent.redaction import redact_text
from agent.settings import Settings, example, load_settings, unknown_variables, variable


@click.command()
@click.option("--example", "as_example", is_flag=True, help="Print the text of .env.example instead.")
def settings(as_example: bool) -> None:
    """Show every setting, its value and where it differs from the default."""
    if as_example:
        click.echo(example(), nl=False)
        return
    values = load_settings()
    for name in Settings.model_fields:
        value = getattr(values, name)
        shown = "[redacted]" if isinstance(value, SecretStr) else "" if value is None else redact_text(str(value))
        mark = "  (set)" if name in values.model_fields_set else ""
        click.echo(f"{variable(name)}={shown}{mark}")
    for name, near in unknown_variables():
        hint = f"; did you mean {near}?" if near else ""
        click.echo(f"warning: {name} is not a variable that phaze reads{hint}", err=True)
