"""What the Runs of a Job are driven with."""

from __future__ import annotations

from perstack.config.settings import Overrides
from perstack.core.definitions import Project
from perstack.dataclass import dataclass
from perstack.engine.clock import SYSTEM
from perstack.engine.emit import Emitter
from perstack.engine.knowledge import Knowledge
from perstack.engine.providers import ProviderPool
from perstack.engine.skills import JobSkills
from perstack.engine.snapshots.of_job import JobSnapshots
from perstack.ports.clock import Clock
from perstack.ports.storage import Storage


@dataclass(slots=True)
class Wiring:
    """What a driver works with, whichever Run it drives."""

    storage: Storage
    project: Project
    providers: ProviderPool
    skills: JobSkills
    emit: Emitter
    overrides: Overrides
    directory: str
    """The working directory, as the model is told."""
    knowledge: Knowledge
    snapshots: JobSnapshots
    clock: Clock = SYSTEM
