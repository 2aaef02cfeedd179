import perstack


def show(event: perstack.Event) -> None:
    print(event.type)


listener: perstack.OnEvent = show
notes: perstack.Attachable = perstack.Blob(b"Logs are append-only.", name="notes.md")
job: perstack.JobSummary = perstack.run_sync(
    "writer",
    "A haiku about logs",
    attachments=[notes],
    labels={"team": "docs"},
    overrides=perstack.Overrides(max_cost=0.1),
    on_event=listener,
)
print(job.status, job.text, perstack.__version__)
