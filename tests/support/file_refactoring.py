"""Process files one after the other, with a checkpoint after each. When started again, it continues.

python file_refactoring.py STORAGE FILES
"""

import asyncio
import sys
from pathlib import Path

from perstack.errors import NotAllowed
from perstack.memory import ExecutionMemory


def refactor(file: Path) -> None:
    """Add a line. The file that was being processed when a process was killed may already have it."""
    before = file.read_text() if file.exists() else ""
    if not before:
        with file.open("a") as opened:
            opened.write("refactored\n")


async def main(storage: str, files: int) -> None:
    async with ExecutionMemory.open(storage=storage) as memory:
        try:
            task = await memory.create("refactor", state={"done": []}, start=True)
        except NotAllowed:
            task = await memory.get("refactor")
        done = list(task.state["done"])
        print("ready", flush=True)
        for number in range(files):
            name = f"file{number}.py"
            if name not in done:
                refactor(Path(name))
                done.append(name)
                task = await memory.checkpoint(
                    "refactor", {"done": done}, data={"file": name}, expected_version=task.version
                )
                print(name, flush=True)
        if task.status == "running":
            await memory.complete("refactor", len(done), expected_version=task.version)
        print("end", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
