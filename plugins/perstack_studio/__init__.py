"""`perstack studio`: a project's Jobs in a browser, from the log itself.

HTML first: each page is rendered here, by Jinja2 with autoescape, from the same views and operations that the other
doors have. Links and forms work without JavaScript; the modules in `static` add only what is live. Nothing is asked of
another host, and no page has inline code (`access.HEADERS`).

- `command` opens the Host, `server` serves it, `access` decides who is let in: a link that is printed at the terminal
  and works once, then a cookie.
- `views` has a module for each page: `pages()` returns its routes. A module makes data; the template of its name says
  what the page looks like.
- `conversation` folds the events of a Run into entries. A page that was loaded and one that followed the Job are equal,
  since both render each entry by the template `entry.html`; `live` sends the entries that changed.
- `run_lines` finds a step by binary search, so a long log is not read for one; `sent` rebuilds what its model was sent,
  by the fold that sent it, and `call_reasons` says why its calls ran. `checks` keeps the reports of verification.
- `words` has the filters: text of a model, tool, file or name is never markup. Markdown is rendered without HTML, and a
  link shows its address and leads nowhere.
- `costs` adds up what Jobs spent; `plots` turns numbers into places, and the macro in `plots.html` draws them as SVG.

A new page is a module in `views`, a template of its name, and a row in `app.PAGES`.
"""
