// The page: an image in, events out. drawing.js is the canvas, stream.js reads the events.
import { Drawing } from "./drawing.js";
import { classify } from "./stream.js";

const MAX_SAMPLES = 48;
const PAUSE = 180; // ms between events that arrive together, so that one can follow them
const get = (id) => document.getElementById(id);
const calm = matchMedia("(prefers-reduced-motion: reduce)");
let models = [];
let token = sessionStorage.getItem("token") || "";
let current = null; // the AbortController of the request under way

const drawing = new Drawing(get("canvas"), () => decideDrawing());

async function start() {
  const response = await fetch("/models", { headers: authorization() });
  if (response.status === 401) return askForToken(token && "The server refused this token; check it.");
  if (!response.ok) return fail("The server does not answer; reload the page.");
  models = await response.json();
  if (!models.length) return fail("The models of this server take no image files.");
  get("token-form").hidden = get("error").hidden = true;
  get("interface").hidden = Boolean(token); // a link cannot send it
  get("model").replaceChildren(...models.map(({ name }) => new Option(name)));
  get("model-choice").hidden = models.length < 2;
  say("Draw or choose an image.");
  chooseModel();
}

const authorization = () => (token ? { Authorization: `Bearer ${token}` } : {});

function askForToken(problem) {
  if (problem) fail(problem);
  get("token-form").hidden = false;
  get("interface").hidden = true;
  get("token").focus();
}

function chooseModel() {
  get("drawing").hidden = !models.find(({ name }) => name === get("model").value)?.draws;
}

async function decideDrawing() {
  if (drawing.isBlank) return fail("The drawing area is blank; draw a digit first.");
  decide(await drawing.toBlob());
}

async function decide(blob) {
  current?.abort();
  const own = (current = new AbortController());
  clear();
  URL.revokeObjectURL(get("given").src);
  get("given").src = URL.createObjectURL(blob);
  say("Deciding …");
  get("status").scrollIntoView({ block: "nearest" }); // on a phone it is below the drawing
  try {
    let last = 0;
    for await (const { name, data } of classify(blob, get("model").value, authorization(), own.signal)) {
      const wait = calm.matches ? 0 : last + PAUSE - performance.now();
      if (wait > 0) await new Promise((resolve) => setTimeout(resolve, wait));
      if (own.signal.aborted) return;
      if (name === "error") throw new Error(data.error);
      if (name === "start") continue;
      show(data);
      last = performance.now();
      if (name === "decision") finish(data);
    }
  } catch (error) {
    if (own.signal.aborted) return;
    if (error.status === 401) askForToken();
    fail(error.message);
  } finally {
    if (current === own) get("stop").hidden = true;
  }
}

function clear() {
  get("error").hidden = get("outcome").hidden = true;
  get("samples").replaceChildren();
  get("status").classList.remove("settled");
  get("stop").hidden = false;
}

function say(sentence) {
  get("status").textContent = sentence;
}

function fail(sentence) {
  say("");
  get("error").textContent = sentence[0].toUpperCase() + sentence.slice(1);
  get("error").hidden = false;
}

const percent = (p) => (p === null ? "" : ` (${p > 0.9995 ? "> 99.9" : (100 * p).toFixed(1)} %)`);

function show(data) {
  get("outcome").hidden = false;
  get("leader").textContent = (data.class ?? "–") + percent(data.probability);
  get("plain").textContent = data.plain.class + percent(data.plain.probability);
  get("passes").textContent = data.passes.toLocaleString("en");
  get("quantity").textContent = data.quantity[0].toUpperCase() + data.quantity.slice(1);
  get("notes").textContent = data.notes.length ? `The image was ${data.notes.join(", ")}.` : "";
  showClasses(data.classes);
  const items = data.samples.map(({ pass, image }) => {
    const item = document.createElement("li");
    const picture = new Image();
    [picture.src, picture.alt, picture.title] = [image, `pass ${pass + 1}`, `pass ${pass + 1}`];
    item.append(picture);
    return item;
  });
  get("samples").prepend(...items.reverse());
  while (get("samples").children.length > MAX_SAMPLES) get("samples").lastChild.remove();
}

// One row per class, in the order of the labels so that rows stay in place, on one axis for all.
function showClasses(classes) {
  const best = classes[0].label;
  const rows = [...classes].sort((a, b) => a.label - b.label);
  const spread = (c) => 2 * (c.standard_error ?? 0);
  const low = Math.min(...rows.map((c) => c.score - spread(c)));
  const high = Math.max(...rows.map((c) => c.score + spread(c)), low + 1e-6);
  const place = (value) => (100 * (value - low)) / (high - low);
  const body = get("classes");
  while (body.rows.length < rows.length) addRow(body);
  while (body.rows.length > rows.length) body.deleteRow(-1);
  rows.forEach((c, index) => {
    const row = body.rows[index];
    row.className = c.label === best ? "leader" : "";
    row.querySelector("th").textContent = c.class;
    const [interval, mean] = [row.querySelector(".interval"), row.querySelector(".mean")];
    interval.style.left = `${place(c.score - spread(c))}%`;
    interval.style.width = `${place(c.score + spread(c)) - place(c.score - spread(c))}%`;
    mean.style.left = `${place(c.score)}%`;
    row.querySelector(".read-aloud").textContent = `${c.score.toFixed(2)} plus or minus ${spread(c).toFixed(2)}`;
  });
  get("axis").replaceChildren(...[low, high].map((value) => document.createElement("span")));
  [low, high].forEach((value, index) => (get("axis").children[index].textContent = value.toFixed(2)));
}

function addRow(body) {
  const row = body.insertRow();
  const head = document.createElement("th");
  head.scope = "row";
  const track = Object.assign(document.createElement("div"), { className: "track" });
  for (const name of ["interval", "mean"]) {
    const part = Object.assign(document.createElement("span"), { className: name });
    part.setAttribute("aria-hidden", "true");
    track.append(part);
  }
  track.append(Object.assign(document.createElement("span"), { className: "read-aloud" }));
  row.append(head);
  row.insertCell().append(track);
}

function finish(data) {
  const passes = `${data.passes.toLocaleString("en")} pass${data.passes === 1 ? "" : "es"}`;
  const sentences = {
    certified: `${data.class}: settled after ${passes}.`,
    limit: `${data.class}: not settled after ${passes}.`,
    fixed: `${data.class}: after ${passes}.`,
  };
  const differs = data.label !== data.plain.label ? ` The plain prediction is ${data.plain.class}.` : "";
  say((sentences[data.stopped] ?? "The network returned no number for this image.") + differs);
  get("status").classList.toggle("settled", data.settled);
}

get("model").addEventListener("change", chooseModel);
get("decide").addEventListener("click", decideDrawing);
get("clear").addEventListener("click", () => drawing.clear());
get("stop").addEventListener("click", () => {
  current?.abort();
  get("stop").hidden = true;
  say("Stopped.");
});
get("file").addEventListener("change", () => get("file").files[0] && decide(get("file").files[0]));
get("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", (token = get("token").value.trim()));
  start().catch(() => fail("The server does not answer; reload the page."));
});
for (const kind of ["dragover", "dragleave", "drop"]) {
  addEventListener(kind, (event) => {
    event.preventDefault();
    get("drop").classList.toggle("over", kind === "dragover");
  });
}
addEventListener("drop", (event) => event.dataTransfer.files[0] && decide(event.dataTransfer.files[0]));
addEventListener("paste", (event) => event.clipboardData.files[0] && decide(event.clipboardData.files[0]));
start().catch(() => fail("The server does not answer; reload the page."));
