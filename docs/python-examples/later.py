import asyncio

import perstack


async def main() -> None:
    job = await perstack.run("guide", "A weekend by the sea")
    async with perstack.Host.open() as host:  # perhaps another process, days later
        if job.asking is not None:
            who = perstack.By(user="ana", door="website")
            job = await host.answer("In Liguria", question=job.asking.id, by=who)
        print(job.status, job.text)


asyncio.run(main())
