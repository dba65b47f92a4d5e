// The page's words, switches and the parts that do not move. `data` is what the page shows, `words` its languages.

const all = (selector) => [...root.querySelectorAll(selector)];
const one = (selector) => root.querySelector(selector);
const list = (name) => one(`[data-shows-list="${name}"]`);
const state = { lang: words.lang, t: null, pair: null, sample: null };

function say(key, values = {}) {
  const text = words.words[state.lang][key];
  if (text === undefined) throw new Error(`words.json has no ${key} in ${state.lang}`);
  return text.replace(/\{(\w+)\}/g, (_, name) => values[name]);
}

// An element; what is given as text is text, whatever is in it.
function el(tag, attributes = {}, ...children) {
  const found = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === undefined) continue;
    found.setAttribute(name, value === true ? "" : value);
  }
  found.append(...children.filter((child) => child !== null && child !== undefined));
  return found;
}

const tell = (where, text) =>
  all(`[data-shows="${where}"]`).forEach((place) => {
    if (place.textContent !== text) place.textContent = text;
  });

// 0.01234 → 1.23 %, and more digits close to 0 or 1.
function percent(share) {
  const rest = share > 0 && share < 1 ? Math.min(share, 1 - share) : 1;
  const digits = rest >= 1e-3 ? 2 : Math.min(6, -Math.floor(Math.log10(rest)) - 1);
  return `${(100 * share).toFixed(digits)}\u00a0%`;
}
const whole = (x) => (Math.round(x) || 0).toLocaleString(state.lang === "zh" ? "zh-CN" : "en-US");

function floats(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  return new Float32Array(bytes.buffer);
}

const colour = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();

function about() {
  const found = data.about ?? {};
  const parts = [];
  if (found.samples)
    parts.push(say("about_samples", { n: whole(found.samples), k: whole(found.identities), d: found.dim }));
  else if (data.genuine) parts.push(say("about_pairs", { g: whole(data.genuine), a: whole(data.impostor) }));
  if (data.part) parts.push(say(`part_${data.part}`));
  if (data.step) parts.push(say("about_step", { step: whole(data.step) }));
  if (data.eer !== undefined) parts.push(say("about_eer", { eer: percent(data.eer) }));
  if (data.why) parts.push(data.why);
  if (data.date) parts.push(data.date);
  return parts.join(" ");
}

function drawWords() {
  document.documentElement.lang = state.lang === "zh" ? "zh-Hans" : "en";
  document.title = data.title;
  tell("title", data.title);
  tell("about", about());
  for (const place of all("[data-word]")) place.textContent = say(place.dataset.word);
  const sections = all("main > section[id]").filter((section) => !section.hidden);
  const links = sections
    .filter(({ id }) => id !== "live")
    .map(({ id }) => el("a", { href: `#${id}` }, say(`nav_${id}`)));
  if (document.getElementById("explorer")) links.push(el("a", { href: "#explorer" }, say("nav_explorer")));
  list("nav").replaceChildren(...links);
  list("nav").setAttribute("aria-label", say("sections"));
  if (data.numbers) drawNumbers();
  if (data.settings) drawSettings();
  if (data.look) drawLook();
  if (data.live) drawLive();
}

// ---- numbers and settings -------------------------------------------------------------------------------------

const WRITTEN = { share: percent, angle: (x) => `${x.toFixed(1)}°`, number: (x) => show(x) };

function drawNumbers() {
  const interval = data.numbers.some((row) => row.low !== null);
  const head = [say("column_number"), say("column_value"), ...(interval ? [say("column_interval")] : [])];
  const body = data.numbers.map(({ group, key, value, kind, at, low, high }, i) => {
    const text = WRITTEN[kind];
    const cells = [el("th", { scope: "row" }, say(`number_${key}`, { at })), el("td", {}, text(value))];
    if (interval) cells.push(el("td", {}, low === null ? "" : `${text(low)} … ${text(high)}`));
    const first = i === 0 || data.numbers[i - 1].group !== group;
    return el("tr", first ? { class: "hp-first" } : {}, ...cells);
  });
  list("numbers").replaceChildren(table(head, body));
}

function table(head, body) {
  const top = el("thead", {}, el("tr", {}, ...head.map((text) => el("th", { scope: "col" }, text))));
  return el("table", {}, top, el("tbody", {}, ...body));
}

function drawSettings() {
  const rows = Object.entries(data.settings).map(([name, value]) =>
    el("div", {}, el("dt", {}, name), el("dd", {}, value)),
  );
  list("settings").replaceChildren(...rows);
}

// ---- what to look at first ------------------------------------------------------------------------------------

const LISTED = 12;
const placeOf = (row) => data.where?.[row] ?? `${row}`;
const whereOf = (row) => isolated(placeOf(row)); // for a sentence

function picture(row) {
  const url = data.pictures?.[row];
  return url ? el("img", { src: url, alt: "" }) : el("span", { class: "hp-none" });
}

function card(rows, lines, attributes = {}) {
  const pictures = Object.keys(data.pictures ?? {}).length
    ? [el("span", { class: "hp-shots" }, ...rows.map(picture))]
    : [];
  const text = lines.map((line) => el("span", {}, line));
  return el(
    attributes.type ? "button" : "div",
    { class: "hp-card", title: rows.map(whereOf).join(" · "), ...attributes },
    ...pictures,
    el("span", { class: "hp-lines" }, ...text),
  );
}

const cosine = (x) => x.toFixed(3).replace("-", "−");

function drawLook() {
  const { found } = data.look;
  const [duplicates, mislabelled, split] = ["duplicates", "mislabelled", "split"].map((kind) =>
    data.look[kind].slice(0, LISTED),
  );
  const shown = {
    duplicates: duplicates.map((d) =>
      card(d.rows, [
        `${isolated(d.first)} = ${isolated(d.second)} ?`,
        say("look_between", { between: cosine(d.between), within: d.within === null ? "–" : cosine(d.within) }),
      ]),
    ),
    mislabelled: mislabelled.map((m) =>
      card(
        [m.row, m.example],
        [
          whereOf(m.row),
          say("look_other", { label: isolated(m.label), other: isolated(m.other) }),
          say("look_cosines", { own: cosine(m.own), theirs: cosine(m.theirs) }),
        ],
      ),
    ),
    split: split.map((p) =>
      card(p.rows, [
        isolated(p.label),
        say("look_groups", { a: p.sizes[0], b: p.sizes[1] }),
        say("look_across", { across: cosine(p.across) }),
      ]),
    ),
  };
  Object.entries(shown).forEach(([kind, cards], i) => {
    const n = found[i];
    tell(kind, say(kind, { n: n > cards.length ? say("first_of", { k: cards.length, n: whole(n) }) : whole(n) }));
    list(kind).replaceChildren(...(cards.length ? cards : [el("p", { class: "hp-small" }, say("none_found"))]));
  });
}

// A spreadsheet takes a cell that begins with = + - @ for a formula; a space before it makes it text.
const cell = (value) => {
  const text = String(value ?? "");
  const safe = /^[=+\-@\t\r]/.test(text) && Number.isNaN(Number(text)) ? ` ${text}` : text;
  return `"${safe.replace(/"/g, '""')}"`;
};

function csv() {
  const { duplicates, mislabelled, split } = data.look;
  const rows = [["kind", "label", "other", "sample", "own", "other_score"]];
  for (const d of duplicates) rows.push(["duplicate", d.first, d.second, "", d.within, d.between]);
  for (const m of mislabelled) rows.push(["mislabelled", m.label, m.other, placeOf(m.row), m.own, m.theirs]);
  for (const p of split) rows.push(["split", p.label, "", `${p.sizes[0]} + ${p.sizes[1]}`, "", p.across]);
  return rows.map((row) => row.map(cell).join(",") + "\r\n").join("");
}

function save(text, name) {
  const url = URL.createObjectURL(new Blob(["\ufeff", text], { type: "text/csv" }));
  const link = el("a", { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

// ---- start ----------------------------------------------------------------------------------------------------

let frame = 0;
function redraw() {
  frame ||= requestAnimationFrame(() => {
    frame = 0;
    if (data.curve) drawBrowser();
  });
}

function drawAll() {
  if (data.log) drawCurves();
  if (data.angles) drawAngles();
  drawSpace();
  if (data.curve) drawBrowser();
}

const CHOSEN = {
  lang(lang) {
    state.lang = lang;
    drawWords();
    drawAll();
    tellExplorer("lang", lang);
  },
  theme(theme) {
    root.dataset.theme = theme;
    document.documentElement.dataset.theme = theme;
    drawAll();
    tellExplorer("theme", theme);
  },
};

// The explorer below has switches of its own, which follow those of the page.
function tellExplorer(choice, value) {
  const select = document.querySelector(`.hm-explorer [data-choice="${choice}"]`);
  if (!select) return;
  select.value = value;
  select.dispatchEvent(new Event("change"));
}

function needs() {
  for (const place of all("[data-needs]")) {
    const found = data[place.dataset.needs];
    place.hidden = !found || (place.dataset.needs === "log" && Object.keys(found).length === 0);
  }
}

function start() {
  needs();
  for (const select of all("[data-choice]")) {
    select.value = select.dataset.choice === "lang" ? state.lang : "auto";
    select.addEventListener("change", () => CHOSEN[select.dataset.choice](select.value));
  }
  one('[data-do="csv"]').addEventListener("click", () => save(csv(), "look-first.csv"));
  drawWords();
  if (data.curve) startBrowser();
  let width = 0;
  const refit = () => {
    if (width === root.clientWidth) return;
    width = root.clientWidth;
    measure(all("figure svg"));
    drawAll();
  };
  new ResizeObserver(refit).observe(root);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  refit();
  if (data.live) startLive();
}
