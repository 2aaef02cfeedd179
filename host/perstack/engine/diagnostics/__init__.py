"""Show and check what is installed and declared: Experts, prompts, skills, providers, runtimes and this machine.

`Experts` and `Skills` are the entry points (`host.experts`, `host.skills`); their methods import the module that does
the work when they are called, so that a Host starts fast. `prompt_preview` shows what an Expert's model receives before
a query, `doctor` checks runtimes, providers and the machine, and `install` asks skills for their tools and writes
perstack.lock.

Nothing here creates a Job. Where skills or programs have to be started, they run as for a Job, with the same agreement,
sandbox policy and environment, and are ended before the method returns. A change of how a Run builds its instruction or
catalogue (`runs.beginning`, `plugins.skills`) has to be repeated in `prompt_preview`.
"""
