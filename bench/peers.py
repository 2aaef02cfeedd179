# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "dbos>=3.4,<4", "langgraph>=1.2,<2", "langgraph-checkpoint-sqlite>=3", "langgraph-checkpoint-postgres>=3",
#   "psycopg[binary,pool]>=3.2",
# ]
# ///
"""Cost of durable steps in LangGraph and in DBOS: one measurement, as JSON, for `bench/durable.py`.

    uv run bench/peers.py PEER STORAGE JOBS STEPS DELAY

PEER is `langgraph` or `dbos`, STORAGE a path of an SQLite file or a `postgresql://` address. As in the measurements of
perstack, a step is one reply of a model in this process, after DELAY seconds, and one call of a tool that reads 20
bytes. Each of the two is on disk before the next begins.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from waiting import Gate, resident_megabytes

Run = Callable[[int, float], Awaitable[object]]
"""Drive one Job of so many steps, with this delay of the model in seconds."""


@asynccontextmanager
async def langgraph(storage: str, read: Callable[[], str], gates: list[Gate]) -> AsyncGenerator[Run]:
    from langchain_core.messages import AIMessage, ToolMessage
    from langchain_core.runnables import RunnableConfig
    from langgraph.graph import END, START, MessagesState, StateGraph

    def saver() -> AbstractAsyncContextManager[Any]:
        if "://" in storage:
            from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver

            return AsyncPostgresSaver.from_conn_string(storage)
        from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

        return AsyncSqliteSaver.from_conn_string(storage)

    async def model(state: MessagesState, config: RunnableConfig) -> dict[str, list[AIMessage]]:
        number = len(state["messages"]) // 2
        for gate in gates if number == 0 else ():
            await gate.wait()
        await asyncio.sleep(config["configurable"]["delay"])
        if number == config["configurable"]["steps"]:
            return {"messages": [AIMessage("Done.")]}
        return {"messages": [AIMessage("", tool_calls=[{"name": "read", "args": {}, "id": f"call-{number}"}])]}

    async def tool(state: MessagesState) -> dict[str, list[ToolMessage]]:
        (call,) = state["messages"][-1].tool_calls
        return {"messages": [ToolMessage(read(), tool_call_id=call["id"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("model", model)
    graph.add_node("tool", tool)
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", lambda state: "tool" if state["messages"][-1].tool_calls else END)
    graph.add_edge("tool", "model")
    async with saver() as checkpointer:
        await checkpointer.setup()
        compiled = graph.compile(checkpointer=checkpointer)

        async def run(steps: int, delay: float) -> None:
            settings = {"thread_id": str(uuid.uuid4()), "steps": steps, "delay": delay}
            config = {"configurable": settings, "recursion_limit": 2 * steps + 10}
            await compiled.ainvoke({"messages": [("user", "Read the file.")]}, config, durability="sync")

        yield run


@asynccontextmanager
async def dbos(storage: str, read: Callable[[], str], gates: list[Gate]) -> AsyncGenerator[Run]:
    from dbos import DBOS

    database = storage if "://" in storage else f"sqlite:///{storage}"
    DBOS(config={"name": "bench", "system_database_url": database, "log_level": "ERROR"})

    @DBOS.step()
    async def model(number: int, delay: float) -> str:
        for gate in gates if number == 0 else ():
            await gate.wait()
        await asyncio.sleep(delay)
        return f"call-{number}"

    @DBOS.step()
    async def tool(_call: str) -> str:
        return read()

    @DBOS.workflow()
    async def agent(steps: int, delay: float) -> str:
        for number in range(steps):
            await tool(await model(number, delay))
        return await model(steps, delay)

    async def run(steps: int, delay: float) -> None:
        handle = await DBOS.start_workflow_async(agent, steps, delay)
        await handle.get_result()

    DBOS.launch()
    yield run
    DBOS.destroy()


async def main(peer: str, storage: str, jobs: int, steps: int, delay: float) -> None:
    """Measure, and print a line of JSON: seconds, processor seconds, and MB that the Jobs take while all wait."""
    notes = Path("notes.txt")
    gates: list[Gate] = []  # empty for the first Job
    async with {"langgraph": langgraph, "dbos": dbos}[peer](storage, notes.read_text, gates) as run:
        await run(1, 0)  # imports and connects
        gates.append(gate := Gate(jobs))
        mb_before, began, cpu_began = resident_megabytes(), time.perf_counter(), time.process_time()
        await asyncio.gather(*(run(steps, delay) for _ in range(jobs)))
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu_began
        print(json.dumps({"seconds": seconds, "cpu": cpu, "mb": gate.resident_mb - mb_before}))


if __name__ == "__main__":
    _, _peer, _storage, _jobs, _steps, _delay = sys.argv
    Path("notes.txt").write_text("twenty bytes of text")
    asyncio.run(main(_peer, _storage, int(_jobs), int(_steps), float(_delay)))
