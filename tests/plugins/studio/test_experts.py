"""The pages of Experts: definition, rules, findings, tools, tests, and the form that starts a Job."""

from __future__ import annotations

import re

from studio_server import serving_studio
from terminal import Terminal, reply

TEAM = """
model = ["scripted/big", "scripted/small"]
[budget]
maxTokens = 400_000
[experts.lead]
description = "leads <b>all</b>"
instruction = "You <script>lead</script>."
delegates = ["helper"]
output = '{"type": "object", "properties": {"answer": {"type": "string"}}}'
[[experts.lead.tests]]
name = "says <i>it</i>"
query = "Say it"
[experts.lead.tests.expect]
resultContains = ["it"]
[experts.helper]
instruction = "You help."
[experts.helper.skills.docs]
type = "mcpStdioSkill"
command = "no-such-program"
env = { TOKEN = "hidden-value" }
pick = ["search"]
[permissions]
deny = ["deleteDirectory"]
allow = ["exec(git status)"]
[experts.lead.permissions]
deny = ["noSuchTool"]
[experts.helper.permissions]
ask = ["writeTextFile"]
"""
BROKEN = "\n[experts.late]\ninstruction = 3\n"


def test_an_expert_is_shown_with_its_rules_tools_and_tests(terminal: Terminal) -> None:
    terminal.project(TEAM, lead=[reply('{"answer": "it"}')])
    with serving_studio(terminal) as server:
        visitor = server.visitor()
        listed, lead, helper = (visitor.get(path) for path in ("/experts", "/experts/lead", "/experts/helper"))
        form = visitor.get("/experts/lead/start")
        missing = visitor.get("/experts/%3Cb%3Enobody", 404)

    assert 'href="/experts/lead/start"' in listed
    assert "leads &lt;b&gt;all&lt;/b&gt;" in listed
    assert "scripted/big, scripted/small" in listed
    assert re.search(r"perstack\.toml:\d+</code>.*`noSuchTool` never matches", listed, re.DOTALL)

    assert "You &lt;script&gt;lead&lt;/script&gt;." in lead
    assert "then scripted/small" in lead
    assert "400,000 tokens" in lead
    assert '<a href="/experts/helper">helper</a>' in lead
    assert "<code>exec(git status)</code>" in lead
    assert re.search(r"<strong>@perstack/base</strong> \d+ tools, [\d,]+ characters", lead)
    assert "<code>readTextFile</code>" in lead
    assert "says &lt;i&gt;it&lt;/i&gt;" in lead
    assert "Results of tests are not stored" in lead

    assert "[experts.helper.permissions]" in helper
    assert "known only when its server is started" in helper
    assert "hidden-value" not in helper
    assert "there is no program `no-such-program`" in helper

    assert 'name="attachments"' in form
    assert "&#34;answer&#34;" in form
    assert "&lt;b&gt;nobody" in missing
    for page in (listed, lead, helper, form, missing):
        assert not re.search(r"<(b|i|script)>", page)
        assert "style=" not in page


def test_a_locked_skill_shows_its_tools_without_a_server(terminal: Terminal) -> None:
    (terminal.workspace / "tools.py").write_text(
        'def greet(name: str) -> str:\n    """Greet <b>somebody</b>."""\n    return name\n'
    )
    terminal.project(
        """
[experts.lead]
instruction = "You lead."
[experts.lead.skills.mine]
type = "pluginSkill"
file = "tools.py"
""",
        lead=[reply("Done.")],
    )
    assert terminal.run("install").code == 0
    with serving_studio(terminal) as server:
        page = server.visitor().get("/experts/lead")

    assert "<code>greet</code>" in page
    assert "Greet &lt;b&gt;somebody" in page


def test_a_job_is_started_with_a_file_of_the_workspace(terminal: Terminal) -> None:
    terminal.project(TEAM, lead=[reply('{"answer": "it"}')])
    (terminal.workspace / "notes.txt").write_text("read me")
    with serving_studio(terminal) as server:
        visitor = server.visitor()
        form = visitor.get("/experts/lead/start")

        outside = visitor.send(form, "/jobs", 400, query="Look", attachments="../secret.txt")
        started = visitor.send(form, "/jobs", query="Look", attachments=" notes.txt \n\n")

        assert "outside the workspace" in outside.text
        job_id = started.headers["Location"].rpartition("/")[2]
    log = next((terminal.jobs() / job_id / "runs").glob("*/events.jsonl")).read_text()
    assert "notes.txt" in log


def test_a_broken_definition_is_shown_and_the_last_valid_one_is_used(terminal: Terminal) -> None:
    terminal.project(TEAM, lead=[reply('{"answer": "it"}')])
    path = terminal.workspace / "perstack.toml"
    valid = path.read_text()
    with serving_studio(terminal) as server:
        visitor = server.visitor()
        form = visitor.get("/experts/lead/start")

        path.write_text(valid + BROKEN)
        one = visitor.get("/experts")
        late = visitor.get("/experts/late")
        path.write_text("model = \n" + valid)
        whole = visitor.get("/experts")
        lead = visitor.get("/experts/lead")
        started = visitor.send(form, "/jobs", query="Go")
        others = [visitor.get(address) for address in ("/", "/jobs", "/costs", "/health")]
        path.write_text(valid)
        repaired = visitor.get("/experts")

        assert started.status_code == 303
        assert all("<h1>" in page for page in others)
        assert re.search(rf"perstack\.toml:{(valid + BROKEN).count(chr(10))}</code>", one)
        assert 'href="/experts/late"' in one
        assert 'href="/experts/late/start"' not in one
        assert "experts.late.instruction" in late
        assert "perstack.toml is invalid, so the last valid one is used" in whole
        assert re.search(r"perstack\.toml:1</code>", whole)
        assert "You &lt;script&gt;lead" in lead
        assert "is invalid" not in repaired
        assert "experts/late" not in repaired
        server.close()
        server.process.terminate()
        assert server.process.stderr is not None
        assert "until that is fixed" in server.process.stderr.read()


def test_a_change_that_nobody_agreed_to_is_shown_and_not_used(terminal: Terminal) -> None:
    terminal.project(TEAM, lead=[reply("Done.")])
    path = terminal.workspace / "perstack.toml"
    with serving_studio(terminal) as server:
        visitor = server.visitor()
        path.write_text(path.read_text().replace("no-such-program", "other-<b>program"))
        listed, health = visitor.get("/experts"), visitor.get("/health")
        helper = visitor.get("/experts/helper")
        server.close()
        server.process.terminate()
        assert server.process.stderr is not None
        assert "Until a person agrees" in server.process.stderr.read()

    assert "other-&lt;b&gt;program" in listed
    assert "Until a person agrees" in health
    assert "&#34;no-such-program&#34;" in helper
