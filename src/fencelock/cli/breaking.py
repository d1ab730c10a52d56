"""`fencelock break`: end a lease by force, and make its token stale at the lock's resources.

Promise: the lock and the guards are looked up before anything is broken. Once it is broken, the token is printed, and
each guard is tried, whatever becomes of the others. Without a guard, the old holder can still write, and the command
says so.
"""

import click

import fencelock
from fencelock._api.guard import Guard, guards_of
from fencelock.cli.errors import UNAVAILABLE, complain
from fencelock.cli.locks import check_known
from fencelock.cli.options import guard_option, json_option, lock_argument, reason_option, source_option
from fencelock.cli.output import emit, printable
from fencelock.stores.registry import guard_url

_GUARD_HELP = "Refuse the old token at the resources of this URL that are bound to NAME."


@click.command("break")
@lock_argument
@source_option
@reason_option(is_required=True)
@guard_option(_GUARD_HELP)
@json_option
def break_(name: str, source: str | None, reason: str, guards: tuple[str, ...], as_json: bool) -> int:
    """End the lease on the lock NAME by force.

    The lock is free at once, and a token is minted. With --guard, the resources bound to the lock refuse
    every older token from then on. Without it, the old holder can still write until its next renewal,
    which tells it of the break. Exits with 1 if neither the source nor the guards know the lock, and
    with 69 if the lock is broken and a guard could not be told.

    \b
    Example:
      fencelock break import --reason 'host lost' --guard sqlite:////srv/app.db
    """
    found = [guard for url in guards for guard in _guards_bound_to(url, name)]
    with fencelock.connect(source) as connected:
        # If a resource is bound to the lock, a purged source need not know it: old tokens may still be in use.
        if not found:
            check_known(connected.info(name))
        broken = connected.break_lock(name, reason=reason)
    told = [guard for guard in found if _outrank(guard, broken, reason)]
    sealed = [{"guard": guard.url, "resource": resource} for guard in told for resource in guard.resources]
    data = {"lock": name, "token": str(broken.token), "holder": broken.holder, "guarded": sealed}
    emit(data, as_json, _broken_as_text(broken, sealed, has_guards=bool(found)))
    return 0 if len(told) == len(found) else UNAVAILABLE


def _outrank(guard: Guard, broken: fencelock.BrokenLock, reason: str) -> bool:
    """Have a guard refuse every older token; say what to do if it does not."""
    try:
        guard.outrank(broken.sequencer, reason=reason)
    except fencelock.FencelockError as error:
        where, resource = guard_url(guard.url), ", ".join(map(printable, guard.resources))
        complain(
            f"{where}: resource {resource} does not refuse older tokens, so the broken lease can still write: {error}. "
            f"Lock {printable(broken.lock)} is broken nevertheless: do not break it again, for that would end the next "
            f"holder's lease. Run `fencelock marks {where} --resource {resource} --raise-to SOURCE --reason …`, which "
            f"refuses every token up to the source's last one"
        )
        return False
    return True


def _guards_bound_to(url: str, lock: str) -> list[Guard]:
    found = guards_of(url, lock)
    if not found:
        raise fencelock.GuardError(f"{guard_url(url)}: no resource there is bound to lock {lock!r}; nothing was broken")
    return found


def _broken_as_text(broken: fencelock.BrokenLock, sealed: list[dict[str, str]], *, has_guards: bool) -> str:
    holder = f"{printable(broken.holder)} held it" if broken.holder is not None else "nobody held it"
    lines = [
        f"lock {printable(broken.lock)} is broken: {holder}; token {broken.token} is minted, above every earlier one"
    ]
    lines += [f"{one['guard']}: resource {printable(one['resource'])} refuses older tokens" for one in sealed]
    if not has_guards:
        lines.append("The old holder can still write until its next renewal: only --guard URL makes its token stale.")
    return "\n".join(lines)


COMMANDS = [break_]
