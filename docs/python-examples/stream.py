import asyncio
from typing import assert_never

import perstack
from perstack import DelegateStarted, Finished, Question, StreamEvent, TextDelta, ToolCall, ToolResult


def shown(event: StreamEvent) -> str:
    match event:
        case TextDelta():
            return event.text
        case ToolCall():
            return f"{event.name} {event.arguments}"
        case ToolResult():
            return f"{event.name}: {event.text}"
        case Question():
            return f"asks: {event.text}"
        case DelegateStarted():
            return f"delegates to {event.expert_key}: {event.query}"
        case Finished():
            return f"{event.summary.status}: {event.summary.text}"
        case _:
            assert_never(event)


async def main() -> None:
    async with perstack.Host.open() as host:
        events: perstack.JobStream = host.stream("guide", "A weekend by the sea")
        async for event in events:
            print(shown(event))
            if isinstance(event, Question):
                await host.answer("In Liguria", question=event)


asyncio.run(main())
