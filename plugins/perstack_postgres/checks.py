"""Whether a database is there, and has what a store needs. Nothing is made."""

from __future__ import annotations

import time

from perstack.errors import StorageError
from perstack.ports.storage import StorageCheck
from perstack_postgres.connections import Connections
from perstack_postgres.schema import VERSION, version_of
from perstack_postgres.session import Connection

_SECONDS = 15.0
_MOST_APART = 60.0
"""Seconds between two clocks that somebody should know of: times of events are this machine's."""

_ASKED = (
    "SELECT current_setting('server_version'), extract(epoch FROM clock_timestamp())::float8, pg_is_in_recovery(),"
    " has_database_privilege(current_database(), 'CREATE'),"
    " coalesce((SELECT has_schema_privilege(oid, 'CREATE') FROM pg_namespace WHERE nspname = %(schema)s), false),"
    " coalesce((SELECT bool_and(has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT')"
    " AND has_table_privilege(c.oid, 'UPDATE') AND has_table_privilege(c.oid, 'DELETE')) FROM pg_class AS c"
    " JOIN pg_namespace AS s ON s.oid = c.relnamespace WHERE s.nspname = %(schema)s AND c.relkind = 'r'), true)"
)


async def checks_of(connections: Connections) -> tuple[StorageCheck, ...]:
    """The server, the rights of the role, and the clock."""
    try:
        return await connections.once(lambda connection: _asked(connection, connections), _SECONDS)
    except StorageError as error:
        return (StorageCheck("server", False, error.message),)


async def _asked(connection: Connection, connections: Connections) -> tuple[StorageCheck, ...]:
    address = connections.address
    began = time.time()
    row = await (await connection.execute(_ASKED, {"schema": address.schema})).fetchone()
    version = await version_of(connection, address)
    if row is None:
        return ()
    server, now, is_standby, may_make, may_change, may_write = row
    state = f"schema {address.schema} of version {version}" if version else f"no schema {address.schema} yet"
    found = [StorageCheck("server", True, f"{address.shown}, PostgreSQL {server}, {state}")]
    if is_standby:
        found.append(
            StorageCheck("rights", False, "the server is a standby, which takes no writes", "name the primary")
        )
    elif not (may_write and (may_change or version == VERSION) if version else may_change or may_make):
        remedy = f"make it the owner of the schema, or GRANT CREATE ON DATABASE: {address.shown}"
        found.append(StorageCheck("rights", False, "the role may not write there", remedy))
    else:
        found.append(StorageCheck("rights", True, "the role may write there"))
    apart = float(now) - (began + time.time()) / 2
    if abs(apart) > _MOST_APART:
        found.append(StorageCheck("clock", False, f"{apart:+.0f} s from this machine's", "set both by NTP"))
    return tuple(found)
