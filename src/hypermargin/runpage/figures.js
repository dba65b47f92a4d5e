// Figures that only the data and the language change: curves of the log, angles, features in a plane or a ball.

const CURVES = [
  ["loss", [["train", "loss"]]],
  [
    "accuracy",
    [
      ["train", "accuracy"],
      ["validation", "accuracy"],
    ],
  ],
  [
    "angle",
    [
      ["train", "angle"],
      ["train", "rival_angle"],
    ],
  ],
  ["eer", [["validation", "eer"]]],
  [
    "norm",
    [
      ["train", "norm_p50"],
      ["train", "norm_p10"],
      ["train", "norm_p90"],
    ],
  ],
  ["rate", [["train", "images_per_s"]]],
];
const SHARES = ["accuracy", "eer"];
const LINES = ["hm-main", "hm-second", "hm-plain"];

function seriesOf([kind, name]) {
  const found = data.log?.[kind];
  if (!found?.[name]) return null;
  const points = found.step
    .map((step, i) => [step, found[name][i]])
    .filter(([, y]) => y !== null && Number.isFinite(y));
  return points.length ? { name: `${kind}_${name}`, points } : null;
}

const ranged = (values, low = Infinity, high = -Infinity) => {
  for (const value of values) [low, high] = [Math.min(low, value), Math.max(high, value)];
  return low === high ? [low - 0.5, high + 0.5] : [low, high];
};

function drawCurves() {
  const shown = CURVES.map(([key, asked]) => [key, asked.map(seriesOf).filter(Boolean)]).filter(
    ([, s]) => s.length,
  );
  figures(
    "curves",
    shown,
    ([key, series], svg) => {
      const points = series.flatMap((each) => each.points);
      const times = SHARES.includes(key) ? 100 : 1;
      const curves = series.map((each, i) => ({
        class: LINES[i],
        points: each.points.map(([a, b]) => [a, times * b]),
      }));
      const x = ranged(
        points.map((p) => p[0]),
        0,
      );
      const zero = key === "loss" || key === "eer";
      const [low, high] = ranged(
        points.map((p) => times * p[1]),
        zero ? 0 : Infinity,
      );
      const room = 0.06 * (high - low); // a line at the very edge looks cut off
      const y = [
        zero ? low : low < 0 ? low - room : Math.max(0, low - room),
        SHARES.includes(key) ? Math.max(high, Math.min(100, high + room)) : high + room,
      ];
      const label = say(`axis_${key}`);
      const dots = curves
        .filter(({ points: [, second] }) => !second)
        .map(({ points }) => ({ class: "hm-knot", at: points[0] }));
      chart(svg, {
        x: { range: x, ticks: ticks(...x, 5), write: whole, label: say("axis_step") },
        y: { range: y, label },
        curves,
        dots,
        height: 220,
        name: say(`curve_${key}`),
      });
    },
    ([key, series]) => [say(`curve_${key}`), series.map((each) => say(`line_${each.name}`))],
  );
}

function drawAngles() {
  figures(
    "angles",
    data.angles,
    ({ own, rival, n }, svg) => {
      const most = Math.max(...own, ...rival, 1);
      const end = Math.min(
        180,
        15 *
          ((Math.max(
            own.findLastIndex((k) => k > 0),
            rival.findLastIndex((k) => k > 0),
          ) /
            15 +
            1) |
            0),
      );
      const steps = (counts) => [
        [0, 0],
        ...counts.slice(0, end).flatMap((k, i) => [
          [i, (100 * k) / n],
          [i + 1, (100 * k) / n],
        ]),
        [end, 0],
      ];
      chart(svg, {
        x: {
          range: [0, end],
          ticks: ticks(0, end, 5, [1.5, 3, 4.5, 6, 9, 15]),
          write: (x) => `${x}°`,
          label: say("axis_angle"),
        },
        y: { range: [0, (105 * most) / n], label: say("axis_share") },
        curves: [
          { class: "hp-own", points: steps(own) },
          { class: "hp-other", points: steps(rival) },
        ],
        height: 220,
        name: say("angles_title"),
      });
    },
    ({ what, n }) => [say(`angles_${what}`, { n: whole(n) }), [say("own_class"), say("nearest_other")]],
  );
}

// A figure for each entry, with a legend; made once for a language, drawn as often as needed.
function figures(where, entries, drawOne, wordsOf) {
  const place = list(where);
  const wanted = `${state.lang} ${entries.length}`;
  if (place.dataset.made !== wanted) {
    const kinds = where === "angles" ? ["hp-own", "hp-other"] : LINES.map((kind) => `hp-${kind}`);
    place.replaceChildren(
      ...entries.map((entry) => {
        const [title, names] = wordsOf(entry);
        const items = names.map((name, i) => el("li", {}, el("i", { class: kinds[i] }), name));
        const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
        svg.setAttribute("role", "img");
        return el("figure", {}, el("figcaption", {}, title), el("ul", { class: "hm-legend" }, ...items), svg);
      }),
    );
    place.dataset.made = wanted;
    measure([...place.querySelectorAll("figure > svg")]);
  }
  [...place.querySelectorAll("figure > svg")].forEach((svg, i) => widthOf(svg) && drawOne(entries[i], svg));
}

// ---- features in space ----------------------------------------------------------------------------------------

let turned = null;

function drawSpace() {
  if (!data.points) return;
  const { dim, share, names, label, width } = data.points;
  const kind = dim <= 3 ? `space_${dim}` : "space_more";
  tell("space", say(kind, { share: percent(share), n: whole(label.length) }));
  const styles = looks(colour);
  const shown = names
    .slice(0, 14)
    .map((name, k) =>
      el("li", {}, el("i", { class: `hp-mark hp-mark${styles[k][1]}`, style: `--c:${styles[k][0]}` }), name),
    );
  if (names.length > 14) shown.push(el("li", {}, say("and_more", { n: whole(names.length - 14) })));
  list("space").replaceChildren(...shown);
  const canvas = one('[data-plot="space"]');
  canvas.setAttribute("aria-label", say(kind, { share: percent(share), n: whole(label.length) }));
  turned ??= width === 3 ? turnable(canvas, spaceScene) : () => drawPlane(canvas);
  turned();
}

let spaceAt = null;
function spaceScene() {
  spaceAt ??= { at: floats(data.points.at), kind: data.points.label.map((k) => k % LOOKS) };
  const { at = "", names = [], width = 3 } = data.vectors ?? {};
  const vectors = floats(at);
  const arrows =
    width === data.points.width
      ? names.map((name, k) => [...vectors.subarray(width * k, width * (k + 1)), name])
      : [];
  return { ...spaceAt, styles: looks(colour), arrows, ink: colour("ink"), ground: colour("ground"), faint: colour("faint") };
}

function drawPlane(canvas) {
  const { at, kind, styles, arrows, faint, ink, ground } = spaceScene();
  const size = Math.max(1, Math.round(canvas.clientWidth * Math.min(2, window.devicePixelRatio || 1)));
  [canvas.width, canvas.height] = [size, size];
  const pen = canvas.getContext("2d");
  const lengths = Float32Array.from(kind, (_, i) => Math.hypot(at[2 * i], at[2 * i + 1])).sort();
  const unit = (0.45 * size) / (lengths[Math.floor(0.99 * (lengths.length - 1))] || 1);
  pen.strokeStyle = faint;
  pen.beginPath();
  pen.moveTo(0, size / 2);
  pen.lineTo(size, size / 2);
  pen.moveTo(size / 2, 0);
  pen.lineTo(size / 2, size);
  pen.stroke();
  pen.globalAlpha = 0.7;
  styles.forEach(([fill, mark], style) => {
    pen.fillStyle = fill;
    pen.beginPath();
    kind.forEach(
      (k, i) =>
        k === style && spot(pen, size / 2 + unit * at[2 * i], size / 2 - unit * at[2 * i + 1], size / 180, mark),
    );
    pen.fill();
  });
  pen.globalAlpha = 1;
  [pen.strokeStyle, pen.fillStyle, pen.lineWidth] = [ink, ink, size / 260];
  pen.font = `600 ${Math.round(size / 26)}px system-ui, sans-serif`;
  pen.textAlign = "center";
  for (const [x, y, name] of arrows) {
    pen.beginPath();
    pen.moveTo(size / 2, size / 2);
    pen.lineTo(size / 2 + 0.4 * size * x, size / 2 - 0.4 * size * y);
    pen.stroke();
    pen.save();
    [pen.strokeStyle, pen.lineWidth] = [ground, size / 120]; // a rim, where a dot lies below
    const place = [size / 2 + 0.44 * size * x, size / 2 - 0.44 * size * y + size / 80];
    pen.strokeText(name, ...place);
    pen.restore();
    pen.fillText(name, ...place);
  }
}
