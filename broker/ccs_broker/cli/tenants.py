"""Commands on tenants: who has jobs waiting, and what share of the device time each gets."""

from __future__ import annotations

from contextlib import closing

import click
from rich.text import Text

from ccs_broker.cli.options import Real, in_words_of_the_command, json_option, url_option, with_options
from ccs_broker.cli.output import echo_json, make_table, out, plain_value, printable
from ccs_broker.client import Client
from ccs_broker.client.changing import LEAST_WEIGHT, MOST_WEIGHT
from ccs_broker.contract.wording import Bounds
from ccs_broker.errors import InvalidInputError

__all__ = ["tenants_command"]


@click.group("tenants", invoke_without_command=True, short_help="Show tenants and their weights; set one.")
@with_options(url_option, json_option)
@click.pass_context
def tenants_command(context: click.Context, url: str | None, as_json: bool) -> None:
    """Show the tenants that have jobs waiting or a weight of their own.

    Inside each class tenants share the device time by their weights, 1 for each unless another is set.

    \b
    ccs tenants
    ccs tenants set acme 3
    """
    if context.invoked_subcommand is not None:
        context.obj = url
        return
    with closing(Client(url)) as client:
        tenants = client.tenants()
    if as_json:
        echo_json({"tenants": plain_value(tenants)})
    elif not tenants:
        out().print("no tenant has jobs waiting")
    else:
        rows = [(each.name, f"{each.weight:g}", str(each.waiting)) for each in tenants]
        out().print(make_table(("tenant", ">weight", ">waiting"), rows, console=out()))


@tenants_command.command("set")
@click.argument("tenant")
@click.argument("weight", type=Real(Bounds(least=LEAST_WEIGHT, most=MOST_WEIGHT)))
@with_options(url_option, json_option)
@click.pass_obj
def set_command(group_url: str | None, tenant: str, weight: float, url: str | None, as_json: bool) -> None:
    """Set a tenant's weight, 0.001 to 1000; 1 is the usual one.

    It counts at once, for what the tenant has waiting too.

    \b
    ccs tenants set acme 3
    """
    with closing(Client(url or group_url)) as client:
        try:
            client.set_weight(tenant, weight)
        except InvalidInputError as error:
            raise in_words_of_the_command(error) from None
    if as_json:
        echo_json({"tenant": tenant, "weight": weight})
    else:
        out().print(Text(f"{printable(tenant)}: weight {weight:g}"))
