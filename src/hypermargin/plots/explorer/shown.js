// The panel of the reader's samples: the file that is dropped, the cloud over θ, who is pulled more, and the ball.

let turnBall = null;

function startSamples() {
  const field = one('input[type="file"]');
  field.addEventListener("change", () => field.files[0] && openFile(field.files[0]));
  const panel = one('[data-panel="samples"]');
  document.addEventListener("dragover", (event) => {
    if (![...event.dataTransfer.types].includes("Files")) return;
    event.preventDefault();
    panel.classList.add("hm-over");
  });
  document.addEventListener("dragleave", (event) => event.relatedTarget || panel.classList.remove("hm-over"));
  document.addEventListener("drop", (event) => {
    panel.classList.remove("hm-over");
    if (!event.dataTransfer.files.length) return;
    event.preventDefault();
    openFile(event.dataTransfer.files[0]);
  });
  for (const radio of all('[name="hm-shown"]')) radio.addEventListener("change", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  turnBall = turnable(one('[data-plot="ball"]'), ballScene, "");
  const page = document.getElementById("hm-data"); // the explorer stands in the page of a run
  const found = page && fromData(JSON.parse(page.textContent));
  if (!found) return;
  take(found, document.title);
  readAddress(); // who followed a link to a setting wants that one
}

const hue = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();

function drawSamples(reference) {
  drawBallWords();
  turnBall?.();
  one('[data-plot="samples"]').setAttribute("aria-label", say("samples_title"));
  if (!samples) return;
  const found = judgedBoth(reference);
  const values = {
    samplesMet: 100 * found.now.met,
    samplesLoss: found.now.loss,
    samplesPull: found.now.pull,
    samplesGain: 100 * found.gain,
    samplesLose: 100 * found.lose,
  };
  for (const [name, value] of Object.entries(values)) write(name, value);
  tell(
    "against",
    say(pinned ? "against_pinned" : "against_bare", {
      loss: show(found.then.loss),
      met: show(100 * found.then.met, 3),
    }),
  );
  drawCloud();
  drawMoved();
}

// Every sample is a spot of two pixels: however many they are, one picture is put down.
function drawCloud() {
  const kind = one('[name="hm-shown"]:checked').value;
  const values = room.now[kind];
  let most = 0;
  for (const value of values) if (value > most) most = value;
  const y = { range: [0, most || 1], label: say(kind === "pull" ? "axis_pull" : "axis_loss") };
  const svg = one('[data-plot="samples"]');
  chart(svg, {
    x: degreesAxis(say("axis_theta")),
    y,
    curves: [],
    cursor: state.theta,
    height: 260,
    name: say("samples_title"),
  });
  const canvas = one('[data-plot="cloud"]');
  const density = Math.min(2, window.devicePixelRatio || 1);
  const [wide, high] = [Math.max(1, Math.round(widthOf(svg) * density)), Math.round(260 * density)];
  if (canvas.width !== wide || canvas.height !== high) [canvas.width, canvas.height] = [wide, high];
  const pen = canvas.getContext("2d");
  const picture = pen.createImageData(wide, high);
  const pixels = new Uint32Array(picture.data.buffer);
  const inks = [
    ["red", 1],
    ["faint", 0],
    ["blue", 2],
  ].map(([name]) => pixelOf(hue(name)));
  const [left, right, bottom, top] = JSON.parse(svg.dataset.frame).map((place) => place * density);
  const size = density > 1 ? 3 : 2;
  for (let i = 0; i < samples.n; i++) {
    const x = Math.round(left + (samples.own[i] / Math.PI) * (right - left));
    const at = Math.round(bottom - (values[i] / y.range[1]) * (bottom - top));
    const ink = inks[changed(i) + 1];
    for (let v = at; v < at + size && v < high; v++)
      for (let u = x; u < x + size && u < wide; u++) pixels[v * wide + u] = ink;
  }
  pen.putImageData(picture, 0, 0);
}

const pixelOf = (hex) =>
  (0xff000000 |
    (parseInt(hex.slice(5, 7), 16) << 16) |
    (parseInt(hex.slice(3, 5), 16) << 8) |
    parseInt(hex.slice(1, 3), 16)) >>>
  0;

// The samples whose pull changes most, either way.
function drawMoved() {
  const by = (i) => room.now.pull[i] - room.then.pull[i];
  const ends = { more: [], less: [] };
  const keep = (list, i, better) => {
    if (list.length === 5 && !better(i, list[4])) return;
    list.push(i);
    list.sort((a, b) => (better(a, b) ? -1 : 1));
    list.length = Math.min(5, list.length);
  };
  for (let i = 0; i < samples.n; i++) {
    const change = changed(i);
    if (change > 0) keep(ends.more, i, (a, b) => by(a) > by(b));
    else if (change < 0) keep(ends.less, i, (a, b) => by(a) < by(b));
  }
  const place = one('[data-shows-table="moved"]');
  const cells = ["moved_sample", "moved_own", "moved_rival", "moved_then", "moved_now"].map((word) =>
    node("th", say(word)),
  );
  const degrees = (angle) => `${show(angle * DEGREES, 3)}°`;
  const rows = [...ends.more, ...ends.less].map((i) =>
    node(
      "tr",
      node("th", samples.label(i)),
      node("td", degrees(samples.own[i])),
      node("td", degrees(samples.rival[i])),
      node("td", show(room.then.pull[i], 3)),
      node("td", show(room.now.pull[i], 3)),
    ),
  );
  place.replaceChildren(node("thead", node("tr", ...cells)), node("tbody", ...rows));
}

// An element with text or others in it; names of samples are text, whatever they hold.
function node(tag, ...content) {
  const found = document.createElement(tag);
  found.append(...content);
  return found;
}

// ---- the ball -------------------------------------------------------------------------------------------------

function drawBallWords() {
  const [title, text] = samples?.points ? ["ball_samples", "ball_samples_text"] : ["ball_bands", "ball_bands_text"];
  tell("ball", say(title));
  tell("ball_text", say(text));
  one('[data-plot="ball"]').setAttribute("aria-label", say(title));
}

function ballScene() {
  const shared = { ink: hue("ink"), ground: hue("ground"), faint: hue("faint") };
  if (samples?.points) {
    const { at, label } = samples.points;
    return { at, kind: label.map((k) => k % LOOKS), styles: looks(hue), ...shared };
  }
  // Two centers on the sphere, and whose each place is: 0 the first's, 1 the second's, 2 the band's, 3 of both.
  const theta12 = state.theta12 / DEGREES;
  const centers = [
    [1, 0, 0],
    [Math.cos(theta12), Math.sin(theta12), 0],
  ];
  const own = ([a, b]) => psi(Math.acos(Math.max(-1, Math.min(1, a))), state) >= b;
  const kind = BALL.map((point) => {
    const cosines = centers.map((center) => center.reduce((sum, value, i) => sum + value * point[i], 0));
    const [first, second] = [own(cosines), own([cosines[1], cosines[0]])];
    return first && second ? 3 : first ? 0 : second ? 1 : 2;
  });
  const styles = [
    [hue("blue"), 0],
    [hue("red"), 1],
    [hue("faint"), 0],
    [hue("purple"), 2],
  ];
  return {
    at: BALL.flat(),
    kind,
    styles,
    arrows: [
      [...centers[0], "W₁"],
      [...centers[1], "W₂"],
    ],
    ...shared,
  };
}

// Places spread evenly over the sphere, each a golden angle further.
const BALL = Array.from({ length: 1600 }, (_, i) => {
  const z = 1 - (2 * i + 1) / 1600;
  const [r, a] = [Math.sqrt(1 - z * z), i * Math.PI * (3 - Math.sqrt(5))];
  return [r * Math.cos(a), r * Math.sin(a), z];
});
