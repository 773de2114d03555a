// What the dashboard does beside htmx: follow the ledger, hold still under the reader, sliders, keys, texts of charts.
// Every page works without it.
"use strict";
const $ = (what, within = document) => within.querySelector(what);
const $$ = (what, within = document) => [...within.querySelectorAll(what)];
const root = document.documentElement;
const number = new Intl.NumberFormat("en");

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
  $("details.act[open]", region) !== null ||
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
}

// A list holds still: its rows change where they stand, one that no longer matches is greyed, and newer ones are announced.
async function refreshList(region) {
  const given = new URLSearchParams(location.search);
  given.set("top", region.dataset.top);
  const answer = await fetch(location.pathname + "?" + given);
  if (!answer.ok) return;
  const made = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const id of ["newer", "listhead", "facets"]) {
    const here = document.getElementById(id), there = made.getElementById(id);
    if (here && there && here.innerHTML !== there.innerHTML) here.replaceChildren(...there.childNodes);
  }
  for (const row of $$("tbody tr[id]", region)) {
    const other = made.getElementById(row.id);
    row.classList.toggle("gone", !other);
    $$("td:not(.pick)", row).forEach((cell, place) => {
      const next = other && $$("td:not(.pick)", other)[place];
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
document.addEventListener("htmx:before:swap", (event) => event.detail.tasks.forEach((each) => holdStill(each.fragment)));

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
// --- Time: of the fleet by the clock, of a job by its events.
const instant = (at) => new Date(at).toISOString().replace(/\.\d+Z$/, "Z");
const momentOf = (form, input) => {
  const begin = Date.parse(form.dataset.begin), end = Date.parse(form.dataset.end);
  return Number(input.value) >= 1000 ? null : begin + ((end - begin) * input.value) / 1000;
};
function addressOf(form, name, value) {
  const given = new URLSearchParams();
  for (const each of $$("input[type=hidden]", form)) given.append(each.name, each.value);
  if (value !== null) given.append(name, value);
  const text = given.toString();
  return form.getAttribute("action") + (text ? "?" + text : "");
}

// While the slider moves, the counts of that minute come from a small table; letting go shows the exact rows.
let levels;
let shown = 0;
async function showLevels(form, at) {
  const turn = ++shown;
  if (!levels) levels = fetch("/levels").then((answer) => (answer.ok ? answer.json() : null));
  const table = await levels;
  if (!table || turn !== shown) return;
  const minute = Math.floor(at / 60000);
  let low = 0, high = table.minutes.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (table.minutes[middle] <= minute) low = middle + 1;
    else high = middle;
  }
  for (const cell of $$("[data-level]")) {
    const row = table.states[cell.dataset.level];
    // Before the end of the ledger's first minute no row tells what there was.
    if (row) cell.textContent = low ? number.format(row[low - 1]) : "–";
  }
}
document.addEventListener("input", (event) => {
  const form = event.target.closest(".slider");
  if (!form || event.target.type !== "range") return;
  if (form.matches("[data-fleet]")) {
    const at = momentOf(form, event.target);
    const said = at === null ? "now" : instant(at).replace("T", " ").replace("Z", " UTC");
    $("output", form).textContent = said;
    event.target.setAttribute("aria-valuetext", said);
    if (at !== null) showLevels(form, at);
  } else {
    const stop = form.dataset.stops.split(",")[event.target.value];
    $("output", form).textContent = "event #" + number.format(stop);
  }
});
document.addEventListener("change", async (event) => {
  const form = event.target.closest(".slider");
  if (!form || event.target.type !== "range") return;
  if (form.matches("[data-fleet]")) {
    const at = momentOf(form, event.target);
    location.assign(addressOf(form, "at", at === null ? null : instant(at)));
    return;
  }
  const stops = form.dataset.stops.split(","), last = Number(event.target.value) === stops.length - 1;
  const address = addressOf(form, "sequence", last ? null : stops[event.target.value]);
  await htmx.ajax("GET", address, { target: "#region", select: "#region", swap: "outerMorph" });
  history.replaceState(null, "", address);
  $(".slider input[type=range]")?.focus({ preventScroll: true });
});
document.addEventListener("click", (event) => {
  const at = event.target.dataset?.at;
  const form = $(".slider[data-fleet]");
  if (at && form) location.assign(Date.parse(at) > Date.now() ? addressOf(form, "at", null) : addressOf(form, "at", at));
});

// --- Choosing rows.
document.addEventListener("change", (event) => {
  if (event.target.matches("[data-all]")) for (const box of $$("[name=job]")) box.checked = event.target.checked;
  else if (!event.target.matches("[name=job]")) return;
  const chosen = $$("[name=job]:checked").length;
  const count = $("[data-count]");
  if (count) count.textContent = chosen ? number.format(chosen) + " chosen" : "choose";
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
  const mark = event.target.closest?.(".plot *, .graph .node, .share *");
  tell(mark && (mark === told?.mark || $(":scope > title", mark)) ? mark : null, event);
});

// --- Keys.
const places = { o: "/", j: "/jobs", r: "/runs", d: "/dead-letters", q: "/queues", s: "/schedules", l: "/limits", w: "/workers", a: "/acts" };
let going = false;
function move(step) {
  const rows = $$("tbody tr[tabindex]");
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
  g: () => (going = true),
  j: () => move(1),
  k: () => move(-1),
  x: () => $("tr.here input[type=checkbox]")?.click(),
  n: () => $("[data-newer]")?.click(),
  Enter: (event) => event.target.matches("tr") && $("a", event.target)?.click(),
  Escape: () => {
    $("tr.here")?.classList.remove("here");
    $("details.act[open]")?.removeAttribute("open");
  },
};
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") keys.Escape();
  const typing = event.target.matches("input:not([type=checkbox]):not([type=range]), textarea, select");
  if (event.metaKey || event.ctrlKey || event.altKey || typing || $("dialog[open]")) return;
  if (going) {
    going = false;
    if (places[event.key]) location.assign(places[event.key]);
    return;
  }
  if (!keys[event.key]) return;
  if (event.key === "/" || event.key === "?") event.preventDefault();
  keys[event.key](event);
});

follow();
