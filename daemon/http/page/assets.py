"""The style and the script of the page, and the policy that allows these two and nothing else."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from typing import Final

STYLE: Final = """
:root { color-scheme: light dark; --back: #ffffff; --card: #f6f7f9; --text: #1b1f24; --dim: #57606a; --line: #d0d7de;
  --memory: #0060a8; --disk: #e69f00; --fleet: #42bd73; --missed: #c9ced6; --curve: #a04000; --bad: #b3261e;
  --track: #e1e4e8; }
@media (prefers-color-scheme: dark) { :root { --back: #0f1216; --card: #171b21; --text: #e6e9ee; --dim: #9aa4af;
  --line: #343b44; --memory: #2f86d6; --disk: #f0b429; --fleet: #50e5c2; --missed: #545d68; --curve: #ff9d5c;
  --bad: #ff8a80; --track: #2a3038; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 100rem; padding: .75rem; background: var(--back); color: var(--text);
  font: 15px/1.45 system-ui, sans-serif; }
header { display: flex; flex-wrap: wrap; gap: .25rem 1rem; align-items: baseline; padding: 0 .25rem .5rem; }
h1 { font-size: 1.25rem; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1rem; margin: 0 0 .5rem; }
main { display: grid; gap: .75rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 27rem), 1fr)); }
section { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: .75rem; min-width: 0;
  container-type: inline-size; }
section.wide { grid-column: 1 / -1; }
p { margin: .35rem 0; overflow-wrap: anywhere; }
ul { list-style: none; margin: .35rem 0; padding: 0; }
dl { display: grid; grid-template-columns: auto 1fr; gap: .15rem .75rem; margin: .35rem 0; }
dt { color: var(--dim); }
dd { margin: 0; overflow-wrap: anywhere; }
.dim, header span { color: var(--dim); }
.bad { color: var(--bad); font-weight: 600; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; min-width: min(100%, 50rem); font-variant-numeric: tabular-nums; }
th, td { padding: .2rem 0 .2rem .75rem; text-align: right; vertical-align: top; border-bottom: 1px solid var(--line); }
thead th { color: var(--dim); font-weight: 400; white-space: nowrap; }
td { white-space: nowrap; }
th:first-child { text-align: left; font-weight: 400; min-width: 8rem; padding-left: 0; overflow-wrap: anywhere; }
@container (max-width: 38rem) {
  thead { position: absolute; clip-path: inset(50%); }
  table, tbody, tr, th, td { display: block; min-width: 0; }
  tr { border-bottom: 1px solid var(--line); padding: .3rem 0; }
  th, td { border: 0; padding: 0; }
  td { display: flex; justify-content: space-between; gap: 1rem; white-space: normal; }
  td::before { content: attr(data-label); color: var(--dim); text-align: left; } }
.event { border-bottom: 1px solid var(--line); padding: .3rem 0; }
svg.chart { display: block; width: 100%; max-width: 40rem; height: auto; }
svg.bar { display: block; width: 100%; height: .7rem; border-radius: .2rem; margin: .15rem 0; }
svg.swatch { width: .8em; height: .8em; margin-right: .4em; }
svg text { fill: var(--dim); font-size: 13px; }
.memory { fill: var(--memory); } .disk { fill: var(--disk); } .fleet { fill: var(--fleet); }
.missed { fill: var(--missed); } .track { fill: var(--track); }
.grid { stroke: var(--line); } .mark { stroke: var(--dim); stroke-dasharray: 2 3; }
.ceiling { stroke: var(--dim); stroke-dasharray: 6 4; }
.curve { stroke: var(--curve); stroke-width: 2.5; fill: none; } .found { fill: var(--memory); }
rect.curve { fill: var(--curve); stroke: none; }
button { font: inherit; padding: .1rem .7rem; }
:focus-visible { outline: 3px solid var(--memory); outline-offset: 2px; }
"""

SCRIPT: Final = """
"use strict";
const button = document.getElementById("pause"), state = document.getElementById("state");
const name = (paused) => (button.textContent = paused ? "Resume" : "Pause");
let paused = false, refreshed = new Date();
async function refresh() {
  if (paused || document.hidden || !getSelection().isCollapsed) return;
  try {
    const answer = await fetch(location.origin + location.pathname, { cache: "no-store" });
    if (!answer.ok) throw new Error(`${answer.status} ${answer.statusText}`);
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main");
    if (fresh === null) throw new Error("the answer is no page");
    if (paused) return;
    const focused = document.activeElement?.id;
    const scrolled = [...document.querySelectorAll(".scroll")].map((each) => [each.id, each.scrollLeft]);
    document.querySelector("main").replaceWith(fresh);
    for (const [id, left] of scrolled) document.getElementById(id)?.scrollTo({ left });
    if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
    refreshed = new Date();
    state.textContent = "";
  } catch (error) {
    state.textContent = `Not refreshed since ${refreshed.toLocaleTimeString()}: ${error.message}`;
  }
}
button.addEventListener("click", () => { name(paused = !paused); refresh(); });
button.hidden = false;
setInterval(refresh, 10000);
"""


def _digest(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


HEADERS: Final = (
    (
        "Content-Security-Policy",
        f"default-src 'none'; style-src {_digest(STYLE)}; script-src {_digest(SCRIPT)}; connect-src 'self';"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
)
"""A style or a script that a name of a client might bring has another digest, so that no browser runs it."""
