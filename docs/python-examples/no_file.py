from pathlib import Path

from perstack import Expert, Host, Overrides, Project
from perstack.core.definitions.skills import PluginSkill
from perstack.toolkit import Toolkit

kit = Toolkit("stock")


@kit.tool(effect="readOnly")
def in_stock(article: str) -> int:
    """Return how many there are of an article."""
    return {"A-7": 12}.get(article, 0)


clerk = Expert(
    name="clerk",
    instruction="Answer what is in stock.",
    skills=(PluginSkill(name="stock", plugin="stock"),),
)
host = Host.of(experts=[clerk], plugins=[kit], overrides=Overrides(provider="scripted"))
print(host.run_sync("clerk", "How many A-7?").text)

project: Project = host.project
Path("clerk.toml").write_text(project.to_toml())
