"""Show and check what is installed and declared: Experts, prompts, skills, providers, runtimes and this machine.

`Experts` and `Skills` are the entry points; their methods import the module that does the work when they are called, so
that a Host starts fast. Nothing here creates a Job. Skills and programs that are started run as for a Job, and are
ended before the method returns. A change of how a Run builds its instruction or catalogue (`runs.beginning`,
`plugins.skills`) has to be repeated in `prompt_preview`.
"""
