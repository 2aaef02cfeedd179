// What is live in a page. Without it every page still shows the same, as of when it was loaded.

/** Follow a stream of fragments, and say when the connection is lost. */
function follow(address, name, take) {
  const source = new EventSource(address);
  source.addEventListener(name, (event) => take(event.data));
  source.addEventListener("open", () => document.querySelector(".gone")?.remove());
  source.addEventListener("error", () => {
    if (document.querySelector(".gone")) return;
    const note = document.createElement("p");
    note.className = "gone";
    note.setAttribute("role", "status");
    note.textContent = "The connection is lost. It is tried again; nothing is missed.";
    document.querySelector("main").append(note);
  });
  addEventListener("pagehide", () => source.close());
}

/** `<live-state src>`: its content is replaced by each fragment. */
class LiveState extends HTMLElement {
  connectedCallback() {
    follow(this.getAttribute("src"), "state", (html) => {
      const open = [...this.querySelectorAll("details[open][id]")].map((one) => one.id);
      this.innerHTML = html;
      open.forEach((id) => this.querySelector(`#${CSS.escape(id)}`)?.setAttribute("open", ""));
    });
  }
}

/** `<live-entries src>`: entries are added at the end, or replace the one with their id. */
class LiveEntries extends HTMLElement {
  static limit = 1000; // entries that stay in a page that shows its end, so that its memory does not grow

  connectedCallback() {
    follow(this.getAttribute("src"), "entries", (html) => this.take(html));
  }

  take(html) {
    const isAtEnd = innerHeight + scrollY >= document.body.scrollHeight - 80;
    const template = document.createElement("template");
    template.innerHTML = html;
    for (const entry of [...template.content.children]) {
      const known = document.getElementById(entry.id);
      if (known === null) this.append(entry);
      else {
        const wasOpen = known.querySelector("details")?.open;
        known.replaceWith(entry);
        if (wasOpen) entry.querySelector("details")?.setAttribute("open", "");
      }
    }
    this.trim(isAtEnd ? LiveEntries.limit : OlderEntries.limit); // who reads older ones keeps them
    if (isAtEnd) scrollTo({ top: document.body.scrollHeight });
  }

  /** Remove the oldest entries, whole events only, and let the link to older ones begin where they were. */
  trim(limit) {
    const entries = document.getElementsByClassName("entry");
    if (entries.length <= limit) return;
    const seqOf = (entry) => Number(/^e(\d+)/.exec(entry.id)[1]);
    let removed = 0;
    while (entries.length > limit || (entries.length > 0 && seqOf(entries[0]) === removed)) {
      removed = seqOf(entries[0]);
      entries[0].remove();
    }
    let older = document.querySelector("older-entries");
    if (older === null) {
      older = document.createElement("older-entries");
      older.className = "older";
      older.append(Object.assign(document.createElement("a"), { textContent: "Older" }));
    }
    older.querySelector("a").href = `${this.getAttribute("src").split("/events?")[0]}?until=${removed}`;
    if (!older.isConnected) (this.contains(entries[0]) ? this : entries[0]).before(older);
  }
}

/** `<older-entries>` with a link: the entries of the older page take its place when one scrolls to it. */
class OlderEntries extends HTMLElement {
  static limit = 4000; // elements in the page above which the link is only a link

  connectedCallback() {
    this.watcher = new IntersectionObserver((seen) => seen.some((one) => one.isIntersecting) && this.load(), { rootMargin: "800px" });
    this.watcher.observe(this);
  }

  disconnectedCallback() {
    this.watcher.disconnect();
  }

  async load() {
    this.watcher.disconnect();
    if (document.getElementsByClassName("entry").length > OlderEntries.limit) return;
    const response = await fetch(this.querySelector("a").href);
    if (!response.ok || response.redirected) return;
    const older = new DOMParser().parseFromString(await response.text(), "text/html");
    const entries = [...older.querySelectorAll("main .entry")].filter((one) => document.getElementById(one.id) === null);
    const next = older.querySelector("older-entries");
    const below = document.documentElement.scrollHeight - scrollY;
    this.replaceWith(...(next ? [next] : []), ...entries);
    scrollTo({ top: document.documentElement.scrollHeight - below });
  }
}

/** `<search-typed>` with the form of the search: what it finds is shown while one types. */
class SearchTyped extends HTMLElement {
  static delay = 250; // milliseconds without a key before a search

  connectedCallback() {
    this.input = this.querySelector("input[type=search]");
    this.input.addEventListener("input", () => {
      this.request?.abort();
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.search(), SearchTyped.delay);
    });
    this.input.addEventListener("keydown", (event) => event.key === "Escape" && this.input.blur());
  }

  async search() {
    const address = `/search?q=${encodeURIComponent(this.input.value)}`;
    const { signal } = (this.request = new AbortController());
    try {
      const response = await fetch(address, { signal });
      if (!response.ok || response.redirected) throw new Error(`status ${response.status}`);
      this.show(new DOMParser().parseFromString(await response.text(), "text/html"), address);
    } catch {
      if (!signal.aborted) this.say("The search failed. Press Enter to try it again.");
    }
  }

  show(page, address) {
    const found = page.querySelector(".found");
    const count = found.querySelectorAll("article").length;
    this.querySelector(".found").replaceWith(found);
    this.say(this.input.value.trim() ? `${count} found` : "");
    history.replaceState(null, "", address);
  }

  say(text) {
    this.querySelector("[role=status]").textContent = text;
  }
}

// `/` leads to the search, except where one writes
addEventListener("keydown", (event) => {
  const isWriting = event.target.closest?.("input, textarea, select, [contenteditable]");
  if (event.key !== "/" || isWriting || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  const input = document.querySelector("search-typed input");
  if (input) input.focus();
  else location.assign("/search#q");
});

// a page of the conversation shows its end, unless its address names an entry
if (document.querySelector("live-entries") && !location.hash) scrollTo({ top: document.body.scrollHeight });

customElements.define("live-state", LiveState);
customElements.define("older-entries", OlderEntries);
customElements.define("live-entries", LiveEntries);
customElements.define("search-typed", SearchTyped);

