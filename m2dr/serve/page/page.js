// The page of m2dr serve: search at any cut, and see what the cut changes and saves.
// Texts of documents are only ever set as textContent.
"use strict";

const K = 10; // documents that are asked for; overlap is measured on as many
const TYPING_MS = 200; // a query is sent when no key was pressed for so long
const SLIDING_MS = 60;
const BUSY_MS = 150; // a faster answer shows no progress bar
const EXAMPLES = 4;
const MOVE_MS = 280; // of a document that changes its rank
// viridis, the palette of the figures (m2dr/evaluation/figures.py), at equal steps
const PALETTE = [
  "#440154", "#471365", "#482475", "#463480", "#414487", "#3b528b", "#355f8d", "#2f6c8e",
  "#2a788e", "#25848e", "#21918c", "#1e9c89", "#22a884", "#2fb47c", "#44bf70", "#5ec962",
  "#7ad151", "#9bd93c", "#bddf26", "#dfe318", "#fde725",
];
const BRIGHT = 0.179; // the luminance from which black text has more contrast than white

const at = (id) => document.getElementById(id);
const BOXES = [...document.querySelectorAll("#search [type=checkbox]")].map((box) => box.id); // what a search may ask
const WORDS = 6; // shares that a hit shows, at most
const state = { query: "", filter: "", index: null, layer: 0, dim: 0 };
let indexes = [];
let answer = null; // the last answer that was drawn
let asked = 0; // number of the last request; answers to earlier ones are dropped
let underway = null; // its AbortController
let timer = 0;
let again = start; // what "Try again" does

// ---------------------------------------------------------------- elements

/** Return a new element with properties, and with texts or elements in it. */
function element(name, properties = {}, ...inside) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...inside);
  return made;
}

function remember(store, key, value) {
  try {
    if (value === undefined) return store().getItem(key);
    store().setItem(key, value);
  } catch { /* storage may be switched off */ }
  return null;
}

// ---------------------------------------------------------------- numbers

const plain = new Intl.NumberFormat("en");

/** Return 1234567 as "1.23 M". */
function short(value) {
  const units = [[1e12, " T"], [1e9, " G"], [1e6, " M"], [1e4, " k"]];
  const [size, unit] = units.find(([size]) => value >= size) ?? [1, ""];
  if (size === 1) return plain.format(value);
  const scaled = size === 1e4 ? value / 1e3 : value / size;
  return Number(scaled.toPrecision(3)) + unit;
}

/** Return milliseconds with about three digits. */
function ms(value) {
  return value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2);
}

function percent(part, whole) {
  const share = (100 * part) / whole;
  return `${share < 1 && share > 0 ? share.toPrecision(1) : Math.round(share)} %`;
}

/** Return a measured value as the tables of m2dr write it: four decimals, no leading zero. */
function score(value) {
  return value.toFixed(4).replace(/^0\./, ".");
}

// ---------------------------------------------------------------- state

const current = () => indexes.find((one) => one.name === state.index) ?? null;
const cutName = (layer, dim) => `L${layer}D${dim}`;

function fullCut(index) {
  const [, layer, dim] = /^L(\d+)D(\d+)$/.exec(index.full);
  return { layer: Number(layer), dim: Number(dim) };
}

function nearest(values, wanted) {
  return values.reduce((best, one) => (Math.abs(one - wanted) < Math.abs(best - wanted) ? one : best));
}

/** Read the state from the address, with the middle of what there is where it says nothing. */
function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  const index = indexes.find((one) => one.name === given.get("index")) ?? indexes[0];
  const number = (name, values) =>
    given.has(name) && given.get(name) !== "" && Number.isFinite(Number(given.get(name)))
      ? nearest(values, Number(given.get(name)))
      : values[Math.floor((values.length - 1) / 2)];
  state.index = index.name;
  state.query = given.get("q") ?? "";
  state.filter = index.fields?.length ? given.get("filter") ?? "" : "";
  for (const name of BOXES) state[name] = given.has(name) ? given.get(name) === "1" : index[name] > 0;
  state.layer = number("layer", index.layers);
  state.dim = number("dim", index.dims);
}

function writeAddress() {
  const kept = new URLSearchParams();
  if (state.query) kept.set("q", state.query);
  kept.set("layer", state.layer);
  kept.set("dim", state.dim);
  if (indexes.length > 1) kept.set("index", state.index);
  if (state.filter) kept.set("filter", state.filter);
  for (const name of BOXES) if (state[name] !== current()[name] > 0) kept.set(name, state[name] ? 1 : 0);
  history.replaceState(null, "", `#${kept}`);
}

// ---------------------------------------------------------------- requests

/** Ask the server and return its JSON; an error holds the sentence that is shown. */
async function ask(path, body, signal) {
  const token = remember(() => sessionStorage, "m2dr-token");
  const headers = token ? { authorization: `Bearer ${token}` } : {};
  const options = { headers, signal };
  if (body) {
    headers["content-type"] = "application/json";
    Object.assign(options, { method: "POST", body: JSON.stringify(body) });
  }
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error(`The server at ${location.host} does not answer; it may have been stopped.`);
  }
  const said = await response.json().catch(() => null);
  if (response.ok && said !== null) return said;
  const problem = new Error(sentence(said) ?? `The server answered with status ${response.status}.`);
  problem.status = response.status;
  throw problem;
}

/** Return the sentence of an error's JSON. */
function sentence(said) {
  const found = said?.error?.message ?? said?.error ?? said?.message ?? said?.detail;
  if (Array.isArray(found)) return found.map((one) => one.msg ?? String(one)).join("; ");
  return typeof found === "string" && found ? found : null;
}

function request(more = {}) {
  return {
    query: state.query, k: K, layer: state.layer, dim: state.dim, index: state.index,
    filter: state.filter || null,
    ...Object.fromEntries(BOXES.map((name) => [name, state[name] && (current()[name] || true)])), ...more,
  };
}

function searchSoon(wait) {
  clearTimeout(timer);
  timer = setTimeout(search, wait);
}

/** Search at the cut and through the full model; only the answer to the last request is drawn. */
async function search() {
  clearTimeout(timer);
  underway?.abort();
  const number = ++asked;
  if (!state.query.trim()) return clear();
  underway = new AbortController();
  const slow = setTimeout(() => busy(true), BUSY_MS);
  try {
    const said = await ask("search", request({ compare: true }), underway.signal);
    if (number !== asked) return;
    problem(null);
    draw(said);
  } catch (error) {
    if (number !== asked || error.name === "AbortError") return;
    clear(); // a ranking of another query would look like the answer
    problem(error, search);
  } finally {
    clearTimeout(slow);
    if (number === asked) busy(false);
  }
}

function busy(on) {
  at("busy").hidden = !on;
  at("results").setAttribute("aria-busy", on);
}

/** Show what went wrong as one sentence, or nothing. */
function problem(error, retry) {
  at("problem").hidden = !error || error.status === 401;
  at("token-form").hidden = error?.status !== 401;
  if (!error) return;
  again = retry;
  at("problem").firstElementChild.textContent = error.message;
  if (error.status !== 401) return;
  at("token-form").querySelector("span").textContent = error.message;
  at("token").select();
}

// ---------------------------------------------------------------- the cut and its costs

function cost(index, layer, dim) {
  return index.costs.find((one) => one.layer === layer && one.dim === dim) ?? null;
}

function tile(id, text, small, share = null) {
  const holder = at(id);
  holder.querySelector("b").textContent = text;
  holder.querySelector("small").textContent = small;
  holder.querySelector(".bar")?.style.setProperty("--share", share === null ? 0 : Math.min(share, 1));
}

/** Draw all that is known of the cut before any search. */
function drawCut() {
  const index = current();
  const full = fullCut(index);
  for (const [name, values, unit] of [["layer", index.layers, full.layer], ["dim", index.dims, full.dim]]) {
    const place = values.indexOf(state[name]);
    const slider = at(name);
    slider.max = values.length - 1;
    slider.value = place;
    slider.setAttribute("aria-valuetext", `${state[name]} of ${unit}`);
    slider.style.setProperty("--share", values.length > 1 ? place / (values.length - 1) : 1);
    at(`${name}-shown`).textContent = `${state[name]} of ${unit}`;
    [...at(`${name}-ticks`).children].forEach((tick, i) => tick.classList.toggle("here", i === place));
  }
  at("cut-id").textContent = cutName(state.layer, state.dim);
  drawCosts(index, full);
  drawQuality(index, full);
  at("curl").textContent = curl();
}

function drawCosts(index, full) {
  const here = cost(index, state.layer, state.dim);
  const whole = cost(index, full.layer, full.dim);
  const facts = [["adds", "multiply_adds", short], ["bytes", "bytes_per_document", plain.format]];
  for (const [id, name, format] of facts) {
    if (!here) tile(id, "–", "not known of this cut");
    else if (!whole) tile(id, format(here[name]), "");
    else {
      const share = here[name] / whole[name];
      tile(id, format(here[name]), `${percent(here[name], whole[name])} of ${format(whole[name])}`, share);
    }
  }
}

function drawQuality(index, full) {
  at("quality").hidden = !index.grid;
  if (!index.grid) return;
  const value = (layer, dim) =>
    index.grid.cells.find((one) => one.layer === layer && one.dim === dim)?.value ?? null;
  const here = value(state.layer, state.dim);
  const whole = value(full.layer, full.dim);
  const other = measuredOtherwise(index);
  at("map-about").textContent = `${other && `${other}: `}${measuredOn(index.grid)}layers down, dims across.`;
  at("quality").querySelector("dt").textContent = index.grid.measure;
  if (other) tile("quality", "–", other);
  else if (here === null) tile("quality", "–", "not measured at this cut");
  else if (!whole) tile("quality", score(here), "");
  else tile("quality", score(here), `${percent(here, whole)} of ${score(whole)}`, here / whole);
  for (const cell of at("grid").querySelectorAll("tbody td")) {
    const on = Number(cell.dataset.layer) === state.layer && Number(cell.dataset.dim) === state.dim;
    cell.tabIndex = on ? 0 : -1;
    cell.setAttribute("aria-selected", on);
  }
}

/** Return what the measured ranking lacks, or has, of the one that is asked for; "" if nothing. */
function measuredOtherwise(index) {
  const told = [["hybrid", "BM25"], ["query_mix", "words in queries"]]
    .filter(([name]) => state[name] !== index[name] > 0)
    .map(([name, what]) => `${state[name] ? "without" : "with"} ${what}`);
  if (state.filter) told.push("without a filter");
  return told.length ? `Measured ${told.join(" and ")}` : "";
}

function drawTicks(name, values) {
  const each = Math.ceil(values.length / 9);
  const ticks = values.map((value, i) => {
    const last = i === values.length - 1;
    const shown = last || (i % each === 0 && values.length - 1 - i >= each);
    return element("span", { textContent: shown ? value : "" });
  });
  at(`${name}-ticks`).replaceChildren(...ticks);
}

/** Return the search of this cut as a command of a shell; a token is left to a variable. */
function curl() {
  const body = JSON.stringify(request({ query: state.query || "your query" }));
  const token = remember(() => sessionStorage, "m2dr-token");
  return [
    `curl -s ${new URL("search", location.href)}`,
    "-H 'content-type: application/json'",
    ...(token ? ['-H "authorization: Bearer $TOKEN"'] : []),
    `-d '${body.replaceAll("'", "'\\''")}'`,
  ].join(" \\\n  ");
}

// ---------------------------------------------------------------- the map of qualities

/** Return red, green and blue at a place from 0 to 1. */
function heat(place) {
  const scaled = place * (PALETTE.length - 1);
  const low = Math.min(Math.floor(scaled), PALETTE.length - 2);
  const [from, to] = [PALETTE[low], PALETTE[low + 1]].map((hex) =>
    [1, 3, 5].map((start) => parseInt(hex.slice(start, start + 2), 16)));
  return from.map((one, i) => Math.round(one + (to[i] - one) * (scaled - low)));
}

/** Return the relative luminance of a colour, as WCAG defines it. */
function luminance(colour) {
  const [red, green, blue] = colour.map((one) =>
    one / 255 <= 0.04045 ? one / 255 / 12.92 : ((one / 255 + 0.055) / 1.055) ** 2.4);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

/** Build the heat map of an index: layers as rows, dims as columns, as the figures have them. */
function drawMap(index) {
  const { grid } = index;
  at("map").classList.toggle("empty", !grid);
  at("grid").replaceChildren();
  at("map-name").textContent = grid ? `${grid.measure} of every cut` : "Quality of every cut";
  at("map-about").textContent =
    "There is no evaluation of this model beside the index; one made by m2dr evaluate is shown here.";
  if (!grid) return;
  const values = new Map(grid.cells.map((one) => [cutName(one.layer, one.dim), one.value]));
  const union = (name, more) => [...new Set([...more, ...grid.cells.map((one) => one[name])])].sort((a, b) => a - b);
  const [layers, dims] = [union("layer", index.layers), union("dim", index.dims)];
  at("grid").classList.toggle("dense", layers.length > 13 || dims.length > 8);
  const head = element("tr", {}, element("td"), ...dims.map((dim) => element("th", { scope: "col", textContent: dim })));
  const span = [Math.min(...values.values()), Math.max(...values.values())];
  const rows = layers.map((layer) =>
    element("tr", {}, element("th", { scope: "row", textContent: layer }),
      ...dims.map((dim) => mapCell(index, layer, dim, values.get(cutName(layer, dim)), span))));
  at("grid").append(element("thead", {}, head), element("tbody", {}, ...rows));
}

function measuredOn(grid) {
  return grid.queries ? `${plain.format(grid.queries)} queries${grid.split ? ` of ${grid.split}` : ""}; ` : "Choose a cut: ";
}

function mapCell(index, layer, dim, value, [low, high]) {
  const cell = element("td", { textContent: value === undefined ? "–" : score(value) });
  const known = value === undefined ? "not measured" : `${index.grid.measure} ${score(value)}`;
  cell.setAttribute("aria-label", `layer ${layer}, dim ${dim}: ${known}`);
  if (value !== undefined) {
    const colour = heat(high > low ? (value - low) / (high - low) : 1);
    cell.style.setProperty("background-color", `rgb(${colour.join(" ")})`);
    cell.classList.add(luminance(colour) < BRIGHT ? "deep" : "bright");
  }
  if (index.layers.includes(layer) && index.dims.includes(dim)) {
    cell.dataset.layer = layer;
    cell.dataset.dim = dim;
  } else {
    cell.setAttribute("aria-disabled", "true");
    cell.title = "measured, but not searchable here";
  }
  return cell;
}

function moveOnMap(event) {
  const index = current();
  const moves = { ArrowUp: ["layer", -1], ArrowDown: ["layer", 1], ArrowLeft: ["dim", -1], ArrowRight: ["dim", 1],
    Home: ["dim", -Infinity], End: ["dim", Infinity], PageUp: ["layer", -Infinity], PageDown: ["layer", Infinity] };
  if (!(event.key in moves) || event.ctrlKey || event.altKey || event.metaKey) return;
  event.preventDefault();
  const [name, step] = moves[event.key];
  const values = index[`${name}s`];
  const place = Math.max(0, Math.min(values.length - 1, values.indexOf(state[name]) + step));
  moveTo({ [name]: values[place] });
  at("grid").querySelector("[aria-selected=true]")?.focus();
}

function moveTo(cut) {
  Object.assign(state, cut);
  writeAddress();
  drawCut();
  searchSoon(SLIDING_MS);
}

// ---------------------------------------------------------------- results

/** Draw an answer: times, overlap and both rankings. */
function draw(said) {
  answer = said;
  const [{ hits, full, overlap }] = said.results;
  drawTimes(said.times, said.full_times);
  drawOverlap(hits, full, overlap);
  drawHits(hits, full);
  at("results").hidden = false;
  at("welcome").hidden = true;
  at("request").hidden = false;
  warn(said.warning);
  at("said").textContent =
    `${said.cut}: ${Math.round(overlap * full.length)} of the full model's ${full.length} best documents.`;
}

/** Say why the answers of this cut may be worse than the model allows. */
function warn(sentence) {
  at("warning").hidden = !sentence;
  at("warning").textContent = sentence ?? "";
}

function clear() {
  answer = null;
  busy(false);
  problem(null);
  at("results").hidden = true;
  at("welcome").hidden = false;
  at("said").textContent = "";
  warn(null);
  tile("overlap", "–", "with the full model");
  at("overlap").querySelector(".dots").replaceChildren();
  drawTimes(null, null);
}

function drawTimes(times, fullTimes) {
  const parts = ["tokenise_ms", "encode_ms", "search_ms"];
  const sums = [times, fullTimes].map((one) => (one ? parts.reduce((sum, part) => sum + one[part], 0) : 0));
  const longest = Math.max(...sums);
  const faster = sums[1] / sums[0];
  at("times").caption.lastElementChild.textContent =
    !times ? "" : faster >= 1.05 ? `; ${faster.toFixed(1)} times as fast as the full model` : "; not faster than the full model this time";
  [...at("times").tBodies[0].rows].forEach((row, i) => {
    const measured = [times, fullTimes][i];
    const values = measured ? [...parts.map((part) => measured[part]), sums[i]] : [];
    for (let place = 0; place < 4; place++) {
      row.cells[place + 1].textContent = place in values ? ms(values[place]) : "–";
    }
    [...row.cells[5].children].forEach((bar, place) =>
      bar.style.setProperty("--share", longest ? (values[place] ?? 0) / longest : 0));
  });
}

function drawOverlap(hits, full, overlap) {
  const shown = new Set(hits.map((hit) => hit.docid));
  const dots = full.map((hit) => element("i", { className: shown.has(hit.docid) ? "kept" : "" }));
  tile("overlap", `${Math.round(overlap * full.length)} of ${full.length}`, "in both rankings");
  at("overlap").querySelector(".dots").replaceChildren(...dots);
}

function drawHits(hits, full) {
  const ranks = new Map(full.map((hit) => [hit.docid, hit.rank]));
  const found = new Set(hits.map((hit) => hit.docid));
  const before = new Map([...at("hits").children].map((row) => [row.dataset.docid, row.offsetTop]));
  at("cut-column").textContent = `This cut, ${answer.cut}`;
  at("full-column").textContent = `Full model, ${current().full}`;
  at("hits").replaceChildren(...hits.map((hit) => row(hit, change(hit.rank, ranks.get(hit.docid)))));
  at("full-hits").replaceChildren(...full.map((hit) =>
    row(hit, found.has(hit.docid) ? null : ["missed", "missed", `not in the first ${hits.length} of this cut`])));
  if (!hits.length) at("hits").append(element("li", { className: "none", textContent: "No document was found." }));
  drawLines();
  glide(before);
}

/** Return how a rank differs from the full model's: kind, text and words for screen readers. */
function change(rank, fullRank) {
  if (fullRank === undefined) return ["new", "new", `not in the first ${K} of the full model`];
  const up = fullRank - rank;
  if (up === 0) return ["same", "=", "same rank as in the full model"];
  return [up > 0 ? "up" : "down", `${up > 0 ? "▲" : "▼"} ${Math.abs(up)}`, `rank ${fullRank} in the full model`];
}

function row(hit, changed) {
  const title = element("button", { type: "button", className: "title", textContent: hit.title || hit.docid });
  title.setAttribute("aria-expanded", "false");
  const made = element("li", {}, element("span", { className: "rank", textContent: hit.rank }));
  if (changed) {
    const [kind, text, words] = changed;
    made.className = kind;
    const badge = element("span", { className: "change", title: words });
    badge.append(element("span", { textContent: text, ariaHidden: "true" }), element("span", { className: "unseen", textContent: words }));
    made.append(badge);
  }
  const parts = hit.bm25_score == null ? ""
    : ` · vectors ${hit.vector_score?.toFixed(3) ?? "–"} · BM25 ${hit.bm25_score.toFixed(2)}`;
  const facts = `${hit.score.toFixed(3)}${parts}${hit.title && hit.title !== hit.docid ? ` · ${hit.docid}` : ""}`;
  made.append(title, element("p", { className: "text", textContent: hit.text ?? "" }),
    element("p", { className: "facts", textContent: facts }));
  if (hit.explain) made.append(shares(hit.explain));
  made.dataset.docid = hit.docid;
  return made;
}

/** Return the shares of a score as bars, the largest as long as there is room. */
function shares(explained) {
  const all = Object.entries(explained).sort(([, a], [, b]) => Math.abs(b) - Math.abs(a));
  const longest = Math.abs(all[0]?.[1] ?? 1) || 1;
  const rows = all.slice(0, WORDS).map(([word, share]) => {
    const bar = element("i", { className: share < 0 ? "bar less" : "bar", ariaHidden: "true" });
    bar.style.setProperty("--share", Math.abs(share) / longest);
    return element("li", {}, element("span", { textContent: word }), bar, element("b", { textContent: share.toFixed(3) }));
  });
  if (all.length > WORDS) rows.push(element("li", { textContent: `and ${all.length - WORDS} smaller` }));
  return element("ul", { className: "why", ariaLabel: "Shares of the score" }, ...rows);
}

/** Let documents that were there before move from their old place to the new one. */
function glide(before) {
  if (matchMedia("(prefers-reduced-motion: reduce)").matches) return;
  const timing = { duration: MOVE_MS, easing: "cubic-bezier(.2, .7, .2, 1)" };
  for (const one of at("hits").children) {
    const from = before.get(one.dataset.docid);
    if (from === undefined) one.animate([{ opacity: 0 }, { opacity: 1 }], timing);
    else if (from !== one.offsetTop) {
      one.animate([{ transform: `translateY(${from - one.offsetTop}px)` }, { transform: "none" }], timing);
    }
  }
  at("lines").animate([{ opacity: 0 }, { opacity: 1 }], timing);
}

/** Connect each document of one ranking with itself in the other. */
function drawLines() {
  const svg = at("lines");
  const { width, top } = svg.getBoundingClientRect();
  const places = new Map([...at("full-hits").children].map((one) => [one.dataset.docid, one]));
  const middle = (one) => one.getBoundingClientRect().top - top + 20;
  const paths = [...at("hits").children].filter((one) => places.has(one.dataset.docid)).map((one) => {
    const [from, to] = [middle(one), middle(places.get(one.dataset.docid))];
    const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
    const [left, right, half] = [8, width - 8, width / 2]; // pixels; free at both ends
    path.setAttribute("d", `M${left} ${from}C${half} ${from} ${half} ${to} ${right} ${to}`);
    path.setAttribute("class", one.className);
    path.dataset.docid = one.dataset.docid;
    return path;
  });
  svg.replaceChildren(...paths);
}

/** Mark a document in both rankings while it is pointed at or has the focus. */
function mark(event) {
  const docid = event.type.endsWith("out") ? undefined : event.target.closest("li")?.dataset.docid;
  for (const one of document.querySelectorAll("#hits > li, #full-hits > li, #lines > path")) {
    one.classList.toggle("marked", docid !== undefined && one.dataset.docid === docid);
  }
}

function unfold(event) {
  const title = event.target.closest(".title");
  if (!title) return;
  const open = title.getAttribute("aria-expanded") !== "true";
  title.setAttribute("aria-expanded", open);
  title.parentElement.classList.toggle("open", open);
  drawLines();
}

// ---------------------------------------------------------------- the page

function drawIndex() {
  const index = current();
  const model = String(index.model).replace(/\/+$/, "").split("/").pop();
  document.title = `m2dr · ${index.name}`;
  at("about").textContent = `${plain.format(index.documents)} documents of ${index.corpus}, searched with ${model}`;
  at("index").value = index.name;
  at("filter-line").hidden = !index.fields?.length;
  at("mix").hidden = !(index.layers.includes(0) && index.layers.length > 1);
  at("filter").placeholder = index.fields?.length ? `a condition on ${index.fields.join(", ")}` : "";
  drawTicks("layer", index.layers);
  drawTicks("dim", index.dims);
  drawMap(index);
  drawExamples(index);
}

function drawExamples(index) {
  const texts = (index.examples ?? []).slice(0, EXAMPLES);
  const buttons = texts.map((text) => element("button", { type: "button", className: "plain", textContent: text }));
  at("examples").replaceChildren("Try ", ...buttons);
  at("examples").hidden = !texts.length;
}

/** Draw the page for what the address says. */
function show() {
  readAddress();
  at("query").value = state.query;
  at("filter").value = state.filter;
  for (const name of BOXES) at(name).checked = state[name];
  drawIndex();
  drawCut();
  clear();
  search();
}

function setQuery(query, wait) {
  state.query = query;
  writeAddress();
  drawCut();
  searchSoon(wait);
}

function paintTheme(name) {
  if (name) document.documentElement.dataset.theme = name;
  const dark = name ? name === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  at("theme").textContent = dark ? "Light" : "Dark";
  at("theme").setAttribute("aria-label", `Use ${dark ? "light" : "dark"} colours`);
}

async function copy(button, text) {
  const label = (button.dataset.label ??= button.textContent);
  button.textContent = await navigator.clipboard.writeText(text).then(() => "Copied", () => "Not copied");
  setTimeout(() => { button.textContent = label; }, 1500);
}

function listenToTexts() {
  at("search").addEventListener("submit", (event) => { event.preventDefault(); search(); });
  at("query").addEventListener("input", (event) => setQuery(event.target.value, TYPING_MS));
  at("filter").addEventListener("input", (event) => {
    state.filter = event.target.value;
    setQuery(state.query, TYPING_MS);
  });
  for (const name of BOXES) {
    at(name).addEventListener("change", (event) => {
      state[name] = event.target.checked;
      setQuery(state.query, 0);
    });
  }
  at("examples").addEventListener("click", (event) => {
    if (event.target.localName !== "button") return;
    at("query").value = event.target.textContent;
    setQuery(event.target.textContent, 0);
  });
  document.addEventListener("keydown", (event) => {
    const typing = event.target.matches("input:not([type=range]), select, textarea");
    if (event.key !== "/" || typing || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    at("query").select();
  });
}

function listenToCut() {
  for (const name of ["layer", "dim"]) {
    at(name).addEventListener("input", (event) => moveTo({ [name]: current()[`${name}s`][event.target.value] }));
  }
  at("grid").addEventListener("keydown", moveOnMap);
  at("grid").addEventListener("click", (event) => {
    const { layer, dim } = event.target.closest("td")?.dataset ?? {};
    if (layer !== undefined) moveTo({ layer: Number(layer), dim: Number(dim) });
  });
  at("index").addEventListener("change", (event) => {
    state.index = event.target.value;
    writeAddress();
    show();
  });
  addEventListener("hashchange", () => indexes.length && show());
}

function listenToResults() {
  for (const list of [at("hits"), at("full-hits")]) {
    list.addEventListener("click", unfold);
    for (const name of ["pointerover", "pointerout", "focusin", "focusout"]) list.addEventListener(name, mark);
  }
  new ResizeObserver(drawLines).observe(at("hits"));
  at("problem").lastElementChild.addEventListener("click", () => again());
  at("token-form").addEventListener("submit", (event) => {
    event.preventDefault();
    remember(() => sessionStorage, "m2dr-token", at("token").value);
    again();
  });
}

function listenToButtons() {
  at("copy-link").addEventListener("click", (event) => copy(event.target, location.href));
  at("copy-curl").addEventListener("click", (event) => copy(event.target, curl()));
  at("theme").addEventListener("click", () => {
    const name = at("theme").textContent.toLowerCase();
    remember(() => localStorage, "m2dr-theme", name);
    paintTheme(name);
  });
  const system = matchMedia("(prefers-color-scheme: dark)");
  system.addEventListener("change", () => paintTheme(document.documentElement.dataset.theme));
}

async function start() {
  try {
    indexes = (await ask("models")).indexes;
    if (!indexes.length) throw new Error("This server has no index to search.");
  } catch (error) {
    return problem(error, start);
  }
  problem(null);
  document.body.classList.add("ready");
  at("index").replaceChildren(...indexes.map((one) => element("option", { value: one.name, textContent: one.name })));
  at("index-chooser").hidden = indexes.length < 2;
  for (const id of ["copy-link", "copy-curl"]) at(id).hidden = !navigator.clipboard;
  show();
}

paintTheme(remember(() => localStorage, "m2dr-theme"));
listenToTexts();
listenToCut();
listenToResults();
listenToButtons();
start();
