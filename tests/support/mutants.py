"""Promises, each with mutations of the code that break it and the test that must fail then.

A test that passes although its promise is broken proves nothing. Each mutation is applied to a copy of the sources,
never to the working tree, and its test is run against the copy:

    python tests/support/mutants.py            try all of them; a few minutes
    python tests/support/mutants.py NAME …     try those whose promise contains NAME

`tests/project/test_mutants.py` checks that every mutation still applies, and tries a few in the ordinary run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from sources import IMPORT_ROOTS, PACKAGES, ROOT

SECONDS = 120
"""Maximum seconds for the test of one mutation."""


@dataclass(frozen=True)
class Mutant:
    """One promise, and one change that breaks it."""

    promise: str
    module: str
    old: str
    """Text that occurs exactly once in the module."""
    new: str
    tests: str
    """pytest arguments that select the test."""

    @property
    def path(self) -> Path:
        """The module's file, relative to the repository."""
        package, *rest = self.module.split(".")
        folder = next(candidate for candidate in PACKAGES if candidate.name == package)
        return (folder.relative_to(ROOT) / Path(*rest)).with_suffix(".py")

    def mutated(self) -> str:
        """Return the module's text with the change. Raises ValueError unless the old text occurs exactly once."""
        text = (ROOT / self.path).read_text()
        if text.count(self.old) != 1:
            raise ValueError(f"{self.path}: {self.old!r} occurs {text.count(self.old)} times, not once")
        return text.replace(self.old, self.new)


MUTANTS = (
    Mutant(
        "a skill is lent only by an Expert with the same restrictions",
        "perstack.core.definitions.expert_changes",
        "if owner_expert.key == expert.key or _restrictions(owner_expert) == _restrictions(expert)",
        "if True",
        "tests/doors/cli/test_changing_tools.py -k same_restrictions",
    ),
    Mutant(
        "an Expert of another file has no effect that the project does not declare",
        "perstack.trust.agreements",
        "if item.digest not in declared_digests]",
        "if False]",
        "tests/doors/cli/test_changing_tools.py -k does_nothing_that",
    ),
    Mutant(
        "a server that does not start is added to no Expert",
        "perstack.engine.runs.run_skills",
        "if problem is not None:",
        "if False:",
        "tests/doors/cli/test_changing_tools.py -k does_not_start",
    ),
    Mutant(
        "changes of one reply are recorded in the order in which they were made",
        "perstack.engine.runs.tool_calls",
        "for task in [task for task in running if task in done]:",
        "for task in reversed([task for task in running if task in done]):",
        "tests/engine/runs/test_changes_in_order.py",
    ),
    Mutant(
        "a result with a side effect is on disk while slower calls of its reply run",
        "perstack.engine.runs.tool_calls",
        "if running and (has_effects or not done):",
        "if False:",
        "tests/engine/runs/test_crashes.py -k slower_call",
    ),
    Mutant(
        "a read-only result is on disk while slower calls of its reply run",
        "perstack.engine.runs.tool_calls",
        "if running and (has_effects or not done):",
        "if running and has_effects:",
        "tests/engine/runs/test_crashes.py -k slower_call",
    ),
    Mutant(
        "the intent of a side effect is on disk before the effect",
        "perstack.engine.runs.tool_calls",
        'if any(call.decided.effect == "sideEffect" for call in calls):',
        "if False:",
        "tests/engine/runs/test_crashes.py -k not_repeated",
    ),
    Mutant(
        "a call runs only if it is the one that was approved",
        "perstack.engine.runs.approvals",
        "if call.digest != call.requested or await rulings.resolved_paths(call, catalogue) != call.leads_to:",
        "if call.digest != call.requested:",
        "tests/engine/permissions/test_approvals.py",
    ),
    Mutant(
        "nothing is written after a write that failed",
        "perstack.engine.log.run_session",
        "            raise self._failure\n        batch",
        "            pass\n        batch",
        "tests/engine/runs/test_crashes.py -k first_error",
    ),
    Mutant(
        "the first to close a Job is its closer",
        "perstack.core.jobs.job",
        "return min((close for close in closes",
        "return max((close for close in closes",
        "tests/engine/jobs/test_closing.py -k first_to_close",
    ),
    Mutant(
        "a text that a person posted is taken once",
        "perstack.core.runs.events.context",
        "    if event.posted in run.taken_posts:\n",
        "    if False:\n",
        "tests/posted_texts/test_taking.py -k second_event",
    ),
    Mutant(
        "the driver does not take a text again that a crash left in the mailbox",
        "perstack.posted_texts.model",
        "if posted.id in taken_ids or posted.id in withdrawn_ids:",
        "if posted.id in withdrawn_ids:",
        "tests/posted_texts/test_taking.py -k withdrawn",
    ),
    Mutant(
        "the latest turns are kept as keepRecent says",
        "perstack.config.resolved_settings",
        "fields_of(keys, ContextPolicy, ",
        "fields_of(keys, ContextPolicy, keep_recent=0.3, ",
        "tests/compaction/test_compaction.py -k keep_recent",
    ),
    Mutant(
        "an approval is of the call that was asked about",
        "perstack.core.runs.events.questions",
        "        if self.call_digest != call.requested:\n",
        "        if False:\n",
        "tests/core/test_approvals.py tests/audit/test_forgery.py",
    ),
    Mutant(
        "a change is of the call that was asked about",
        "perstack.core.runs.events.changed_calls",
        "        if self.call_digest != call.requested:\n",
        "        if False:\n",
        "tests/core/test_approvals.py tests/audit/test_forgery.py",
    ),
    Mutant(
        "a changed call whose paths lead elsewhere is shown before it runs",
        "perstack.core.runs.decide",
        "is_as_written = not decided.ways and",
        "is_as_written =",
        "tests/doors/cli/test_changed_calls.py -k leads_elsewhere",
    ),
    Mutant(
        "only a rule that was offered can be approved",
        "perstack.core.runs.events.questions",
        "if self.rule and not (is_standing and {self.rule, REDACTED} & set(call.offers)):",
        "if False:",
        "tests/core/test_approvals.py tests/engine/permissions/test_approvals.py tests/audit/test_forgery.py",
    ),
    Mutant(
        "a call gets exactly one result",
        "perstack.core.runs.events.base",
        "if call is None or call.result is not None:",
        "if call is None:",
        "tests/core/test_run.py tests/core/test_transitions.py",
    ),
    Mutant(
        "usage is counted once",
        "perstack.core.base.usage",
        " usage=self.usage + usage,",
        " usage=self.usage + usage + usage,",
        "tests/core/test_run.py -k usage",
    ),
    Mutant(
        "tokens promised to a generation that never reported are charged",
        "perstack.core.base.usage",
        "unsettled = self.reservations if is_charged else replace(self, reserved=None).reservations",
        "unsettled = replace(self, reserved=None).reservations",
        "tests/engine/runs/test_budgets.py tests/engine/runs/test_budgets_and_crashes.py",
    ),
    Mutant(
        "nothing continues a Run that was closed",
        "perstack.core.runs.evolve",
        "if run.closed is not None and not transition.is_maintenance:",
        "if False:",
        "tests/core/test_transitions.py tests/engine/jobs/test_closing.py",
    ),
    Mutant(
        "a Job that was resumed after a rate limit does not wait for it any more",
        "perstack.core.runs.events.lifecycle",
        "            waits_for_limit=False,\n",
        "",
        "tests/engine/runs/test_errors_and_retries.py -k waits_for_no_limit",
    ),
    Mutant(
        "a Run that is put right begins with the first model of its new definition",
        "perstack.core.runs.events.lifecycle",
        '            fallback_model=run.fallback_model if self.definition is None else "",\n',
        "",
        "tests/engine/runs/test_fallback.py -k definition_of_today",
    ),
    Mutant(
        "a Job that was resumed has no date to be resumed at",
        "perstack.core.runs.events.lifecycle",
        "            resume_at=None,\n",
        "",
        "tests/engine/runs/test_errors_and_retries.py -k long_retry_after",
    ),
    Mutant(
        "a fact that cannot follow is refused",
        "perstack.core.runs.evolve",
        "if run.phase not in transition.phases or run.status not in transition.statuses:",
        "if run.phase not in transition.phases:",
        "tests/core/test_transitions.py",
    ),
    Mutant(
        "the model sees that an interrupted call may have had its effect",
        "perstack.core.runs.pending",
        'if call.settlement in ("done", "tell"):',
        "if call.settlement is None:",
        "tests/engine/runs/test_crashes.py -k settle",
    ),
    Mutant(
        "a Job stops at its step limit",
        "perstack.core.runs.pending",
        "    if limit is not None:\n",
        "    if False:\n",
        "tests/engine/runs/test_loop.py tests/pacing/test_shared_limits.py tests/core/test_decide.py",
    ),
    Mutant(
        "an unfinished todo keeps a Run from completing",
        "perstack.core.runs.pending",
        "commands.Complete(call, remaining_todos(run.todos), ",
        "commands.Complete(call, remaining_todos(()), ",
        "tests/engine/runs/test_loop.py -k unfinished_todos",
    ),
    Mutant(
        "an append that another writer preceded is a conflict (files)",
        "perstack_filesystem.log_file",
        "if expected_seq is not None and expected_seq != self._scan.seq:",
        "if False:",
        "tests/plugins/filesystem/test_filesystem_contract.py",
    ),
    Mutant(
        "a connection of SQLite that was closed is opened again only where the next close finds it",
        "perstack_sqlite.database",
        "                if self._connection is not None:\n                    with",
        "                if True:\n                    with",
        "tests/plugins/sqlite/test_sqlite_storage.py -k opens_the_file_again",
    ),
    Mutant(
        "an edited line breaks the chain",
        "perstack.core.base.chain",
        "return digest, Head(head.seq + 1, _b64_sha256((head.hash + digest).encode()))",
        "return digest, Head(head.seq + 1, _b64_sha256(digest.encode()))",
        "tests/core/test_chain.py tests/engine/log/test_histories.py",
    ),
    Mutant(
        "an endpoint that asks to be left alone for long pauses the Job",
        "perstack.core.runs.retries_and_fallbacks",
        "if retry_after_s is not None and retry_after_s > MAX_WAIT_S:",
        "if False:",
        "tests/engine/runs/test_errors_and_retries.py tests/project/test_clock.py",
    ),
    Mutant(
        "a generation is tried no more often than maxRetries says",
        "perstack.core.runs.retries_and_fallbacks",
        "if attempt > limits.max_retries and not is_over:",
        "if attempt > limits.max_retries + 1 and not is_over:",
        "tests/engine/runs/test_errors_and_retries.py",
    ),
    Mutant(
        "the first query of a Job survives compaction",
        "perstack.core.runs.context_window",
        "kept = {queries[0], queries[-1]} if queries else set[int]()",
        "kept = set[int]()",
        "tests/compaction/test_compaction.py -k first_query",
    ),
    Mutant(
        "rules that became stricter hold for calls that wait",
        "perstack.engine.permissions.rulings",
        'if new_decision.kind == "refused" and call.decided.kind != "refused":',
        "if False:",
        "tests/engine/permissions/test_rules_in_force.py",
    ),
    Mutant(
        "what was under way when a process ended counts as spent",
        "perstack.core.jobs.budget_ledger",
        "            spent, reserved = spent + reserved, NO_AMOUNT\n",
        "            reserved = NO_AMOUNT\n",
        "tests/core/test_budget.py tests/engine/runs/test_budgets_and_crashes.py",
    ),
    Mutant(
        "of an append that was cut short nothing is read (files)",
        "perstack_filesystem.log_file",
        "        self._batch.append(line)\n        if self._missing_records == 0:\n",
        "        self._batch.append(line)\n        if True:\n",
        "tests/plugins/filesystem/test_filesystem_contract.py",
    ),
    Mutant(
        "of an append that was refused nothing is kept (SQLite)",
        "perstack_sqlite.database",
        '            connection.execute("ROLLBACK")\n',
        '            connection.execute("COMMIT")\n',
        "tests/plugins/sqlite/test_sqlite_storage.py",
    ),
    Mutant(
        "an append that another writer preceded is a conflict (SQLite)",
        "perstack_sqlite.storage",
        "if head.seq != expected_seq:",
        "if False:",
        "tests/plugins/sqlite/test_sqlite_contract.py",
    ),
    Mutant(
        "a rule that denies is never overridden by one that allows",
        "perstack.core.permissions.decide_call",
        "        if denied is not None:\n",
        "        if denied is not None and not self.allow:\n",
        "tests/core/permissions/test_rules.py",
    ),
    Mutant(
        "a generation that could exceed the budget is not made",
        "perstack.core.jobs.budget_ledger",
        "if reply_tokens >= min(bound.least, bound.wanted):",
        "if True:",
        "tests/core/test_budget.py tests/engine/runs/test_budgets.py",
    ),
    Mutant(
        "a Job that ends while it is read is not shown as interrupted",
        "perstack.engine.jobs.reader",
        "if before is not None and before.heads == job.heads:",
        "if True:",
        "tests/engine/jobs/test_reading_while_driven.py",
    ),
    Mutant(
        "an entry that is put during a deletion is gone with its Job",
        "perstack_postgres.statements",
        '_KEPT: LiteralString = " FOR KEY SHARE"',
        '_KEPT: LiteralString = ""',
        "tests/plugins/postgres/test_postgres_faults.py -k put_during",
    ),
    Mutant(
        "parallel Runs that waited for the same last step do not all take it",
        "perstack.engine.runs.generation",
        "if session.run.phase is Phase.READY and run_drive.allowance.steps_left == 0:",
        "if False:",
        "tests/engine/runs/test_budgets.py -k waited_for_room",
    ),
    Mutant(
        "what a document may come to is not guessed from its size",
        "perstack.media.file_headers",
        "    if size is None:\n        return None\n",
        "    if size is None:\n        return len(data)\n",
        "tests/engine/runs/test_budgets.py -k medium_of_few_bytes",
    ),
    Mutant(
        "a span that a kill left open does not last until the resumption",
        "perstack_otel.spans",
        "is_later = isinstance(event, ResumeRun | CloseRun)",
        "is_later = False",
        "tests/plugins/otel/test_spans.py -k kill_left_open",
    ),
    Mutant(
        "a delegate's trace is below the call that started it",
        "perstack_otel.spans",
        "        span.span_id = delegation_span_id(delegate_run_id)\n",
        "",
        "tests/plugins/otel/test_spans.py -k delegate_names",
    ),
)


def is_killed(mutant: Mutant) -> bool:
    """Run the mutant's tests against a changed copy of the sources. Return True if one of them failed."""
    with tempfile.TemporaryDirectory(prefix="mutant") as folder:
        copy = Path(folder)
        for top in ("host", "plugins"):
            shutil.copytree(ROOT / top, copy / top, ignore=shutil.ignore_patterns("__pycache__"))
        (copy / mutant.path).write_text(mutant.mutated())
        paths = [str(copy / root.relative_to(ROOT)) for root in IMPORT_ROOTS]
        command = [
            sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist",
            "-o", f"pythonpath={' '.join((*paths, 'tests/support'))}", *mutant.tests.split(),
        ]  # fmt: skip
        env = os.environ | {
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONPYCACHEPREFIX": str(copy / "cache"),
            "PERSTACK_STORAGES": "all",
        }
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            return True  # a hanging mutant counts as noticed
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{mutant.promise}: pytest ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.returncode == 1


def main() -> int:
    """Try the named mutants, or all. Return 1 if one survives."""
    mutants = [mutant for mutant in MUTANTS if not sys.argv[1:] or any(name in mutant.promise for name in sys.argv[1:])]
    survivors = 0
    for mutant in mutants:
        killed = is_killed(mutant)
        survivors += not killed
        print(f"{'killed  ' if killed else 'SURVIVED'} {mutant.promise} ({mutant.path})", flush=True)
    print(f"{len(mutants)} mutants, {len(mutants) - survivors} killed, {survivors} survived")
    return int(survivors > 0)


if __name__ == "__main__":
    sys.exit(main())
