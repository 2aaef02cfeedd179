"""The tools of the ledger."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from datetime import date
from decimal import Decimal
from typing import Annotated

from pydantic import BaseModel, Field

from perstack.toolkit import Setup, ToolContext, Toolkit


class Settings(BaseModel):
    """`settings` in perstack.toml."""

    file: str = Field(default="ledger.db", description="in the workspace")
    currency: str = Field(default="EUR", pattern="^[A-Z]{3}$")


class Entry(BaseModel):
    """One expense."""

    number: int
    day: date
    amount: Decimal
    what: str


@asynccontextmanager
async def opened(setup: Setup[Settings]) -> AsyncGenerator[sqlite3.Connection]:
    """The ledger, open for one Job."""
    with closing(sqlite3.connect(setup.workspace / setup.settings.file)) as connection:
        connection.execute(
            "CREATE TABLE IF NOT EXISTS entries"
            " (number INTEGER PRIMARY KEY, day TEXT, amount TEXT, what TEXT, call TEXT UNIQUE)"
        )
        yield connection


kit = Toolkit("ledger", settings=Settings, lifespan=opened, instructions="Amounts are positive numbers.")

Context = ToolContext[Settings, sqlite3.Connection]
Amount = Annotated[Decimal, Field(gt=0, decimal_places=2)]


@kit.tool()
async def add_expense(amount: Amount, what: str, context: Context, day: date | None = None) -> str:
    """Note an expense.

    Args:
        amount: how much, in the ledger's currency
        what: what it was for, in a few words
        day: when; today if not given
    """
    with context.resource as connection:
        # the call's key is the same if the host asks once more after a crash: the entry is made once
        connection.execute(
            "INSERT OR IGNORE INTO entries (day, amount, what, call) VALUES (?, ?, ?, ?)",
            ((day or date.today()).isoformat(), str(amount), what, context.tool_call.key),
        )
    return f"noted: {amount} {context.settings.currency} for {what}"


@kit.tool(effect="readOnly")
async def list_expenses(context: Context, containing: str = "") -> list[Entry]:
    """List expenses, the oldest first.

    Args:
        containing: only those whose description has this text
    """
    rows = context.resource.execute(
        "SELECT number, day, amount, what FROM entries WHERE what LIKE ? ORDER BY number", (f"%{containing}%",)
    )
    return [Entry(number=number, day=day, amount=amount, what=what) for number, day, amount, what in rows]


@kit.tool(effect="readOnly")
async def total_expenses(context: Context) -> str:
    """Add up all expenses."""
    amounts = context.resource.execute("SELECT amount FROM entries")
    total = sum((Decimal(amount) for (amount,) in amounts), Decimal(0))
    return f"{total} {context.settings.currency}"
