// What the dashboard does beside htmx: follow the ledger, hold still under the reader, sliders, keys, texts of charts.
// Every page works without it.
"use strict";
const $ = (what, within = document) => within.querySelector(what);
const $$ = (what, within = document) => [...within.querySelectorAll(what)];
const root = document.documentElement;
const number = new Intl.NumberFormat("en");
const parsed = (text) => new DOMParser().parseFromString(text, "text/html");
const read = async (address) => parsed(await (await fetch(address)).text());

// --- Light and dark.
document.addEventListener("click", (event) => {
  if (!event.target.closest("[data-theme-switch]")) return;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("theme", root.dataset.theme);
});

// --- Following the ledger: one stream for each tab that is seen. A browser opens six to a host, so hidden tabs let go.
let stream;
let asked = 0; // when this page was asked for again last
let waiting; // the timer of the next time
let refreshing = false;

const busy = (region) =>
  $("details.act[open], .peek, #drawer > .peek", region) !== null || $("[name=fingerprint]:checked", region) !== null ||
  (region.contains(document.activeElement) && document.activeElement.matches("input:not([type=checkbox]), textarea, select"));

async function refresh(region) {
  if (refreshing) return;
  refreshing = true;
  asked = Date.now();
  try {
    if (region.dataset.top) await refreshList(region);
    else await refreshWhole(region);
  } finally {
    refreshing = false;
  }
}

async function refreshWhole(region) {
  const open = $$("details[id][open]", region).map((each) => each.id);
  await htmx.ajax("GET", location.pathname + location.search, { target: region, select: "#region", swap: "outerMorph" });
  for (const id of open) document.getElementById(id)?.setAttribute("open", "");
  dress();
}

// A list holds still: its rows change where they stand, one that no longer matches is greyed, and newer ones are announced.
async function refreshList(region) {
  const given = new URLSearchParams(location.search);
  given.set("top", region.dataset.top);
  const answer = await fetch(location.pathname + "?" + given);
  if (!answer.ok) return;
  const made = parsed(await answer.text());
  for (const id of ["newer", "facets"]) {
    const here = document.getElementById(id), there = made.getElementById(id);
    if (here && there && here.innerHTML !== there.innerHTML) here.replaceChildren(...there.childNodes);
  }
  for (const row of $$("tbody tr[id]", region)) {
    const other = made.getElementById(row.id);
    row.classList.toggle("gone", !other);
    $$("td:not(.pick, .peeks)", row).forEach((cell, place) => {
      const next = other && $$("td:not(.pick, .peeks)", other)[place];
      if (next && next.innerHTML !== cell.innerHTML) cell.replaceChildren(...next.childNodes);
    });
  }
}

// The link "n newer: show" has the time of the newest job as `top`. A reload is to show the newest jobs of then, so `top`
// leaves the address.
const opened = new URL(location);
if (opened.searchParams.has("top")) {
  opened.searchParams.delete("top");
  history.replaceState(null, "", opened);
}

// The same for lists that the server sends whole: newer rows wait until somebody asks for them.
function holdStill(made) {
  for (const table of $$("table[data-still]")) {
    const body = $(`#${table.id} tbody`, made);
    if (!body) continue;
    const newer = new Map($$("tr[id]", body).map((row) => [row.id, row]));
    const rows = $$("tbody tr[id]", table).map((row) => {
      const next = newer.get(row.id) || row.cloneNode(true);
      if (!newer.delete(row.id)) next.classList.add("gone");
      return next;
    });
    if (newer.size) {
      // Newer rows push the oldest ones off the end of the list: those are still what they say.
      for (let last = rows.length - 1; last >= 0 && rows[last].classList.contains("gone"); last--) rows[last].classList.remove("gone");
      const more = document.createElement("a");
      Object.assign(more, { className: "button primary newer", href: location.href, textContent: number.format(newer.size) + " newer: show" });
      more.dataset.newer = "";
      body.closest(".scroll, table").before(more);
    }
    body.replaceChildren(...rows);
  }
}
document.addEventListener("htmx:before:swap", (event) => {
  const region = $("#region");
  if (refreshing && region && busy(region)) return event.preventDefault(); // somebody began to type or opened a form meanwhile
  event.detail.tasks.forEach((each) => holdStill(each.fragment));
  const here = $("tr.here, li.here")?.id; // the keys stay on their row
  if (here) event.detail.tasks.forEach((each) => each.fragment.getElementById(here)?.classList.add("here"));
});

function advanced(position) {
  const live = $("#live");
  if (live) {
    live.classList.add("on");
    if ($("#region[data-live]") && !live.classList.contains("behind")) $("span", live).textContent = "#" + number.format(position);
  }
  const region = $("#region[data-live]");
  if (!region || waiting) return;
  waiting = setTimeout(() => {
    waiting = undefined;
    if (!busy(region)) refresh(region);
  }, Math.max(0, 1500 - (Date.now() - asked)));
}

function follow() {
  if (document.hidden || stream || !$("#live")) return;
  stream = new EventSource("/live");
  stream.addEventListener("advanced", (event) => advanced(Number(event.data)));
  stream.addEventListener("error", async () => {
    $("#live")?.classList.remove("on");
    // A browser tries no more where it is refused. A session that ended, or that is to be confirmed, leads to /login.
    const isRefused = stream?.readyState === EventSource.CLOSED && (await fetch("/live", { method: "HEAD" })).status === 401;
    const region = $("#region");
    if (isRefused && !(region && busy(region))) location.reload();
  });
}
function letGo() {
  stream?.close();
  stream = undefined;
}
document.addEventListener("visibilitychange", () => (document.hidden ? letGo() : follow()));
addEventListener("pagehide", letGo);
addEventListener("pageshow", follow);
// --- Time: the panel of the clock, the slider of a job, a range drawn on a chart, and playing the past.
const instant = (at) => new Date(at).toISOString().replace(/\.\d+Z$/, "Z");
const here = (changes) => {
  const address = new URL(location);
  for (const [name, value] of Object.entries(changes)) {
    if (value === null) address.searchParams.delete(name);
    else address.searchParams.set(name, value);
  }
  return address.pathname + address.search;
};
const momentOf = (form, input) => {
  const begin = Date.parse(form.dataset.begin), end = Date.parse(form.dataset.end);
  return Number(input.value) >= 1000 ? null : begin + ((end - begin) * input.value) / 1000;
};
function addressOf(form, name, value) {
  const given = new URLSearchParams();
  for (const each of $$("input[type=hidden]", form)) given.append(each.name, each.value);
  if (value !== null) given.append(name, value);
  const text = given.toString();
  return form.getAttribute("action") + (text ? (form.getAttribute("action").includes("?") ? "&" : "?") + text : "");
}

// A moment that nobody looked at yet takes a while: it is folded from the events up to it.
function going(address) {
  const at = new URL(address, location).searchParams.get("at");
  if (!at || at === new URL(location).searchParams.get("at")) return;
  const bar = $("#loading");
  $("span", bar).textContent = "Folding the ledger up to " + at.slice(11, 19) + " …";
  bar.hidden = false;
  $("#clock").removeAttribute("open");
}
const go = (address) => (going(address), location.assign(address));
document.addEventListener("click", (event) => {
  const link = event.target.closest("a[href]");
  if (link && !event.defaultPrevented && !event.ctrlKey && !event.metaKey && link.origin === location.origin) going(link.href);
});
document.addEventListener("submit", (event) => {
  const at = event.target.matches(".goto") && event.target.elements.at.value;
  if (at) going("?at=" + encodeURIComponent(at.length > 11 ? at : "           " + at));
});
addEventListener("pageshow", () => ($("#loading").hidden = true));

document.addEventListener("toggle", (event) => {
  if (event.target.id === "clock" && event.target.open) htmx.trigger("#density", "opened");
  if (event.target.matches("details.act") && event.target.open) beside(event.target);
}, true);
// The form of an act stands at its button; without script, in the corner.
function beside(act) {
  const form = $(":scope > .form", act), button = $("summary", act).getBoundingClientRect();
  if (innerWidth < 820) return;
  const high = form.offsetHeight, wide = form.offsetWidth;
  Object.assign(form.style, {
    right: "auto",
    bottom: "auto",
    left: Math.max(12, Math.min(button.right - wide, innerWidth - wide - 12)) + "px",
    top: Math.max(12, button.bottom + high + 12 < innerHeight ? button.bottom + 6 : Math.min(button.top - high - 6, innerHeight - high - 12)) + "px",
  });
  $("input:not([type=hidden]), textarea", form)?.focus();
}
// While the slider moves, the counts of that minute come from a small table; letting go shows the exact rows.
let levels;
let shown = 0;
async function showLevels(form, at, said) {
  const turn = ++shown;
  if (!levels) levels = fetch("/levels").then((answer) => (answer.ok ? answer.json() : null));
  const table = await levels;
  if (!table || turn !== shown) return;
  let low = 0, high = table.minutes.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (table.minutes[middle] <= Math.floor(at / 60000)) low = middle + 1;
    else high = middle;
  }
  const counts = low ? ["running", "queued", "dead_lettered"].map((name, place) => number.format(table.states[name][low - 1]) + [" running", " queued", " dead"][place]).join(" · ") : "not known";
  $("output", form).textContent = said + " · " + counts;
}
document.addEventListener("input", (event) => {
  const form = event.target.closest(".slider");
  if (!form || event.target.type !== "range") return;
  if (form.dataset.stops) {
    $("output", form).textContent = "event #" + number.format(form.dataset.stops.split(",")[event.target.value]);
    return;
  }
  const at = momentOf(form, event.target);
  const said = at === null ? "now" : instant(at).slice(11, 19);
  $("output", form).textContent = said;
  event.target.setAttribute("aria-valuetext", said);
  if (at !== null) showLevels(form, at, said);
});
document.addEventListener("change", async (event) => {
  const form = event.target.closest(".slider");
  if (!form || event.target.type !== "range") return;
  if (!form.dataset.stops) {
    const at = momentOf(form, event.target);
    return go(addressOf(form, "at", at === null ? null : instant(at)));
  }
  const stops = form.dataset.stops.split(","), last = Number(event.target.value) === stops.length - 1;
  const address = last ? here({ sequence: null, at: null }) : here({ sequence: stops[event.target.value], at: null });
  await swap(address);
  $(".slider input[type=range]")?.focus({ preventScroll: true });
});
async function swap(address) {
  const made = await read(address);
  const bar = $(".past-bar"), next = $(".past-bar", made);
  if (bar && next) bar.replaceWith(next);
  else if (next) $("main").before(next);
  else bar?.remove();
  document.body.classList.toggle("past", made.body.classList.contains("past"));
  document.title = made.title;
  htmx.process ? $("#region").replaceWith($("#region", made)) : location.assign(address);
  htmx.process?.($("#region"));
  history.replaceState(null, "", address);
  dress();
}

// Drawing over a chart chooses its range; a click on a bar goes there.
let brush;
document.addEventListener("pointerdown", (event) => {
  const hit = event.target.closest?.(".plot .hit[data-from]");
  if (hit) brush = { plot: hit.closest(".plot"), first: hit, last: hit };
});
document.addEventListener("pointerover", (event) => {
  const hit = brush && event.target.closest?.(".hit[data-from]");
  if (!hit || hit.closest(".plot") !== brush.plot) return;
  brush.last = hit;
  const [low, high] = [brush.first, hit].sort((one, other) => one.dataset.from.localeCompare(other.dataset.from));
  for (const each of $$(".hit", brush.plot)) each.classList.toggle("brush", each.dataset.from >= low.dataset.from && each.dataset.to <= high.dataset.to);
});
document.addEventListener("pointerup", () => {
  if (!brush) return;
  const { first, last } = brush;
  brush = undefined;
  const [low, high] = [first, last].sort((one, other) => one.dataset.from.localeCompare(other.dataset.from));
  const wide = (Date.parse(high.dataset.to) - Date.parse(low.dataset.from)) / 1000, at = Date.parse(high.dataset.to) < Date.now() ? high.dataset.to : null;
  const range = [["15m", 900], ["1h", 3600], ["6h", 21600], ["24h", 86400]].find((each) => wide <= each[1])?.[0] ?? "7d";
  const form = first.closest("#density") && $("#density .slider");
  if (form) go(addressOf(form, "at", at));
  else go(here(first === last ? { at, sequence: null } : { at, sequence: null, range }));
});

// Playing: a step each second and a half, until the present or a key.
let playing;
function play(button) {
  if (playing) {
    clearTimeout(playing);
    playing = undefined;
  } else playing = setTimeout(on, 300);
  button.setAttribute("aria-pressed", String(Boolean(playing)));
  button.textContent = playing ? "❚❚ Pause" : "▶ Play";
}
async function on() {
  const link = $(".past-bar [data-on]");
  if (!link) return;
  await swap(link.href);
  const button = $(".past-bar [data-play]");
  if (!button) return;
  button.setAttribute("aria-pressed", "true");
  button.textContent = "❚❚ Pause";
  playing = setTimeout(on, 1500);
}

// --- Words that could follow in the field for finding; with Enter the question is asked.
const field = $(".top .find input[name=q]"), offered = $("#suggest");
const options = () => $$("[role=option]", offered);
function offer(open) {
  offered.hidden = !open || !options().length;
  field.setAttribute("aria-expanded", String(!offered.hidden));
}
function take(option) {
  if (!option.dataset.text) return go(option.href);
  field.value = option.dataset.text;
  field.focus();
  field.dispatchEvent(new Event("input", { bubbles: true }));
}
document.addEventListener("htmx:after:swap", () => document.activeElement === field && offer(true));
field?.addEventListener("keydown", (event) => {
  // What is offered may still be about what stood there before.
  const list = $("[data-for]", offered)?.dataset.for === field.value ? options() : [], at = list.findIndex((each) => each.getAttribute("aria-selected") === "true");
  if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    event.preventDefault();
    if (offered.hidden || !list.length) return offer(true);
    list[at]?.removeAttribute("aria-selected");
    const next = list[(at + (event.key === "ArrowDown" ? 1 : list.length - 1) + (at < 0 && event.key === "ArrowUp" ? 1 : 0)) % list.length];
    next?.setAttribute("aria-selected", "true");
    next?.scrollIntoView({ block: "nearest" });
  } else if ((event.key === "Enter" || event.key === "Tab") && !offered.hidden && (at >= 0 || (event.key === "Tab" && list.length && field.value))) {
    event.preventDefault();
    take(list[Math.max(0, at)]);
  } else if (event.key === "Escape") {
    event.preventDefault(); // else the browser empties the field
    offered.hidden ? field.blur() : offer(false);
  }
});
offered?.addEventListener("pointerdown", (event) => {
  const option = event.target.closest("[role=option]");
  if (option?.dataset.text) {
    event.preventDefault();
    take(option);
  }
});
field?.addEventListener("blur", () => setTimeout(() => offer(false), 160));

// --- Looking into a row, the drawer beside a timeline, lines that open.
async function peek(button) {
  const row = button.closest("tr, li"), open = button.getAttribute("aria-expanded") === "true";
  button.setAttribute("aria-expanded", String(!open));
  if (open) return row.matches("tr") ? row.nextElementSibling.remove() : $(".peek", row).remove();
  const nodes = (await read(button.dataset.peek)).body.childNodes;
  if (row.matches("tr")) {
    const made = document.createElement("tr");
    made.className = "peeked";
    made.append(Object.assign(document.createElement("td"), { colSpan: row.cells.length }));
    made.firstChild.append(...nodes);
    row.after(made);
  } else row.append(...nodes);
}
document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-peek]");
  if (button) return peek(button);
  if (event.target.closest("[data-play]")) return play(event.target.closest("[data-play]"));
  const link = event.target.closest("a[data-swap], a[data-drawer]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  if (link.matches("[data-swap]")) return swap(link.href);
  const drawer = $("#drawer");
  drawer.replaceChildren(...(await read(link.pathname + "/peek" + link.search)).body.childNodes);
  drawer.closest(".timeline-card").classList.add("with-drawer");
  for (const line of $$(".timeline .here")) line.classList.remove("here");
  link.closest(".line").classList.add("here");
});

// --- Views of one's own: a name for a question, kept in this browser. An address does the same without.
const kept = () => JSON.parse(localStorage.getItem("views") || "[]");
function dress() {
  for (const each of $$("[data-peek], [data-play], [data-save-view]")) each.hidden = false;
  const place = $("#own-views");
  if (!place) return;
  place.replaceChildren(...kept().map(([name, text]) => Object.assign(document.createElement("a"), { href: "/jobs?q=" + encodeURIComponent(text), textContent: name })));
}
document.addEventListener("click", (event) => {
  if (!event.target.closest("[data-save-view]")) return;
  const name = prompt("Name of this view", field.value);
  if (!name) return;
  localStorage.setItem("views", JSON.stringify([...kept().filter((each) => each[0] !== name), [name, field.value]].slice(-12)));
  dress();
});

// --- Choosing rows.
document.addEventListener("change", (event) => {
  const name = event.target.dataset.all || (event.target.matches("[data-all]") ? "job" : event.target.name);
  if (!["job", "fingerprint"].includes(name)) return;
  if (event.target.matches("[data-all]")) for (const box of $$("[name=" + name + "]")) box.checked = event.target.checked;
  const chosen = $$("[name=" + name + "]:checked"), bulk = $("[data-bulk]");
  bulk?.classList.toggle("chosen", chosen.length > 0);
  const jobs = chosen.reduce((sum, each) => sum + Number(each.dataset.jobs || 1), 0), count = $("[data-count]");
  if (!count) return;
  count.textContent = !chosen.length ? (name === "job" ? "choose rows, or plan for all that match" : "choose causes") : name === "job" ? number.format(jobs) + " chosen" : number.format(chosen.length) + (chosen.length === 1 ? " cause, " : " causes, ") + number.format(jobs) + " jobs";
});

// --- What a mark of a chart says. The title is taken away meanwhile, so that the browser does not say it twice.
const tip = $("#tip");
let told;
function tell(mark, event) {
  if (told && told.mark !== mark) {
    told.mark.prepend(told.title);
    told = undefined;
  }
  if (mark && !told) {
    told = { mark, title: $(":scope > title", mark) };
    tip.textContent = told.title.textContent;
    told.title.remove();
  }
  tip.hidden = !told;
  if (!told) return;
  tip.style.left = Math.max(6, Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)) + "px";
  tip.style.top = Math.max(6, Math.min(event.clientY + 16, innerHeight - tip.offsetHeight - 8)) + "px";
}
document.addEventListener("pointermove", (event) => {
  const mark = event.target.closest?.(".plot *, .track *, .share *");
  tell(mark && (mark === told?.mark || $(":scope > title", mark)) ? mark : null, event);
});

// --- Keys.
const places = { o: "/", j: "/jobs", r: "/runs", d: "/dead-letters", q: "/queues", t: "/tasks", p: "/tenants", s: "/schedules", l: "/limits", w: "/workers", a: "/acts" };
let leads = false;
function move(step) {
  const rows = $$("tbody tr[tabindex], .issues > li[tabindex]");
  const here = rows.findIndex((row) => row.classList.contains("here"));
  const row = rows[Math.min(rows.length - 1, Math.max(0, here + step))];
  if (!row) return;
  rows[here]?.classList.remove("here");
  row.classList.add("here");
  row.focus({ preventScroll: true });
  row.scrollIntoView({ block: "nearest" });
}
const keys = {
  "/": () => $(".find input")?.focus(),
  "?": () => $("#keys").showModal(),
  g: () => (leads = true),
  j: () => move(1),
  k: () => move(-1),
  x: () => $(".here input[type=checkbox]")?.click(),
  o: () => $(".here [data-peek]")?.click(),
  t: () => $("#clock > summary").click(),
  "[": () => $(".past-bar [data-back]")?.click(),
  "]": () => $(".past-bar [data-on]")?.click(),
  n: () => $("[data-newer]")?.click(),
  Enter: (event) => event.target.matches("tr, li[tabindex]") && ($("a.open", event.target) || $("a", event.target))?.click(),
  Escape: () => {
    $("tr.here, li.here")?.classList.remove("here");
    for (const each of $$("details.act[open], #clock[open]")) each.removeAttribute("open");
    if ($("#drawer > .peek")) {
      $("#drawer").replaceChildren();
      $(".with-drawer").classList.remove("with-drawer");
    }
  },
};
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") keys.Escape();
  const typing = event.target.matches("input:not([type=checkbox]):not([type=range]), textarea, select");
  if (event.metaKey || event.ctrlKey || event.altKey || typing || $("dialog[open]")) return;
  if (leads) {
    leads = false;
    const entry = $$(".side > nav a").find((each) => each.pathname === places[event.key]);
    if (entry) go(entry.href); // it carries the moment
    return;
  }
  if (!keys[event.key]) return;
  if (event.key === "/" || event.key === "?") event.preventDefault();
  keys[event.key](event);
});

dress();
follow();
