from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException
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


@app.post("/jobs")
async def start(query: str) -> dict[str, object]:
    return shown(await app.state.host.run("guide", query))


@app.post("/answers")
async def answer(given: Answer) -> dict[str, object]:
    try:
        return shown(await app.state.host.answer(given.text, question=given.question))
    except perstack.PerstackError as error:
        raise HTTPException(409 if isinstance(error, perstack.Conflict) else 422, str(error)) from error
