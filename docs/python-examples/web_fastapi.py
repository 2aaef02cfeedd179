import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

import perstack


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
    async with perstack.Host.open() as app.state.host:
        yield


app = FastAPI(lifespan=lifespan)


class Answer(BaseModel):
    question: str
    text: str


def shown(job: perstack.JobSummary) -> dict[str, object]:
    asks = job.asking and {"question": job.asking.id, "text": job.asking.shown}
    return {"id": job.id, "status": job.status, "text": job.text, "asks": asks}


@app.get("/events")
async def events(query: str) -> StreamingResponse:
    async def lines() -> AsyncGenerator[str]:
        async with app.state.host.stream("guide", query) as stream:
            async for event in stream:
                data = {key: getattr(event, key, "") for key in ("id", "name", "text")}
                data = shown(event.summary) if isinstance(event, perstack.Finished) else data
                yield f"event: {type(event).__name__}\ndata: {json.dumps(data)}\n\n"

    return StreamingResponse(lines(), media_type="text/event-stream")


@app.post("/answers")
async def answer(given: Answer) -> dict[str, object]:
    try:
        return shown(await app.state.host.answer(given.text, question=given.question))
    except perstack.PerstackError as error:
        raise HTTPException(409 if isinstance(error, perstack.Conflict) else 422, str(error)) from error
