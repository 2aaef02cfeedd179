from pathlib import Path

from perstack import Expert, Host, Overrides, Project, ToolContext, tool


@tool(effect="readOnly")
def in_stock(article: str) -> int:
    """Return how many there are of an article."""
    return {"A-7": 12}.get(article, 0)


async def reserve(article: str, context: ToolContext) -> str:
    """Reserve one of an article."""
    return f"{article} is reserved in {context.workspace}"


clerk = Expert(name="clerk", instruction="Answer what is in stock.", tools=[in_stock, reserve])
host = Host.of(experts=[clerk], overrides=Overrides(provider="scripted"))
print(host.run_sync("clerk", "How many A-7?").text)

project: Project = Host.of(experts=[Expert(name="writer", instruction="Write.")]).project
Path("writer.toml").write_text(project.to_toml())
