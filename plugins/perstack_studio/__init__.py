"""`perstack studio`: a project's Jobs in a browser, from the log itself.

HTML first: each page is rendered here, by Jinja2 with autoescape, from the same views and operations that the other
doors have. Links and forms work without JavaScript; the modules in `static` only add live updates. Pages load nothing
from another host, and no page has inline code (`access.HEADERS`).

- `command` opens the Host, `server` serves it, `access` admits browsers: by a link that is printed at the terminal
  and works once, then by a cookie.
- `views` has a module for each page: `pages()` returns its routes. A module makes data; the template of its name says
  what the page looks like.
- `conversation` folds the events of a Run into entries. A reloaded page equals one that followed the Job,
  since both render each entry by the template `entry.html`; `live` sends the changed entries.
- `run_lines` finds a step by binary search, so a long log is not read for one; `sent_requests` rebuilds the step's
  request with the fold that made it, and `call_reasons` explains why its calls ran. `checks` keeps check reports.
- `words` has the filters: text of a model, tool, file or name is never markup. Markdown is rendered without HTML, and a
  link becomes text that shows its address.
- `costs` adds up the spending of Jobs; `plots` turns numbers into places; a macro in `plots.html` draws them as SVG.

A new page is a module in `views`, a template of its name, and a row in `app.PAGES`.
"""
