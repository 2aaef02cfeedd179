from pydantic import BaseModel, Field

import perstack


class City(BaseModel):
    name: str
    people: int = Field(ge=1)


job: perstack.ParsedJob[City] = perstack.run_sync("census", "Lyon", output=City)
if job.output is not None:
    print(job.output.name, job.output.people)
