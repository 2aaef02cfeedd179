"""Items of a definition that need an agreement, and the agreement to a definition that perstack has written."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from perstack.config.project_place import ProjectPlace
from perstack.core.definitions.project import Project
from perstack.dataclass import dataclass
from perstack.definition_files import open_definition
from perstack.engine.plugins.registry import load_plugins
from perstack.expert_tests.models import ExpertTest
from perstack.expert_tests.written_tests import WrittenTest, read_tests
from perstack.trust.agreements import Agreement, TrustStore, env_items, ownership_of
from perstack.trust.items import TrustItem, items_of_test, items_to_trust


@dataclass(frozen=True, slots=True)
class DeclaredItems:
    """Items of a definition file with its tests, its includes and its `.env` files."""

    items: tuple[TrustItem, ...]
    is_whole: bool  # False if it includes files of other folders, which are read only after an agreement


def items_of(place: ProjectPlace, *, with_env: bool = True) -> DeclaredItems:
    """Return the items of a folder's definition, even of one with errors. Raises UsageError without a definition."""
    definition = open_definition(place.require_path(), must_be_whole=False)
    project = definition.project.model_copy(
        update={
            "experts": {key: draft.expert for key, draft in definition.drafts.items()},
            "includes": tuple(definition.includes),
            "path": str(definition.path.absolute()),
        }
    )
    tests: dict[str, list[ExpertTest]] = {}
    for written in read_tests(definition):
        tests.setdefault(written.expert, []).append(written.test)
    own = ownership_of(project, load_plugins((), os.environ).is_vendor)
    env = env_items(project, place) if with_env else []
    return DeclaredItems((*items_to_trust(project, own, tests), *env), not definition.includes_outside)


def agree_to_written(folder: Path) -> None:
    """Agree to the definition that perstack has just written for its user. Raises StorageError."""
    items = items_of(ProjectPlace(folder.resolve(), folder.resolve() / "perstack.toml"), with_env=False).items
    if items:
        TrustStore.of_user().agree(folder.resolve(), items)


def check_tests(project: Project, tests: Sequence[WrittenTest]) -> None:
    """Raise NotAgreed if the definition, or one of these tests of it, has no agreement. Reads no file of a test."""
    agreement = Agreement(project, is_vendor=load_plugins((), os.environ).is_vendor)
    items = [*items_to_trust(project, agreement.own)]
    for written in tests:
        items += items_of_test(written.expert, written.test, agreement.own)
    agreement.check(items)
