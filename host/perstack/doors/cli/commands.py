"""The table of the built-in commands: group, module, one-line text and examples.

`plugin_commands` adds the commands of plugins, for `perstack --help` and docs/cli.md.
"""

from __future__ import annotations

from typing import NamedTuple

COMPLETE_VARIABLE = (
    "_PERSTACK_COMPLETE"  # environment variable with which a shell's script requests completions of a line
)


class CommandEntry(NamedTuple):
    """A command in the list of `perstack --help`."""

    module: str  # module in this package; it defines `NAME_command` and is imported when the command is called
    text: str


GROUPS: dict[str, dict[str, CommandEntry]] = {
    "Run Experts": {
        "run": CommandEntry("run", "Run an Expert, in a new Job or in an existing one."),
        "submit": CommandEntry("run", "Queue a Job for workers, and print its id."),
        "resume": CommandEntry("resume", "Resume a Job after a crash, Ctrl-C, an error or a limit."),
        "iterate": CommandEntry("iterations", "Repeat an Expert until its result is good enough."),
        "tell": CommandEntry("resume", "Tell a running Job something before its next generation."),
        "cancel": CommandEntry("resume", "Stop a Job in any process; it can be resumed."),
        "rewind": CommandEntry("files", "Restore files to a checkpoint of a Job."),
    },
    "Answer": {
        "inbox": CommandEntry("inbox", "List the open questions of all Jobs and tasks."),
        "answer": CommandEntry("inbox", "Answer a question, and continue its Job or task."),
        "signal": CommandEntry("inbox", "Send an external event to a Job or task."),
    },
    "Inspect": {
        "jobs": CommandEntry("jobs", "List Jobs, the latest first."),
        "log": CommandEntry("log", "Show the events of a Job, by default the latest."),
        "diff": CommandEntry("files", "Show the file changes of a Job, a Run or a step."),
        "cost": CommandEntry("jobs", "Add up the costs of Jobs."),
        "iterations": CommandEntry("iterations", "List series of iterations, the latest first."),
        "report": CommandEntry("iterations", "Show the best result of a series, and the others' scores."),
        "export": CommandEntry("export", "Export a Job in another format."),
    },
    "Tasks": {
        "task": CommandEntry("tasks", "Manage tasks that agents pause and resume."),
        "schedules": CommandEntry("scheduler", "List schedules, with their next and last occurrences."),
    },
    "Maintain": {
        "delete": CommandEntry("jobs", "Delete Jobs permanently."),
        "prune": CommandEntry("jobs", "Delete all Jobs that match conditions, such as an age."),
        "du": CommandEntry("storage", "Show the disk usage of Jobs, the largest first."),
        "storage": CommandEntry("storage", "Check a storage, or copy Jobs from one to another."),
        "redact": CommandEntry("audit", "Remove a text from a log permanently, and record who and why."),
    },
    "Audit": {
        "verify": CommandEntry("audit", "Verify a Job's logs: edits, loss and damage."),
        "replay": CommandEntry("audit", "Repeat all decisions of a Job without a model, and compare."),
        "receipt": CommandEntry("audit", "Write a signed statement over a Job's logs."),
    },
    "Define Experts": {
        "validate": CommandEntry("validate", "Check perstack.toml without running anything."),
        "test": CommandEntry("test", "Run the tests of Experts in perstack.toml."),
        "expert": CommandEntry("experts", "List Experts, or show the prompt of one."),
        "tools": CommandEntry("experts", "List the tools that the model of an Expert is offered."),
        "record": CommandEntry("export", "Save a Job as a recording that needs no model to play."),
        "permissions": CommandEntry("permissions", "Test permission rules on a call, or on all recorded calls."),
        "sandbox": CommandEntry("experts", "Run a command as the exec tool of an Expert does."),
    },
    "Set up": {
        "demo": CommandEntry("first_run.demo", "Play a recorded Job: no key, no network."),
        "init": CommandEntry("first_run.init", "Create a perstack.toml from a template."),
        "create": CommandEntry("create", "Let Experts write or improve perstack.toml."),
        "models": CommandEntry("doctor", "List providers and models, and the default."),
        "install": CommandEntry("skills", "Record the tools of all skills in perstack.lock."),
        "login": CommandEntry("skills", "Log in to the server of a skill, or keep a provider's key."),
        "logout": CommandEntry("skills", "Log out of the server of a skill, or delete a key."),
        "trust": CommandEntry("permissions", "Trust what perstack.toml and .env do."),
        "doctor": CommandEntry("doctor", "Check this machine for missing requirements."),
        "plugins": CommandEntry("doctor", "List the installed plugins."),
        "completion": CommandEntry("completion", "Install shell completion."),
    },
    "Serve": {
        "worker": CommandEntry("worker", "Drive queued Jobs; any number of workers may run."),
        "workers": CommandEntry("worker", "List the workers and their current Jobs."),
    },
}

COMMANDS = {name: entry for group in GROUPS.values() for name, entry in group.items()}

EXAMPLES: dict[str, tuple[str, ...]] = {
    "record": (
        "perstack record haiku --to tests/haiku.json --test",
        'perstack run writer "A haiku about logs" --recording tests/haiku.json',
        "perstack record @last --to - | jq '.runs[].replies[].reply'",
    ),
    "demo": ("perstack demo", "perstack demo --to checked"),
    "init": (
        "perstack init",
        "perstack init --template",
        "perstack init review --template code-reviewer",
        "perstack init notes --template team --provider anthropic",
    ),
    "create": (
        'perstack create "An Expert that turns meeting notes into a list of tasks, in tasks.md"',
        'perstack create "Let the writer ask which language to use" --max-cost 0.50',
        "perstack create --resume @last",
    ),
    "models": ("perstack models", "perstack models anthropic"),
    "run": (
        'perstack run writer "A haiku about logs" --job-id haiku',
        'perstack run writer "A haiku about logs" --output text > haiku.txt',
        'perstack run writer "What is wrong on this page?" --attach page.png --attach notes.md',
        'perstack run writer "Now one about disks" --continue',
        'perstack run writer "Once more, shorter" --continue-job haiku --resume-from haiku-1-6',
        'perstack run writer "Another way" --continue-job haiku --resume-from haiku-1-6 --with-files',
        'perstack run guest "Tea, please" --continue -i',
        'perstack run guest "Coffee after all" --continue-job tea --resume-from tea-1-6 -i',
        "perstack run writer - --provider anthropic --model claude-sonnet-4-5 --max-steps 20 < query.txt",
    ),
    "submit": (
        'perstack submit writer "Write a haiku about logs"',
        'perstack submit writer "Write a haiku about logs" --at +2h --priority 5 --label team=search',
        'perstack submit writer "Write a haiku about logs" --wait',
    ),
    "resume": (
        "perstack resume",
        "perstack resume haiku --max-steps 50",
        "perstack resume haiku --settle haiku-1-8-call_1=done",
        "perstack resume fix-stack --max-iterations 10",
        'perstack resume tea --resume-from tea-1-6 -i "Coffee after all"',
    ),
    "iterate": (
        'perstack iterate improver "Make the tests pass" --id fix-stack',
        'perstack iterate improver "Make the tests pass" --max-iterations 3 --target 0.9',
    ),
    "tell": (
        'perstack tell @last "Show me the letters before you send any"',
        'perstack tell haiku "Only lower case, please" --run haiku-2',
        "perstack tell haiku --drop haiku-1-14",
    ),
    "cancel": ("perstack cancel @last", 'perstack cancel review-7 --final --reason "the question is moot"'),
    "rewind": ("perstack rewind haiku haiku-1-6 --dry-run", "perstack rewind haiku haiku-1-6 --only 'src/**' --yes"),
    "inbox": ("perstack inbox", "perstack inbox --json | jq -r .id"),
    "answer": (
        "perstack answer haiku-1-5",
        'perstack answer haiku-1-5 "Tea, please"',
        'perstack answer deploy "no: not on a Friday"',
        """perstack answer haiku '{"city": "Rome", "nights": 3}'""",
    ),
    "signal": (
        """echo '{"specversion": "1.0", "id": "7", "source": "/ci", "type": "done", "data": "green"}' |"""
        " perstack signal haiku",
    ),
    "jobs": (
        "perstack jobs --take 5",
        "perstack jobs --label team=search --label stage=draft",
        "perstack jobs --status failed --status interrupted --since 7d",
        """perstack jobs --json --all | jq -r 'select(.status == "stoppedByInteractiveTool") | .id'""",
    ),
    "log": (
        "perstack log haiku --tools --errors",
        "perstack log haiku --follow",
        "perstack log haiku --tree",
        'perstack log --step ">=5" --take 20',
        """perstack log --filter '.toolCalls[].args.path == "notes.md"' --context 2""",
        "perstack log --errors --summary",
        "perstack log haiku --standing",
        "perstack log --type finishGeneration --json | jq '{step, usage}'",
        "perstack log --messages",
        "perstack log --checkpoint haiku-1-6 --messages --json",
        "perstack log --checkpoint haiku-1-6 --new",
    ),
    "diff": (
        "perstack diff haiku --stat",
        "perstack diff haiku 3",
        "perstack diff haiku haiku-1-6..haiku-1-12",
        "perstack diff haiku --run haiku-2 | git apply --reverse",
    ),
    "cost": ("perstack cost --since 7d", "perstack cost --by model --json | jq .total.costUsd"),
    "iterations": ("perstack iterations --take 5", "perstack iterations --json | jq -r .id"),
    "report": (
        "perstack report fix-stack",
        "perstack report fix-stack --iteration 2",
        "perstack report fix-stack --json | jq -r .iteration.artefact",
    ),
    "export": (
        "perstack export haiku --format json --to haiku.json",
        "perstack export haiku --format perstack --to exported",
    ),
    "task": ("perstack task list --status paused", "perstack task run-due --watch"),
    "task create": (
        """perstack task create refactor --agent fixer --state '{"left": ["a.py", "b.py"]}' --start""",
        "perstack task create release --depends-on refactor --timeout 30m --on-failure retry",
    ),
    "task start": ("perstack task start refactor",),
    "task get": ("perstack task get refactor", "perstack task get refactor --json | jq .state"),
    "task list": (
        "perstack task list --status paused --older-than 2d",
        "perstack task list --agent fixer --json | jq -r '.tasks[].taskId'",
    ),
    "task checkpoint": ("""perstack task checkpoint refactor --state '{"left": ["b.py"]}' --name half""",),
    "task checkpoints": ("perstack task checkpoints refactor",),
    "task pause": (
        'perstack task pause refactor --reason human_approval --message "May I change b.py?"',
        'perstack task pause deploy --reason external_dependency --command "test -f build/done"',
        "perstack task pause report --reason scheduled_wait --resume-at +2h",
    ),
    "task answer": ("perstack task list --reason human_approval", "perstack task answer refactor yes"),
    "task resume": ("perstack task resume refactor", "perstack task resume refactor --checkpoint half"),
    "task complete": ("""perstack task complete refactor --result '{"changed": 2}'""",),
    "task fail": ('perstack task fail refactor "b.py does not parse"',),
    "task retry": ("perstack task retry refactor",),
    "task cancel": ('perstack task cancel refactor --message "no longer needed"',),
    "task archive": ("perstack task archive refactor",),
    "task delete": ("perstack task delete refactor", "perstack task delete --status failed --older-than 30d --yes"),
    "task run-due": ("perstack task run-due", "perstack task run-due --watch --interval 1m"),
    "schedules": ("perstack schedules", "perstack schedules --json | jq -r '.last.jobId // empty'"),
    "delete": ("perstack delete haiku @last --yes",),
    "prune": (
        "perstack prune --older-than 30d --keep-last 10 --dry-run",
        "perstack prune --status failed --expert writer --yes",
    ),
    "du": ("perstack du --take 5", "perstack du haiku --json | jq .total.total"),
    "storage": ("perstack storage copy file:perstack sqlite:perstack/state.db",),
    "storage check": ("perstack storage check s3://my-bucket/perstack",),
    "storage copy": (
        "perstack storage copy file:perstack sqlite:perstack/state.db",
        "perstack storage copy file:perstack s3://my-bucket/perstack --since 30d",
    ),
    "redact": (
        'perstack redact haiku-1-5 contents --reason "a customer\'s address"',
        'perstack redact @last-1-1 query --copies --reason "a password"',
    ),
    "verify": (
        "perstack verify haiku",
        "perstack verify --all --key public.pem",
        "perstack verify --receipt haiku.receipt.json --key public.pem",
    ),
    "replay": ("perstack replay haiku", "perstack replay haiku --json | jq .findings"),
    "receipt": (
        "perstack receipt haiku --to haiku.receipt.json",
        "perstack verify --receipt haiku.receipt.json --key public.pem",
    ),
    "validate": (
        "perstack validate",
        "perstack validate --strict --tools",
        "perstack validate --json | jq .problems",
        "perstack validate --json-schema > .perstack.schema.json",
    ),
    "test": (
        "perstack test",
        "perstack test writer -k haiku --repeats 10",
        "perstack test --junit report.xml",
        'perstack test --from haiku --name "the first haiku"',
    ),
    "expert": ("perstack expert show writer",),
    "expert list": ("perstack expert list", "perstack expert list --json | jq -r .key"),
    "expert show": ("perstack expert show writer", "perstack expert show researcher --as-delegate --json"),
    "tools": ("perstack tools writer", "perstack tools writer --json | jq -r '.tools[].name'"),
    "permissions": ("perstack permissions backtest --since 30d",),
    "permissions list": ("perstack permissions list",),
    "permissions revoke": ('perstack permissions revoke "exec(git push *)"',),
    "permissions backtest": ("perstack permissions backtest --rules stricter.toml --since 30d",),
    "permissions test": ("""perstack permissions test writer exec '{"command": "git", "args": ["push", "origin"]}'""",),
    "sandbox": ("perstack sandbox builder -- sh -c 'ls -la; env'",),
    "install": ("perstack install", "perstack install planner --config team/perstack.toml"),
    "login": (
        "perstack login tracker",
        "perstack login tracker --expert planner --no-browser",
        "perstack login --provider openai < key.txt",
    ),
    "logout": ("perstack logout tracker", "perstack logout --provider openai"),
    "trust": ("perstack trust --show", "perstack trust", "perstack trust --state --show"),
    "doctor": ("perstack doctor",),
    "plugins": ("perstack plugins", "perstack plugins --json | jq -r '.plugins[].name'"),
    "completion": (
        'eval "$(perstack completion bash)"',
        "perstack completion bash > ~/.local/share/bash-completion/completions/perstack",
        "perstack completion zsh > ~/.zfunc/_perstack",
        "perstack completion fish > ~/.config/fish/completions/perstack.fish",
    ),
    "worker": (
        "perstack worker --dispatcher postgresql://perstack@db/perstack",
        "perstack worker --concurrency 20 --labels team=search,gpu=yes --http 9464 --log json",
    ),
    "workers": ("perstack workers", "perstack workers --json | jq -r .name"),
}
"""Examples by the command's name, including its group, as shown in `--help` and docs/cli.md."""
