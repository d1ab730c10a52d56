"""`fencelock keys`: the keys with which a source signs sequencers, and the guards that check them.

Promise: a key's secret is printed nowhere; `export` writes it to a new file that only its owner may read.
"""

import datetime as dt
from pathlib import Path

import click

import fencelock
from fencelock._api.guard import operate_on
from fencelock._flows import rights
from fencelock.cli.marks import guard_of
from fencelock.cli.options import json_option, reason_option, resource_option, source_option
from fencelock.cli.output import emit, table
from fencelock.model import SigningKey, default_holder
from fencelock.protocol.source_requests import Keys
from fencelock.stores.registry import guard_url
from fencelock.verifier import write_keys


@click.group()
def keys() -> None:
    """Manage the keys with which a source signs.

    PostgreSQL and MySQL sources sign each sequencer as they grant it, once they have a key. A guard that
    requires signatures is sealed by signed sequencers only, so no role can poison its mark.

    \b
    To rotate a key without a gap:
      fencelock keys add --after 600 --source SOURCE     # signs in ten minutes
      fencelock keys install GUARD_URL --source SOURCE   # at each guard, before that
      fencelock keys retire OLD --source SOURCE          # when its last lease has ended
      fencelock keys install GUARD_URL --source SOURCE   # at each guard, again
    """


@keys.command()
@source_option
@click.option("--after", type=float, default=0.0, metavar="S", help="Sign from S seconds on.  [default: at once]")
@json_option
def add(source: str | None, after: float, as_json: bool) -> None:
    """Draw a new key; the source signs with the newest."""
    with fencelock.connect(source) as connected:
        key = connected.add_key(after=after)
    emit(_as_json(key), as_json, f"key {key.key_id} signs from {_time(key.not_before_s)} on")


@keys.command()
@click.argument("key_id")
@source_option
@click.option("--force", is_flag=True, help="Also while a running lease was signed with it: the key was stolen.")
@json_option
def retire(key_id: str, source: str | None, force: bool, as_json: bool) -> None:
    """Sign with the key KEY_ID no more.

    If the key was stolen: retire it with --force, run `fencelock keys install` for each guard, and raise the
    epoch (`fencelock epoch --raise`), so that every lease is signed anew.
    """
    with fencelock.connect(source) as connected:
        key = connected.retire_key(key_id, force=force)
    text = f"key {key.key_id} is retired: bring the keys to each guard by `fencelock keys install`"
    emit(_as_json(key), as_json, text)


@keys.command("list")
@source_option
@json_option
def list_(source: str | None, as_json: bool) -> None:
    """List the source's keys, without their secrets."""
    known = _read(source)
    rows = [(key.key_id, _time(key.not_before_s), _state(key, known)) for key in known.keys]
    text = table(("KEY", "FROM", "STATE"), rows) if rows else "the source has no key, and signs nothing"
    emit([_as_json(key) | {"in_use": key.key_id in known.in_use} for key in known.keys], as_json, text)


@keys.command()
@click.argument("file", type=click.Path(path_type=Path))
@source_option
@json_option
def export(file: Path, source: str | None, as_json: bool) -> None:
    """Write the keys to FILE, for `fencelock.Verifier.from_file`.

    A service that can read FILE can sign what this source would: give it to services that you trust as the source.
    """
    with fencelock.connect(source) as connected:
        source_id, known = connected.describe().source_id, _not_empty(connected.keys())
    try:
        write_keys(file, source_id, known.keys)
    except FileExistsError:
        raise click.UsageError(f"{file} exists: name a new file") from None
    except OSError as error:
        raise click.UsageError(f"{file} cannot be written: {error.strerror}") from None
    count = len(known.keys)
    emit({"file": str(file), "keys": count}, as_json, f"keys written for the file's owner only: {count}")


@keys.command()
@click.argument("url", metavar="GUARD_URL")
@source_option
@json_option
def install(url: str, source: str | None, as_json: bool) -> None:
    """Bring the source's keys to the guards at GUARD_URL; its owner runs this."""
    known = _not_empty(_read(source))
    operate_on(url, rights.install_keys(known.keys, default_holder()))
    names = [key.key_id for key in known.keys]
    emit({"guard": guard_url(url), "keys": names}, as_json, f"keys at the guard: {', '.join(names)}")


@keys.command()
@click.argument("url", metavar="GUARD_URL")
@resource_option("The resource.")
@click.option("--off", is_flag=True, help="Accept unsigned sequencers again.")
@reason_option(is_required=True)
@json_option
def require(url: str, resource: str, off: bool, reason: str, as_json: bool) -> None:
    """Require a signature of each sequencer that seals a resource."""
    seen = fencelock.inspect_resources(url, resource)
    guard_of(url, seen, resource).require_signatures(not off, reason=reason)
    text = "accepts unsigned sequencers" if off else "is sealed by signed sequencers only"
    emit({"resource": resource, "signatures_required": not off}, as_json, f"resource {resource} {text}")


def _read(source: str | None) -> Keys:
    with fencelock.connect(source) as connected:
        return connected.keys()


def _not_empty(known: Keys) -> Keys:
    """Return the keys; ConfigError if there are none, since no signature would pass with an empty list."""
    if not known.keys:
        raise fencelock.ConfigError("the source has no key, and signs nothing: draw one first, by `fencelock keys add`")
    return known


def _as_json(key: SigningKey) -> dict[str, object]:
    return {"key_id": key.key_id, "not_before_s": key.not_before_s, "retired_s": key.retired_s}


def _state(key: SigningKey, known: Keys) -> str:
    if key.retired_s is not None:
        return f"retired {_time(key.retired_s)}"
    use = "in use" if key.key_id in known.in_use else "not in use"
    if key.key_id == known.signing:
        return f"signs, {use}"
    # The keys are in the order in which they sign, so those after the one that signs now are not due yet.
    ids = [one.key_id for one in known.keys]
    is_due = known.signing is not None and ids.index(key.key_id) < ids.index(known.signing)
    return use if is_due else f"signs later, {use}"


def _time(seconds: int) -> str:
    return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%d %H:%M:%SZ")


COMMANDS = [keys]
