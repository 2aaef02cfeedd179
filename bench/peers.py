# /// script
# requires-python = ">=3.11"
# dependencies = ["langgraph>=1.2,<2", "langgraph-checkpoint-sqlite>=3"]
# ///
"""What a step costs in LangGraph with its SQLite checkpointer, for the table of docs/speed.md.

uv run bench/peers.py                 in an environment of its own, which uv makes
uv run bench/peers.py --steps 50      only this number of steps

As in bench.py a step is one reply of a model that answers at once and one call of a tool that reads 20 bytes, and
every step is on disk before the next begins (`durability="sync"`). All is in one process, and the model in it.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import mean

from langchain_core.messages import AIMessage, ToolMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph


def measure(steps: int, folder: Path) -> str:
    """One row of the table."""
    (folder / "notes.txt").write_text("twenty bytes of text")
    ends: list[float] = []

    def model(state: MessagesState) -> dict[str, list[AIMessage]]:
        if len(ends) == steps:
            return {"messages": [AIMessage("Done.")]}
        call = {"name": "read", "args": {"path": "notes.txt"}, "id": f"call-{len(ends)}"}
        return {"messages": [AIMessage("", tool_calls=[call])]}

    def tool(state: MessagesState) -> dict[str, list[ToolMessage]]:
        (call,) = state["messages"][-1].tool_calls
        ends.append(time.perf_counter())
        return {"messages": [ToolMessage((folder / call["args"]["path"]).read_text(), tool_call_id=call["id"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("model", model)
    graph.add_node("tool", tool)
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", lambda state: "tool" if state["messages"][-1].tool_calls else END)
    graph.add_edge("tool", "model")
    with SqliteSaver.from_conn_string(str(folder / "state.db")) as saver:
        config = {"configurable": {"thread_id": "a"}, "recursion_limit": 2 * steps + 10}
        graph.compile(checkpointer=saver).invoke({"messages": [("user", "Read the file.")]}, config, durability="sync")
        disk = sum(file.stat().st_size for file in folder.glob("state.db*"))
    each = [after - before for before, after in pairwise(ends)]
    last = each[-max(1, len(each) // 10) :]
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return f"| {steps} | {mean(each) * 1000:.1f} | {mean(last) * 1000:.1f} | {disk / 1024:,.0f} | {memory} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, nargs="*", default=[50, 200, 1000])
    print("| steps | ms a step | last tenth | disk KB | MB |\n| --- | --- | --- | --- | --- |")
    for steps in parser.parse_args().steps:
        with tempfile.TemporaryDirectory() as folder:
            print(measure(steps, Path(folder)), flush=True)


if __name__ == "__main__":
    main()
