"""Complete sessions of `perstack run` in a terminal, kept beside this file as text.

`PERSTACK_KEEP_SCREENS=1` writes them anew; look at each before it is committed.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from terminal import ASKING, Terminal, reply
from tmux import PERSTACK, Tmux, tmux

SCREENS = Path(__file__).parent / "screens" / "run"
RUN = "run guest 'How do I log in?' --provider scripted --job-id job"
QUESTION = ("askUser", {"question": "At home or at work?"})
PLAN = "I look at **both** ways, and then I tell you which of them is the better one for you today."
ANSWER = """## How to log in

Two ways, the *first* is quicker, and this paragraph is long enough to be broken at the end of a line of eighty columns:

1. with `ssh`, as always
2. in the browser:
   - open it
   - log in

```sh
ssh -p 2222 home.example.com

# then
exit
```

| way     | seconds |
|---------|--------:|
| ssh     | 2       |
| browser | 30      |

That is all."""
TURNS = (
    reply(PLAN, ("todo", {"newTodos": ["ssh", "browser"]}), thinking="Two ways.", usage=(1200, 30)),
    reply("Before I go on:", QUESTION, usage=(1300, 20)),
    reply(ANSWER, usage=(1400, 90)),
)


def seen_in(terminal: Terminal, window: Tmux, *args: str, answers: str = "at home") -> str:
    window.type(f'clear; {PERSTACK} {RUN} {" ".join(args)}; echo "exit status $?"')
    window.sees("Enter: later)")
    window.type(answers)
    window.sees("exit status 0")
    text = window.screen().replace(PERSTACK, "perstack").replace(str(terminal.workspace), "WORKSPACE")
    text = re.sub(r"\d{4}-\d\d-\d\d|\d\d:\d\d:\d\d", lambda found: re.sub(r"\d", "0", found[0]), text)
    text = re.sub(r"(step +job-.*?: ).*", r"\1…", re.sub(r"(by +)\S+, cli", r"\1USER, cli", text))
    found = [line.rstrip() for line in text.splitlines()]
    typed = [at for at, line in enumerate(found) if "exit status $?" in line]  # a dumb terminal cannot be cleared
    return "".join(f"{line}\n" for line in found[typed[-1] + 1 if typed else 0 : found.index("exit status 0") + 1])


@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (120, 40), (40, 24)])
@pytest.mark.parametrize(
    ("name", "args", "env"),
    [
        ("run", (), {}),
        ("no-colour", (), {"NO_COLOR": "1"}),
        ("dumb", (), {"TERM": "dumb"}),
        ("compact", ("--compact",), {}),
        ("quiet", ("--quiet",), {}),
    ],
)
def test_a_session_looks_as_it_did(
    terminal: Terminal, name: str, args: tuple[str, ...], env: dict[str, str], columns: int, lines: int
) -> None:
    terminal.project(ASKING, guest=list(TURNS))
    with tmux(terminal, columns=columns, lines=lines, env=env) as window:
        before = window.state()
        found = seen_in(terminal, window, *args)
        assert window.state() == before
    assert found.count("That is all.") == 1
    path = SCREENS / f"{name}-{columns}x{lines}.txt"
    if os.environ.get("PERSTACK_KEEP_SCREENS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(found)
    assert found == path.read_text()
